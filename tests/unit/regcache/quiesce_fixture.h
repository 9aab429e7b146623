// What the tests of rdmalloc_quiesce() share: a registrar that closes and opens its device, and
// notes in which order it is called.
#pragma once

#include <stdlib.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/kernel_has.h"
#include "tests/unit/regcache/registered_heaps_fixture.h"

inline struct rdmalloc_quiesce_counters quiesce_counters() {
  struct rdmalloc_quiesce_counters now = {};
  now.size = sizeof now;
  EXPECT_EQ(rdmalloc_quiesce_stats(&now), 0);
  return now;
}

// Why a test of watched memory skips; empty where it does not.
inline std::string why_not_watched() {
  if (getenv("RDMALLOC_FOREIGN") == nullptr)
    return "SKIP: run by regcache_quiesce_watch, which sets RDMALLOC_FOREIGN=watch";
  const int error = rdmalloc_test::userfaultfd_error();
  return error == 0 ? "" : std::string("SKIP: no userfaultfd here: ") + strerror(error);
}

// What a restore from a checkpoint forgets (CRIU 4.1.1).
inline void forget_what_is_wiped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t low = 0, high = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &low, &high) == 2)
      madvise(reinterpret_cast<void*>(low), high - low, MADV_KEEPONFORK);
  }
}

// A block that is a span of its own.
struct Block {
  explicit Block(std::size_t length = kMiB) : bytes(static_cast<char*>(rdmalloc_malloc(length))) {
    std::memset(bytes, 5, length);
  }
  ~Block() { rdmalloc_free(bytes); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  char* bytes;
};

class Quiesce : public RegisteredHeaps {
 protected:
  void SetUp() override {
    fabric.ops.quiesce = [](void* context) { return self_of(context)->on_quiesce(); };
    fabric.ops.resume = [](void* context) { return self_of(context)->on_resume(); };
    fabric.ops.flags |= RDMALLOC_REGISTRAR_REOPEN;
    self = this;
    attr.event = [](rdmalloc_domain*, rdmalloc_domain_event event, void* arg) {
      return static_cast<Quiesce*>(arg)->on_event(event);
    };
    attr.event_arg = this;
  }
  void TearDown() override {
    while (rdmalloc_resume() == 0) {
    }
    RegisteredHeaps::TearDown();
  }
  static rdmalloc_pool_attr small_pool(std::uint32_t access = 0) {
    rdmalloc_pool_attr of_pool = {};
    of_pool.size = sizeof of_pool;
    of_pool.small_count = of_pool.large_count = 2;
    of_pool.access = access;
    return of_pool;
  }
  static rdmalloc_pool* make_pool(const StubDomain& domain, std::uint32_t access = 0) {
    rdmalloc_pool_attr of_pool = small_pool(access);
    rdmalloc_pool* pool = nullptr;
    EXPECT_EQ(rdmalloc_pool_create(&domain.handle, 1, &of_pool, &pool), 0);
    return pool;
  }
  static Quiesce* self_of(void*) { return self; }
  int on_quiesce() {
    EXPECT_EQ(fabric.live(), 0u) << "a registrar is closed with something registered";
    happened.push_back(kRegistrarCloses);
    return quiesce_error;
  }
  int on_resume() {
    happened.push_back(kRegistrarOpens);
    return resume_error;
  }
  int on_event(rdmalloc_domain_event event) {
    happened.push_back(event);
    if (before_event) before_event(event);
    return event == failing_event ? -EPERM : 0;
  }

  static constexpr int kRegistrarCloses = 11, kRegistrarOpens = 12;
  static inline Quiesce* self = nullptr;
  rdmalloc_domain_attr attr = {};
  std::vector<int> happened;
  std::function<void(rdmalloc_domain_event)> before_event;
  int quiesce_error = 0, resume_error = 0;
  int failing_event = 0;
};
