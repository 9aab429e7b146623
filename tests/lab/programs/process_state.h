// SPDX-License-Identifier: BSD-3-Clause
//
// What a process holds, counted from outside its allocator: what must not grow from one
// MPI session to the next.
#ifndef RDMALLOC_TESTS_LAB_PROGRAMS_PROCESS_STATE_H
#define RDMALLOC_TESTS_LAB_PROGRAMS_PROCESS_STATE_H

#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <set>
#include <string>

namespace lab {

// Bytes of blocks that were not freed. mallinfo2() is glibc's, or that of a preload which has one:
// rdmalloc counts what lies in threads' magazines with them, 1.25 MiB a thread at most.
inline size_t live_bytes() {
  auto* info = reinterpret_cast<decltype(&mallinfo2)>(dlsym(RTLD_DEFAULT, "mallinfo2"));
  if (info == nullptr) abort();
  struct mallinfo2 counted = info();
  return counted.uordblks + counted.hblkhd;
}

inline long rss_kib() {
  FILE* file = fopen("/proc/self/statm", "r");
  long pages = 0;
  if (file == nullptr || fscanf(file, "%*d %ld", &pages) != 1) abort();
  fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

inline int entries_of(const char* path) {
  int count = 0;
  DIR* folder = opendir(path);
  if (folder == nullptr) abort();
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}
// But for one thread by which rdmalloc reads files, which is there while there is free memory to
// watch over: by chance after one session, and not after another.
inline int threads() {
  int count = 0, of_files = 0;
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) abort();
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    std::string path = std::string("/proc/self/task/") + entry->d_name + "/comm";
    char name[32] = {};
    FILE* file = fopen(path.c_str(), "r");
    if (file == nullptr) continue;  // it has ended
    bool has_name = fgets(name, sizeof name, file) != nullptr;
    if (has_name) ++(strcmp(name, "rdmalloc-files\n") == 0 ? of_files : count);
    fclose(file);
  }
  closedir(folder);
  return of_files > 1 ? count + of_files - 1 : count;
}
inline int open_files() {
  return entries_of("/proc/self/fd") - 1;  // the folder's own
}

struct Mappings {
  int count = 0;  // but for those of blocks
  // Of blocks, where rdmalloc tells: the kernel makes several of one where some pages may be huge
  // and some may not, which comes with time and not with sessions.
  int of_blocks = 0;
  size_t components = 0;  // files of Open MPI's that are loaded one by one: mca_*.so
};
inline Mappings mappings() {
  FILE* file = fopen("/proc/self/maps", "r");
  if (file == nullptr) abort();
  Mappings found;
  auto* owns = reinterpret_cast<bool (*)(const void*)>(dlsym(RTLD_DEFAULT, "rdmalloc_owns"));
  std::set<std::string> components;
  char line[4352];  // a path and the fields before it
  while (fgets(line, sizeof line, file) != nullptr) {
    auto* begin = reinterpret_cast<const void*>(strtoul(line, nullptr, 16));
    ++(owns != nullptr && owns(begin) ? found.of_blocks : found.count);
    if (const char* name = strstr(line, "/mca_")) components.insert(name);
  }
  fclose(file);
  found.components = components.size();
  return found;
}

}  // namespace lab

#endif
