// Memory of a measured program that the allocator under test has no hand in.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

namespace rdmalloc::bench {

// Objects that are all zero at first, whose pages are there from the start. Without memory the
// process ends: no row can come out of such a run. _Exit, since other threads may wait for this
// one.
template <typename T>
class Mapped {
 public:
  explicit Mapped(std::size_t count) : bytes_(count * sizeof(T)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
      std::fprintf(stderr, "no memory for a table of %zu bytes\n", bytes_);
      std::_Exit(1);
    }
    objects_ = static_cast<T*>(memory);
  }
  ~Mapped() { munmap(objects_, bytes_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  T& operator[](std::size_t number) { return objects_[number]; }
  T* begin() { return objects_; }
  T* end() { return objects_ + bytes_ / sizeof(T); }

 private:
  std::size_t bytes_;
  T* objects_;
};

}  // namespace rdmalloc::bench
