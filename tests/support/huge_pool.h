// SPDX-License-Identifier: BSD-3-Clause
//
// Huge pages of the kernel's pool for the length of a test, and what the kernel says of mappings.
// Tests that use it take the lock `huge_pages` of ctest; against other runs on the machine they
// hold a lock on the pool's file. A test that is killed leaves the pool as it was too: a process
// waits for its end, with the lock, and puts the number back (with_stacks.py lets it).
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace rdmalloc_test {

// One of /sys/kernel/mm/hugepages. Gives the pages back at its end.
class HugePool {
 public:
  explicit HugePool(size_t page_bytes)
      : directory_("/sys/kernel/mm/hugepages/hugepages-" + std::to_string(page_bytes / 1024) +
                   "kB/") {
    lock_ = open((directory_ + "nr_hugepages").c_str(), O_RDONLY | O_CLOEXEC);
    if (lock_ < 0) {
      why_not = "SKIP: this kernel has no huge pages of " + std::to_string(page_bytes) + " bytes";
      return;
    }
    flock(lock_, LOCK_EX);
    before_ = number("nr_hugepages");
  }
  ~HugePool() {
    if (guarded_ >= 0) {
      close(guarded_);
      waitpid(guard_, nullptr, 0);
    }
    if (lock_ >= 0) close(lock_);
  }
  HugePool(const HugePool&) = delete;
  HugePool& operator=(const HugePool&) = delete;

  // Has `pages` of them free. False, with `why_not` set, when the kernel does not give them.
  bool make_free(uint64_t pages) {
    if (lock_ < 0) return false;
    uint64_t used = number("nr_hugepages") - number("free_hugepages") + number("resv_hugepages");
    int error = guard();
    if (error == 0) error = write_pages(used + pages);
    if (error == 0 && free() == pages) return true;
    why_not = error != 0 ? "SKIP: huge pages can't be set aside here (not root?): " +
                               std::string(strerror(error))
                         : "SKIP: the kernel finds no memory in one piece for " +
                               std::to_string(pages) + " huge pages";
    return false;
  }
  // Free, and not reserved by any process.
  uint64_t free() const { return number("free_hugepages") - number("resv_hugepages"); }
  uint64_t pages() const { return number("nr_hugepages"); }

  std::string why_not;

 private:
  uint64_t number(const char* file) const {
    unsigned long value = 0;
    if (FILE* f = fopen((directory_ + file).c_str(), "re")) {
      if (fscanf(f, "%lu", &value) != 1) value = 0;
      fclose(f);
    }
    return value;
  }
  // Starts the process that puts the number back when this end of its pipe is closed: by the
  // destructor, or by the kernel. A program of its own: a child of fork would hold on to pages.
  int guard() {
    if (guarded_ >= 0) return 0;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return errno;
    std::string pages = std::to_string(before_), file = directory_ + "nr_hugepages";
    const char* words[] = {"sh",
                           "-c",
                           "read -r end; echo \"$1\" > \"$2\"",
                           "rdmalloc-restores",
                           pages.c_str(),
                           file.c_str(),
                           nullptr};
    char* environment[] = {nullptr};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, ends[0], 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, lock_, 9);  // without O_CLOEXEC: the lock is held
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);  // no signal from the terminal
    int error = posix_spawn(&guard_, "/bin/sh", &files, &attributes, const_cast<char**>(words),
                            environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    close(ends[0]);
    guarded_ = ends[1];
    if (error != 0) {
      close(guarded_);
      guarded_ = -1;
    }
    return error;
  }
  int write_pages(uint64_t pages) const {
    int file = ::open((directory_ + "nr_hugepages").c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) return errno;
    std::string text = std::to_string(pages);
    int error = write(file, text.data(), text.size()) < 0 ? errno : 0;
    ::close(file);
    return error;
  }

  std::string directory_;
  int lock_ = -1;
  int guarded_ = -1;
  pid_t guard_ = 0;
  uint64_t before_ = 0;
};

// A field of the mapping in /proc/self/smaps that the address lies in; empty: there is none.
inline std::string smaps_field(const void* address, const char* field) {
  FILE* smaps = fopen("/proc/self/smaps", "re");
  if (smaps == nullptr) return "";
  auto at = reinterpret_cast<unsigned long>(address);
  char line[512];
  bool is_here = false;
  std::string value;
  while (value.empty() && fgets(line, sizeof line, smaps) != nullptr) {
    unsigned long begin = 0, end = 0;
    if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
      is_here = at >= begin && at < end;
    else if (is_here && strncmp(line, field, strlen(field)) == 0 && line[strlen(field)] == ':')
      value = line + strlen(field) + 1;
  }
  fclose(smaps);
  return value;
}
// The same in KiB; -1: there is none.
inline long smaps_kib(const void* address, const char* field) {
  std::string value = smaps_field(address, field);
  return value.empty() ? -1 : strtol(value.c_str(), nullptr, 10);
}

}  // namespace rdmalloc_test
