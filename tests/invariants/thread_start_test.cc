// SPDX-License-Identifier: BSD-3-Clause
//
// I7 where the purge thread is quicker than its maker: it sleeps before pthread_create() returns,
// which is this program's own here.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <rdmalloc/rdmalloc.h>
#include <string.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "alloc/core/purge_signal.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;

// What is done once the next thread is there, before its maker hears of it.
std::function<void()>& before_it_is_told() {
  static std::function<void()> task;
  return task;
}

pid_t purge_thread_id() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "rdmalloc-purge") return std::stoi(task.path().filename());
  }
  return 0;
}

bool purge_thread_sleeps_for_good() {
  pid_t thread = purge_thread_id();
  return thread != 0 && rdmalloc::detail::purge_signal.sleep == rdmalloc::detail::kIdle &&
         rdmalloc_test::is_asleep(thread);
}

// Seen to wait for ever where the maker does not wake it.
TEST(ThreadStart, I7_what_is_freed_before_the_maker_knows_of_it_goes_back) {
  constexpr size_t kBytes = size_t{8} << 20;
  rdmalloc_test::set("purge.decay_ms", 1);
  // With a cache this thread tells when it ends; else the purge thread looks, every so often.
  rdmalloc_free(rdmalloc_malloc(64));
  void* block = memset(rdmalloc_malloc(kBytes), 1, kBytes);
  before_it_is_told() = [&] {
    rdmalloc_test::wait_until(purge_thread_sleeps_for_good);
    rdmalloc_free(std::exchange(block, nullptr));
  };
  ASSERT_EQ(rdmalloc_init(), 0);
  EXPECT_EQ(block, nullptr) << "pthread_create() is not this program's";
  rdmalloc_test::wait_until([] { return counter("stats.dirty_bytes") == 0; });
  EXPECT_EQ(rdmalloc_fini(), 0);
}

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* arg) {
  using Fn = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto next = reinterpret_cast<Fn>(dlsym(RTLD_NEXT, "pthread_create"));
  int error = next(thread, attributes, run, arg);
  if (auto task = std::exchange(before_it_is_told(), nullptr)) task();
  return error;
}
