// SPDX-License-Identifier: BSD-3-Clause
//
// Which memory is private and anonymous, as /proc/self/maps says it: read by lines where the kernel
// is not asked for one mapping (before Linux 6.11), which a file that is not the kernel's shows on
// any. Seen to fail with shared memory and the names of files passed over, with a hole taken for
// memory, and with a line that ends where the buffer does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "alloc/os/userfault.h"

namespace {

using rdmalloc::os::is_private_anonymous;

// A file with these lines.
class Lines {
 public:
  explicit Lines(const std::string& lines) {
    std::string name = testing::TempDir() + "mappings-XXXXXX";
    fd_ = mkstemp(name.data());
    EXPECT_EQ(write(fd_, lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
    unlink(name.c_str());
  }
  ~Lines() { close(fd_); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// Behind a path of so many bytes, so that each part of the lines comes to lie at the buffer's end.
std::string lines_behind(size_t path_bytes) {
  return "1000-2000 r-xp 00000000 fe:01 77       /" + std::string(path_bytes, 'a') +
         "\n"
         "2000-3000 rw-p 00000000 00:00 0 \n"
         "3000-5000 ---p 0001f000 00:00 0        [heap]\n"
         "5000-6000 rw-s 00000000 00:01 4        /dev/zero (deleted)\n"
         "6000-7000 rw-p 00003000 fe:01 77       /lib/x.so\n"
         "7000-8000 rw-p 00000000 00:00 0 \n"
         "9000-a000 rw-p 00000000 00:00 0 \n"
         "b000-c000 rw-s 00000000 00:00 0 \n"
         "7ffc12345000-7ffc12367000 rw-p 00000000 00:00 0      [stack]\n"
         "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]\n";
}

TEST(Mappings, lines_tell_private_anonymous_memory) {
  struct Range {
    uintptr_t low, high;
    bool is_so;
  };
  constexpr Range kRanges[] = {
      {0x2000, 0x3000, true},  {0x2000, 0x5000, true},  {0x2800, 0x4800, true},
      {0x3000, 0x3001, true},  {0x1000, 0x2000, false}, {0x1fff, 0x3000, false},
      {0x4000, 0x6000, false}, {0x5000, 0x6000, false}, {0x6000, 0x7000, false},
      {0x7000, 0x8000, true},  {0x7000, 0x9000, false}, {0x7000, 0xa000, false},
      {0x8000, 0x9000, false}, {0x8800, 0xa000, false}, {0x9000, 0xa000, true},
      {0x9000, 0xa001, false}, {0xb000, 0xc000, false}, {0x7ffc12345000, 0x7ffc12367000, true},
      {0x500, 0x600, false},   {0x500, 0x2500, false},
  };
  for (size_t path_bytes = 1500; path_bytes < 2100; path_bytes++) {
    Lines lines(lines_behind(path_bytes));
    for (const Range& range : kRanges)
      ASSERT_EQ(is_private_anonymous(lines.fd(), range.low, range.high), range.is_so)
          << std::hex << range.low << '-' << range.high << ", a path of " << std::dec << path_bytes;
  }
}

TEST(Mappings, lines_tell_what_the_kernel_tells) {
  constexpr size_t kPage = 4096;
  auto* pages = static_cast<char*>(
      mmap(nullptr, 8 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + 2 * kPage, kPage, PROT_READ), 0);  // three mappings
  ASSERT_EQ(munmap(pages + 5 * kPage, kPage), 0);
  ASSERT_EQ(
      mmap(pages + 7 * kPage, kPage, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
      pages + 7 * kPage);
  int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::ostringstream copy;
  copy << std::ifstream("/proc/self/maps").rdbuf();
  Lines lines(copy.str());
  auto base = reinterpret_cast<uintptr_t>(pages);
  for (size_t low = 0; low < 8; low++)
    for (size_t high = low + 1; high <= 8; high++) {
      const bool is_so = high <= 5 || (low == 6 && high == 7);
      EXPECT_EQ(is_private_anonymous(maps, base + low * kPage, base + high * kPage), is_so)
          << low << '-' << high;
      EXPECT_EQ(is_private_anonymous(lines.fd(), base + low * kPage, base + high * kPage), is_so)
          << low << '-' << high << " by lines";
    }
  close(maps);
  munmap(pages, 8 * kPage);
}

}  // namespace
