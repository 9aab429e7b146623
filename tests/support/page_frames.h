// Whether the kernel shows this process the frames of its pages, which takes CAP_SYS_ADMIN.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>

inline bool sees_page_frames() {
  volatile char here = 1;  // a page that is there
  std::uint64_t word = 0;
  auto page = reinterpret_cast<std::uintptr_t>(&here) / static_cast<std::uintptr_t>(getpagesize());
  int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  bool is_read = file >= 0 && pread(file, &word, sizeof word,
                                    static_cast<off_t>(page * sizeof word)) == sizeof word;
  if (file >= 0) close(file);
  constexpr std::uint64_t kFrame = (std::uint64_t{1} << 55) - 1;
  return is_read && (word & kFrame) != 0;
}
