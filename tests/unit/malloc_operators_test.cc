// SPDX-License-Identifier: BSD-3-Clause
//
// C++ operator new and delete, all forms: sizes, alignment, failure and the new-handler's loop.
#include <gtest/gtest.h>
#include <string.h>

#include <new>

#include "tests/support/alloc_under_test.h"

namespace {

constexpr size_t kImpossible = size_t{PTRDIFF_MAX} - 4096;
const auto kAlign64 = std::align_val_t{64};

TEST(MallocOperators, every_form_of_new_has_a_delete_that_takes_it) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{24}, size_t{4096}, size_t{1} << 20u}) {
    void* block = ::operator new(bytes);
    ASSERT_NE(block, nullptr);
    memset(block, 1, bytes);
    ::operator delete(block);
    ::operator delete(::operator new(bytes), bytes);
    ::operator delete(::operator new(bytes, std::nothrow), std::nothrow);
    ::operator delete[](::operator new[](bytes));
    ::operator delete[](::operator new[](bytes), bytes);
    ::operator delete[](::operator new[](bytes, std::nothrow), std::nothrow);
    ::operator delete(::operator new(bytes, kAlign64), kAlign64);
    ::operator delete(::operator new(bytes, kAlign64), bytes, kAlign64);
    ::operator delete(::operator new(bytes, kAlign64, std::nothrow), kAlign64, std::nothrow);
    ::operator delete[](::operator new[](bytes, kAlign64), kAlign64);
    ::operator delete[](::operator new[](bytes, kAlign64), bytes, kAlign64);
    ::operator delete[](::operator new[](bytes, kAlign64, std::nothrow), kAlign64, std::nothrow);
  }
  ::operator delete(nullptr);
  ::operator delete[](nullptr);
  ::operator delete(nullptr, kAlign64);
}

TEST(MallocOperators, aligned_new_aligns) {
  for (size_t alignment = 1; alignment <= (size_t{1} << 24u); alignment *= 2) {
    for (size_t bytes : {size_t{1}, size_t{100}, alignment, alignment * 3 + 1}) {
      void* block = ::operator new (bytes, std::align_val_t{alignment});
      EXPECT_TRUE(aut::is_aligned(block, alignment)) << alignment;
      ::operator delete (block, std::align_val_t{alignment});
    }
  }
  struct alignas(256) Wide {
    char bytes[256];
  };
  Wide* many = new Wide[10];
  EXPECT_TRUE(aut::is_aligned(many, 256));
  delete[] many;
}

TEST(MallocOperators, failure_throws_bad_alloc_or_returns_null) {
  std::set_new_handler(nullptr);
  EXPECT_THROW((void)::operator new(aut::opaque(kImpossible)), std::bad_alloc);
  EXPECT_THROW((void)::operator new[](aut::opaque(kImpossible)), std::bad_alloc);
  EXPECT_THROW((void)::operator new(aut::opaque(kImpossible), kAlign64), std::bad_alloc);
  EXPECT_THROW((void)::operator new[](aut::opaque(kImpossible), kAlign64), std::bad_alloc);
  EXPECT_EQ(::operator new(aut::opaque(kImpossible), std::nothrow), nullptr);
  EXPECT_EQ(::operator new[](aut::opaque(kImpossible), std::nothrow), nullptr);
  EXPECT_EQ(::operator new(aut::opaque(kImpossible), kAlign64, std::nothrow), nullptr);
  EXPECT_EQ(::operator new[](aut::opaque(kImpossible), kAlign64, std::nothrow), nullptr);
}

int handler_calls;
void give_up_at_the_third_call() {
  if (++handler_calls == 3) std::set_new_handler(nullptr);
}
struct MyFailure : std::bad_alloc {};
[[noreturn]] void throwing_handler() {
  handler_calls++;
  throw MyFailure();
}

TEST(MallocOperators, the_new_handler_is_called_until_it_gives_up) {
  handler_calls = 0;
  std::set_new_handler(give_up_at_the_third_call);
  EXPECT_THROW((void)::operator new(aut::opaque(kImpossible)), std::bad_alloc);
  EXPECT_EQ(handler_calls, 3);

  handler_calls = 0;
  std::set_new_handler(give_up_at_the_third_call);
  EXPECT_EQ(::operator new(aut::opaque(kImpossible), std::nothrow), nullptr);
  EXPECT_EQ(handler_calls, 3);

  handler_calls = 0;
  std::set_new_handler(give_up_at_the_third_call);
  EXPECT_THROW((void)::operator new(aut::opaque(kImpossible), kAlign64), std::bad_alloc);
  EXPECT_EQ(handler_calls, 3);
}

TEST(MallocOperators, what_the_new_handler_throws_reaches_the_caller) {
  handler_calls = 0;
  std::set_new_handler(throwing_handler);
  EXPECT_THROW((void)::operator new(aut::opaque(kImpossible)), MyFailure);
  EXPECT_THROW((void)::operator new[](aut::opaque(kImpossible)), MyFailure);
  EXPECT_EQ(handler_calls, 2);
  // The nothrow forms are noexcept: they swallow bad_alloc and what derives from it.
  EXPECT_EQ(::operator new(aut::opaque(kImpossible), std::nothrow), nullptr);
  EXPECT_EQ(handler_calls, 3);
  std::set_new_handler(nullptr);
}

TEST(MallocOperators, malloc_calls_no_new_handler) {
  handler_calls = 0;
  std::set_new_handler(throwing_handler);
  EXPECT_EQ(malloc(aut::opaque(kImpossible)), nullptr);
  EXPECT_EQ(handler_calls, 0);
  std::set_new_handler(nullptr);
}

}  // namespace
