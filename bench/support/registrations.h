// How many registrations with verbs this process has made, where the tests' preload counts them.
#pragma once

#include <dlfcn.h>

#include <cstddef>

namespace rdmalloc::bench {

namespace detail {
inline long count_by(const char* function) {
  using Count = unsigned long (*)();
  auto count = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, function));
  return count != nullptr ? static_cast<long>(count()) : -1;
}
}  // namespace detail

// -1 where they are not counted.
inline long registrations_so_far() {
  return detail::count_by("rdmalloc_lab_registrations");
}

// Of them those that overlapped the memory that was watched at the time: a fabric library also
// registers pools of its own, when it likes.
inline long watched_registrations_so_far() {
  return detail::count_by("rdmalloc_lab_watched");
}
inline void watch_registrations(const void* memory, std::size_t bytes) {
  using Watch = void (*)(const void*, std::size_t);
  static const auto watch = reinterpret_cast<Watch>(dlsym(RTLD_DEFAULT, "rdmalloc_lab_watch"));
  if (watch != nullptr) watch(memory, bytes);
}

}  // namespace rdmalloc::bench
