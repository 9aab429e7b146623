// SPDX-License-Identifier: BSD-3-Clause
//
// An observer of page events made of lambdas. What is not set is not asked for.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <functional>
#include <utility>

namespace rdmalloc_test {

class Observer {
 public:
  std::function<void(char*base, size_t length)> use, reuse;
  std::function<int(char* base, size_t length)> purge;
  std::function<void(char* base, size_t length, int result)> purged;

  Observer() = default;
  explicit Observer(decltype(purge) asked) : purge(std::move(asked)) { add(); }
  ~Observer() { remove(); }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  // To be called once its functions are set. What rdmalloc_observer_add() returns.
  int add() {
    rdmalloc_observer_ops ops = {};
    ops.size = sizeof ops;
    if (use) ops.use = [](void* me, void* at, size_t n) { of(me)->use(static_cast<char*>(at), n); };
    if (reuse)
      ops.reuse = [](void* me, void* at, size_t n) { of(me)->reuse(static_cast<char*>(at), n); };
    if (purge)
      ops.purge = [](void* me, void* at, size_t n, rdmalloc_purge_reason) {
        return of(me)->purge(static_cast<char*>(at), n);
      };
    if (purged)
      ops.purged = [](void* me, void* at, size_t n, int result) {
        of(me)->purged(static_cast<char*>(at), n, result);
      };
    return added_ = rdmalloc_observer_add(&ops, this, &observer_);
  }
  int added() const { return added_; }
  int remove() {
    int error = rdmalloc_observer_remove(observer_);
    if (error == 0) observer_ = nullptr;
    return error;
  }

 private:
  static Observer* of(void* me) { return static_cast<Observer*>(me); }
  rdmalloc_observer* observer_ = nullptr;
  int added_ = 1;
};

}  // namespace rdmalloc_test
