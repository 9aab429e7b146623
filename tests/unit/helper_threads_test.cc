// SPDX-License-Identifier: BSD-3-Clause
//
// Threads of ours run on stacks of our own, whatever libc wants of one.
#include "alloc/core/helper_threads.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdint>

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

}  // namespace
