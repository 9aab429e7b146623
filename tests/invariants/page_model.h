// SPDX-License-Identifier: BSD-3-Clause
//
// An observer that checks what it is told: for each page the order reserve, use, (purge, purged,
// reuse)*, each once (rdmalloc.h, "page events"). Violations are kept as text; the model's end
// expects none.
#pragma once

#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>

#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace rdmalloc_test {

class PageModel {
 public:
  enum State : char { kUnknown, kUsed, kPurging, kPurged };
  static constexpr uintptr_t kPage = 4096;

  // What the observer answers to purge(), by default 0.
  using Answer = int (*)(void* base, size_t length);

  explicit PageModel(Answer first_answer = nullptr) : answer(first_answer) {
    rdmalloc_observer_ops ops = {};
    ops.size = sizeof ops;
    ops.reserve = [](void* me, void* base, size_t n) { of(me)->on_reserve(base, n); };
    ops.use = [](void* me, void* base, size_t n) { of(me)->on_use(base, n); };
    ops.purge = [](void* me, void* base, size_t n, rdmalloc_purge_reason why) {
      return of(me)->on_purge(base, n, why);
    };
    ops.purged = [](void* me, void* base, size_t n, int result) {
      of(me)->on_purged(base, n, result);
    };
    ops.reuse = [](void* me, void* base, size_t n) { of(me)->on_reuse(base, n); };
    added_ = rdmalloc_observer_add(&ops, this, &observer_);
  }
  ~PageModel() {
    EXPECT_EQ(remove(), 0);
    EXPECT_TRUE(violations.empty()) << all_violations();
  }
  int added() const { return added_; }
  int remove() {
    if (observer_ == nullptr) return 0;
    int result = rdmalloc_observer_remove(observer_);
    observer_ = nullptr;
    return result;
  }

  // Public members are the purge turn's: to be touched while no purge can run, so with a purge
  // thread before the observer is added and after its removal only.
  Answer answer;
  std::vector<std::string> violations;
  size_t uses = 0, purges = 0, purged_good = 0, purged_bad = 0, reuses = 0, refused = 0;
  size_t purged_bytes = 0;
  std::map<int, size_t> reasons;

  State state_of(const void* address) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto at = pages_.find(reinterpret_cast<uintptr_t>(address) / kPage);
    return at == pages_.end() ? kUnknown : at->second;
  }
  std::string all_violations() {
    std::string text;
    for (const std::string& one : violations) text += one + "\n";
    return text;
  }

 private:
  static PageModel* of(void* me) { return static_cast<PageModel*>(me); }

  // Moves each page of the range; `allowed` are the states it may come from, as bits.
  void move(const char* event, void* base, size_t length, unsigned allowed, State next) {
    auto start = reinterpret_cast<uintptr_t>(base);
    if (start % kPage != 0 || length % kPage != 0 || length == 0) complain(event, base, length, "");
    bool told = false;  // one line for a range is enough
    for (uintptr_t page = start / kPage; page < (start + length) / kPage; page++) {
      State& state = pages_[page];
      // What was in use before the observer came is not told: a page's first event may be any.
      if (state != kUnknown && (allowed & (1u << state)) == 0 && !told) {
        complain(event, base, length,
                 " page " + std::to_string(page - start / kPage) + " was in state " +
                     std::to_string(int{state}));
        told = true;
      }
      state = next;
    }
  }
  void complain(const char* event, void* base, size_t length, const std::string& why) {
    if (violations.size() > 20) return;
    char text[160];
    snprintf(text, sizeof text, "%s(%p, %zu)", event, base, length);
    violations.push_back(text + why);
  }

  // The arena is reserved whole, a terabyte: kept as a range, not as pages.
  void on_reserve(void* base, size_t length) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto start = reinterpret_cast<uintptr_t>(base);
    for (auto& [other, bytes] : reserved_)
      if (start < other + bytes && other < start + length) complain("reserve", base, length, "");
    reserved_[start] = length;
  }
  void on_use(void* base, size_t length) {
    std::lock_guard<std::mutex> guard(mutex_);
    uses++;
    move("use", base, length, 0, kUsed);  // from unknown only: once
  }
  int on_purge(void* base, size_t length, rdmalloc_purge_reason why) {
    std::lock_guard<std::mutex> guard(mutex_);
    purges++;
    reasons[why]++;
    int result = answer == nullptr ? 0 : answer(base, length);
    if (result != 0) refused++;
    move("purge", base, length, 1u << kUsed, result == 0 ? kPurging : kUsed);
    return result;
  }
  void on_purged(void* base, size_t length, int result) {
    std::lock_guard<std::mutex> guard(mutex_);
    (result == 0 ? purged_good : purged_bad)++;
    if (result == 0) purged_bytes += length;
    move("purged", base, length, 1u << kPurging, result == 0 ? kPurged : kUsed);
  }
  void on_reuse(void* base, size_t length) {
    std::lock_guard<std::mutex> guard(mutex_);
    reuses++;
    move("reuse", base, length, 1u << kPurged, kUsed);
  }

  std::mutex mutex_;
  std::unordered_map<uintptr_t, State> pages_;
  std::map<uintptr_t, size_t> reserved_;
  rdmalloc_observer* observer_ = nullptr;
  int added_ = 0;
};

}  // namespace rdmalloc_test
