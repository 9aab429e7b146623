// What a process holds that must not grow, and who says so.
#pragma once

#include <dirent.h>
#include <rdmalloc/rdmalloc.h>
#include <sched.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/process.h"

namespace faults {

using rdmalloc_test::status_kib;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;  // its runtime maps and unmaps as it likes, and dislikes forks
#else
constexpr bool kIsSanitized = false;
#endif

// ---- what is wrong ----

inline int mistakes = 0;
inline std::string where = "at the start";

__attribute__((format(printf, 2, 3))) inline bool require(bool holds, const char* format, ...) {
  if (holds) return true;
  va_list arguments;
  va_start(arguments, format);
  std::printf("%s: ", where.c_str());
  std::vprintf(format, arguments);
  std::printf("\n");
  va_end(arguments);
  std::fflush(stdout);
  ++mistakes;
  return false;
}

inline std::uint64_t counter(const char* name) {
  std::uint64_t value = 0;
  std::size_t size = sizeof value;
  rdmalloc_ctl(name, &value, &size, nullptr, 0);
  return value;
}

// Makes what is made when a thread is first seen on a processor, and kept: on each of them.
inline void visit_processors() {
  cpu_set_t all;
  if (!require(sched_getaffinity(0, sizeof all, &all) == 0, "sched_getaffinity")) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    std::thread([cpu] {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      require(sched_setaffinity(0, sizeof one, &one) == 0, "sched_setaffinity");
      rdmalloc_free(rdmalloc_malloc(64));
    }).join();
  }
}

// ---- what the process holds ----

inline std::size_t kept_foreign_bytes = 0;
inline std::size_t forgotten_kib = 0;

struct Held {
  int descriptors, threads;
  std::size_t pinned_kib, locked_kib;
  // Outside the arena, whose pages come and go. Not of a sanitizer's process.
  std::vector<std::string> mappings;
  std::size_t kept_foreign_bytes;  // of them: the program's own, which could not be disowned
  // What was quarantined until a quiesce, after which it hinders no checkpoint: locked pages.
  std::size_t forgotten_kib;
};

inline int entries_of(const char* path) {
  DIR* folder = opendir(path);
  int count = 0;
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

inline void count_mappings(Held* held) {
  std::uintptr_t arena = 0;
  std::size_t extent = 0;
  rdmalloc_arena_extent(&arena, &extent);
  std::FILE* file = std::fopen("/proc/self/maps", "r");
  char line[4352];
  while (std::fgets(line, sizeof line, file) != nullptr) {
    std::uintptr_t low = 0, high = 0;
    std::sscanf(line, "%lx-%lx", &low, &high);
    if ((low >= arena && low < arena + extent) || std::strstr(line, "[heap]") != nullptr ||
        std::strstr(line, "[stack]") != nullptr)
      continue;
    held->mappings.push_back(line);
  }
  std::fclose(file);
}

inline std::size_t mapped_bytes(const Held& held) {
  if (kIsSanitized) return 0;
  std::size_t bytes = -held.kept_foreign_bytes;
  for (const std::string& line : held.mappings) {
    std::uintptr_t low = 0, high = 0;
    std::sscanf(line.c_str(), "%lx-%lx", &low, &high);
    bytes += high - low;
  }
  return bytes;
}

// Whether foreign memory is watched, or was until it was given up.
inline bool has_userfault() {
  char path[32], name[64];
  for (int fd = 0; fd < 1024; ++fd) {
    std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length > 0 && std::string(name, static_cast<std::size_t>(length)).ends_with("userfaultfd]"))
      return true;
  }
  return false;
}

inline Held held() {
  Held now;
  now.descriptors = entries_of("/proc/self/fd");
  now.threads = rdmalloc_test::lasting_thread_count();
  now.pinned_kib = status_kib("VmPin");
  now.locked_kib = status_kib("VmLck");
  now.kept_foreign_bytes = kept_foreign_bytes;
  now.forgotten_kib = forgotten_kib;
  return now;
}

}  // namespace faults
