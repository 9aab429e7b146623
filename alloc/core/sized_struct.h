// Structs of the public headers that begin with their `size`, as callers were compiled with them:
// before or after this library. One rule for all of them:
//
//   smaller    what the caller does not know has its default, which is 0; of a struct that is
//              filled in, it gets the part that it knows
//   larger     the library does not know the rest: of what is given it must be 0 (-E2BIG); of what
//              is filled in it becomes 0
//   below that of `size` itself: -EINVAL; above 4,096 bytes, which is no size of ours: -E2BIG
//
// So that this holds a field is added at the end, never in what was padding, with 0 as its default;
// and a struct that lies in another one, or in an array, never grows. Flags that the library does
// not know are refused by their reader.
#pragma once

#include <errno.h>

#include <cstddef>
#include <cstring>

namespace rdmalloc {

namespace detail {
inline constexpr std::size_t kMostStructBytes = 4096;

inline int check_struct_size(std::size_t size) {
  if (size < sizeof size) return -EINVAL;
  return size > kMostStructBytes ? -E2BIG : 0;
}
}  // namespace detail

// Reads what a caller gives into *known, over its defaults. 0, -EINVAL or -E2BIG.
template <class T>
int read_struct(const T* given, T* known) {
  static_assert(offsetof(T, size) == 0);
  if (given == nullptr) return -EINVAL;
  std::size_t size = given->size;
  if (int error = detail::check_struct_size(size)) return error;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < size; ++i)
    if (bytes[i] != 0) return -E2BIG;
  std::memcpy(static_cast<void*>(known), bytes, size < sizeof(T) ? size : sizeof(T));
  known->size = sizeof(T);
  return 0;
}

// Whether a caller's struct can be filled in: asked before anything is done.
template <class T>
int check_struct(const T* wanted) {
  static_assert(offsetof(T, size) == 0);
  return wanted == nullptr ? -EINVAL : detail::check_struct_size(wanted->size);
}

// Fills in a caller's struct, that has passed check_struct(). Its size stays.
template <class T>
void write_struct(const T& known, T* wanted) {
  std::size_t size = wanted->size;
  auto* bytes = reinterpret_cast<unsigned char*>(wanted);
  if (size > sizeof(T)) std::memset(bytes + sizeof(T), 0, size - sizeof(T));
  std::memcpy(bytes, &known, size < sizeof(T) ? size : sizeof(T));
  wanted->size = size;
}

}  // namespace rdmalloc
