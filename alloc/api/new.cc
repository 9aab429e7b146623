// operator new and delete, all forms. librdmalloc.so links libc only, so libstdc++'s new-handler
// and bad_alloc are used where the program has them (weak symbols), or a library that it loaded
// later (cxx_library.h). A program without them, which can't catch anything either, is ended with a
// message.
#include <cstddef>

#include "alloc/api/allocate.h"
#include "alloc/api/cxx_library.h"
#include "alloc/core/report.h"

#if RDMALLOC_OVERRIDE

#include <new>

// std::get_new_handler() and std::__throw_bad_alloc(), as libstdc++ and libc++ export them.
extern "C" __attribute__((weak)) std::new_handler _ZSt15get_new_handlerv() noexcept;
extern "C" __attribute__((weak)) void _ZSt17__throw_bad_allocv();

// What the compiler refers to for the catch below: present exactly where something can be thrown.
asm(".weak __gxx_personality_v0\n.weak __cxa_begin_catch\n.weak __cxa_end_catch\n"
    ".weak _Unwind_Resume\n");

namespace {

using namespace rdmalloc;

std::new_handler new_handler() {
  return _ZSt15get_new_handlerv != nullptr ? _ZSt15get_new_handlerv() : nullptr;
}

// Where the weak symbols were bound to nothing: the same operator of the library that came later
// has the loop, its handler, its exception, and the catch that ours lacks then. For memory it comes
// back here, to malloc(), and its form without exceptions to operator new.
[[gnu::cold, gnu::noinline]] void* new_of_late_library(std::size_t bytes, std::size_t alignment,
                                                       bool may_throw) {
  const std::nothrow_t nothrow{};
  const std::align_val_t aligned{alignment};
  auto find = []<typename New>(New*& function, const char* name) {
    function = reinterpret_cast<New*>(find_in_cxx_library(name));
    return function != nullptr;
  };
  void* (*plain)(std::size_t) = nullptr;
  void* (*plain_nothrow)(std::size_t, const std::nothrow_t&) = nullptr;
  void* (*with_alignment)(std::size_t, std::align_val_t) = nullptr;
  void* (*with_both)(std::size_t, std::align_val_t, const std::nothrow_t&) = nullptr;
  if (may_throw && alignment <= 1 && find(plain, "_Znwm")) return plain(bytes);
  if (may_throw && alignment > 1 && find(with_alignment, "_ZnwmSt11align_val_t"))
    return with_alignment(bytes, aligned);
  if (!may_throw && alignment <= 1 && find(plain_nothrow, "_ZnwmRKSt9nothrow_t"))
    return plain_nothrow(bytes, nothrow);
  if (!may_throw && alignment > 1 && find(with_both, "_ZnwmSt11align_val_tRKSt9nothrow_t"))
    return with_both(bytes, aligned, nothrow);
  return nullptr;
}

// When there is no memory: the loop that the standard asks for.
[[gnu::cold, gnu::noinline]] void* new_failed(std::size_t bytes, std::size_t alignment,
                                              bool may_throw) {
  if (_ZSt17__throw_bad_allocv == nullptr) {
    void* block = new_of_late_library(bytes, alignment, may_throw);
    if (block != nullptr || !may_throw) return block;
    report_fatal("operator new: no memory, and no C++ library to throw std::bad_alloc with",
                 "link the program with libstdc++");
  }
  for (;;) {
    std::new_handler handler = new_handler();
    if (handler == nullptr) {
      if (!may_throw) return nullptr;
      _ZSt17__throw_bad_allocv();
    }
    handler();  // frees something, throws, or ends the program
    if (void* block = allocate_aligned(alignment, bytes)) return block;
  }
}

[[gnu::cold, gnu::noinline]] void* new_failed_nothrow(std::size_t bytes,
                                                      std::size_t alignment) noexcept {
  try {
    return new_failed(bytes, alignment, false);
  } catch (...) {
    return nullptr;
  }
}

// When this thread holds no block of the class.
[[gnu::noinline]] void* new_slow(std::size_t bytes) {
  void* block = allocate(bytes);
  return block != nullptr ? block : new_failed(bytes, 1, true);
}
[[gnu::noinline]] void* new_slow_nothrow(std::size_t bytes) noexcept {
  void* block = allocate(bytes);
  return block != nullptr ? block : new_failed_nothrow(bytes, 1);
}

[[gnu::always_inline]] inline void* new_block(std::size_t bytes) {
  void* block = try_allocate(bytes);
  if (block == nullptr) [[unlikely]]
    return new_slow(bytes);
  return block;
}
[[gnu::always_inline]] inline void* new_block_nothrow(std::size_t bytes) noexcept {
  void* block = try_allocate(bytes);
  if (block == nullptr) [[unlikely]]
    return new_slow_nothrow(bytes);
  return block;
}
inline void* new_aligned(std::size_t bytes, std::align_val_t alignment) {
  void* block = allocate_aligned(static_cast<std::size_t>(alignment), bytes);
  return block != nullptr ? block : new_failed(bytes, static_cast<std::size_t>(alignment), true);
}
inline void* new_aligned_nothrow(std::size_t bytes, std::align_val_t alignment) noexcept {
  void* block = allocate_aligned(static_cast<std::size_t>(alignment), bytes);
  return block != nullptr ? block : new_failed_nothrow(bytes, static_cast<std::size_t>(alignment));
}

}  // namespace

#define RDMALLOC_EXPORT __attribute__((visibility("default")))

RDMALLOC_EXPORT void* operator new(std::size_t n) {
  return new_block(n);
}
RDMALLOC_EXPORT void* operator new[](std::size_t n) {
  return new_block(n);
}
RDMALLOC_EXPORT void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return new_block_nothrow(n);
}
RDMALLOC_EXPORT void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return new_block_nothrow(n);
}
RDMALLOC_EXPORT void* operator new(std::size_t n, std::align_val_t a) {
  return new_aligned(n, a);
}
RDMALLOC_EXPORT void* operator new[](std::size_t n, std::align_val_t a) {
  return new_aligned(n, a);
}
RDMALLOC_EXPORT void* operator new(std::size_t n, std::align_val_t a,
                                   const std::nothrow_t&) noexcept {
  return new_aligned_nothrow(n, a);
}
RDMALLOC_EXPORT void* operator new[](std::size_t n, std::align_val_t a,
                                     const std::nothrow_t&) noexcept {
  return new_aligned_nothrow(n, a);
}

RDMALLOC_EXPORT void operator delete(void* p) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete[](void* p) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete(void* p, const std::nothrow_t&) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete[](void* p, const std::nothrow_t&) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete(void* p, std::size_t) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete[](void* p, std::size_t) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete(void* p, std::align_val_t) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete[](void* p, std::align_val_t) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  release(p);
}
RDMALLOC_EXPORT void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept {
  release(p);
}

#endif
