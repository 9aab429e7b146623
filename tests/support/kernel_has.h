// SPDX-License-Identifier: BSD-3-Clause
//
// What this kernel gives, asked of the kernel and not of rdmalloc: a test that skips where rdmalloc
// could not have it would skip where rdmalloc is wrong, too.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rdmalloc_test {

// 0, or why there is no ring with a table of buffers that is filled one by one (Linux 5.19).
inline int io_uring_error() {
  io_uring_params params = {};
  const long ring = syscall(SYS_io_uring_setup, 8, &params);
  if (ring < 0) return errno;
  io_uring_rsrc_register table = {};
  table.nr = 1;
  table.flags = IORING_RSRC_REGISTER_SPARSE;
  const long made =
      syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS2, &table, sizeof table);
  const int error = made < 0 ? errno : 0;
  close(static_cast<int>(ring));
  return error;
}

// 0, or why there are no events of memory that is watched (alloc/os/userfault.h).
inline int userfaultfd_error() {
  const long fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
  if (fd < 0) return errno;
  uffdio_api api = {};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP |
                 UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
  const int error = ioctl(static_cast<int>(fd), UFFDIO_API, &api) != 0 ? errno : 0;
  close(static_cast<int>(fd));
  return error;
}

// Whether memory of a test's own, which asks for it, gets huge pages of 2 MiB throughout.
inline bool gives_huge_pages(size_t bytes = size_t{16} << 20) {
  constexpr size_t kHuge = size_t{2} << 20, kPage = 4096;
  void* map =
      mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return false;
  char* base = static_cast<char*>(map);
  base += (kHuge - reinterpret_cast<uintptr_t>(base) % kHuge) % kHuge;
  madvise(base, bytes, MADV_HUGEPAGE);
  // One byte of each, and its neighbour 1 MiB away is there.
  bool are_there = true;
  for (size_t at = 0; at < bytes; at += kHuge) {
    base[at] = 1;
    unsigned char is_resident = 0;
    are_there &= mincore(base + at + kHuge / 2, kPage, &is_resident) == 0 && (is_resident & 1) != 0;
  }
  munmap(map, bytes + kHuge);
  return are_there;
}

}  // namespace rdmalloc_test
