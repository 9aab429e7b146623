// What the tests of RDMALLOC_FOREIGN=watch share: foreign memory where the kernel puts nothing by
// itself. Where userfaultfd is not to be had (a sandbox, an old kernel), they say so and skip.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "alloc/core/options.h"
#include "alloc/os/userfault.h"
#include "tests/support/kernel_has.h"
#include "tests/unit/regcache/fixture.h"

inline char* map_pages(std::size_t pages, void* at = nullptr, int extra_flags = 0) {
  void* base = mmap(at, pages * 4096, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | extra_flags, -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<char*>(base);
}

// Where the kernel puts nothing by itself, so that what is unmapped for a moment is no other's
// then. Memory for a program, as each sanitizer sees it.
#ifdef __SANITIZE_THREAD__
inline constexpr std::uintptr_t kQuiet = 0x6000000000;
#else
inline constexpr std::uintptr_t kQuiet = 0x200000000000;
#endif
inline char* map_quietly(std::size_t pages, std::uintptr_t at) {
  return map_pages(pages, reinterpret_cast<void*>(at), MAP_FIXED_NOREPLACE);
}

inline rdmalloc_watch_counters watching() {
  rdmalloc_watch_counters now = {};
  now.size = sizeof now;
  EXPECT_EQ(rdmalloc_watch_stats(&now), 0);
  return now;
}

inline std::size_t entries_of(const char* directory) {
  std::size_t count = 0;
  for ([[maybe_unused]] auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}

class Watching : public Regcache {
 protected:
  static constexpr std::size_t kPages = 64;

  void SetUp() override {
    Regcache::SetUp();
    set_mode("watch");
    if (int error = rdmalloc_test::userfaultfd_error())
      GTEST_SKIP() << "SKIP: no userfaultfd here: " << strerror(error);
    int fd = rdmalloc::os::userfault_open();
    ASSERT_GE(fd, 0);
    ::close(fd);
    map = map_quietly(kPages, kQuiet);
    ASSERT_NE(map, nullptr);
  }
  void TearDown() override {
    unsetenv("RDMALLOC_FOREIGN");
    set_mode("per-use");
    if (map != nullptr) munmap(map, kPages * kPage);
    Regcache::TearDown();
  }
  static void set_mode(const char* mode) {
    setenv("RDMALLOC_FOREIGN", mode, 1);
    rdmalloc::options_read();
  }
  char* page(std::size_t index) { return map + index * kPage; }

  // Gets and puts until it stays: right after a change a get may be for one use. No limit but the
  // test's: if it never stays, that is the failure.
  std::uint64_t keep(StubDomain& domain, const void* at, std::size_t length) {
    for (;;) {
      std::uint64_t generation = domain.touch(at, length);
      if (generation == 0 || domain.touch(at, length) == generation) return generation;
      std::this_thread::yield();
    }
  }
  // Waits until nothing of the range is registered any more.
  void wait_until_gone(void* at, std::size_t length) {
    while (fabric.touches(at, length)) std::this_thread::yield();
  }

  char* map = nullptr;
};
