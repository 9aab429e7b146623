// SPDX-License-Identifier: BSD-3-Clause
//
// Threads of ours run on stacks of our own, whatever libc wants of one. Of the one that reads
// files, what is left where it can't be made.
#include "alloc/core/helper_threads.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdint>

#include "alloc/core/file_thread.h"
#include "alloc/os/fault.h"
#include "tests/support/process.h"

namespace {

void* address_on_stack(void* to) {
  auto* here = static_cast<std::uintptr_t*>(to);
  *here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  return nullptr;
}

// 1 byte is less than PTHREAD_STACK_MIN everywhere, 64 KiB on aarch64. Seen to fail with an error
// of pthread_attr_setstack() passed over: libc mapped a stack of its default size.
TEST(HelperThreads, I1_stacks_that_libc_finds_too_small_grow) {
  for (std::size_t room_bytes : {std::size_t{1}, std::size_t{64} << 10, std::size_t{4} << 20}) {
    rdmalloc::HelperStack stack;
    pthread_t thread;
    std::uintptr_t here = 0;
    ASSERT_EQ(rdmalloc::helper_thread_create(&stack, room_bytes, address_on_stack, &here, &thread),
              0);
    ASSERT_EQ(pthread_join(thread, nullptr), 0);
    EXPECT_TRUE(stack.holds(here)) << room_bytes;
    EXPECT_GE(stack.bytes, room_bytes);
  }
}

void note(void* has_run) {
  *static_cast<bool*>(has_run) = true;
}

// Seen to fail with the state left as it was, for which the next call would wait for ever; and with
// the count of helpers, by which no process would end with its last thread.
TEST(FileThread, I10_a_refused_one_is_tried_again) {
  const std::uint32_t before = rdmalloc::helper_threads;
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kThreadCreate, 1);
  bool has_run = false;
  EXPECT_EQ(rdmalloc::file_thread_run(note, &has_run), -EAGAIN);
  EXPECT_FALSE(has_run);
  EXPECT_EQ(rdmalloc::helper_threads, before);
  rdmalloc::file_thread_stop();  // there is none
  EXPECT_EQ(rdmalloc::file_thread_run(note, &has_run), 0);
  EXPECT_TRUE(has_run);
  EXPECT_EQ(rdmalloc::helper_threads, before + 1);
  rdmalloc::file_thread_stop();
  EXPECT_EQ(rdmalloc::helper_threads, before);
}

// Seen to fail with a thread that stays, and with one made at each call.
TEST(FileThread, without_descriptors_of_its_own_is_made_once_and_ends) {
  const std::uint32_t before = rdmalloc::helper_threads;
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kOwnDescriptors, 1);
  bool has_run = false;
  EXPECT_EQ(rdmalloc::file_thread_run(note, &has_run), -EPERM);
  EXPECT_EQ(rdmalloc::helper_threads, before);
  EXPECT_EQ(rdmalloc_test::threads_named("rdmalloc-files"), 0);
  EXPECT_EQ(rdmalloc::file_thread_run(note, &has_run), -EPERM);
  EXPECT_FALSE(has_run);
}

}  // namespace
