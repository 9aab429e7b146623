// In librdmalloc.so only: what a fabric library does to libc's text, it does from the constructors
// of libraries and from components that are loaded one after the other (MPI initialisation, where
// components are files of their own), and undoes when they are closed. Around these calls, and a
// while after, the purge thread keeps out of libc's madvise; what came or went is looked up anew.
//
// dlopen looks at its caller: its namespace, its DT_RUNPATH, and DT_RPATH of it and of the
// libraries that it was loaded for decide where a name without a slash is found. Where that can
// matter we leave by a jump, so that the real one sees the caller.
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include <atomic>
#include <utility>

#include "alloc/for_regcache.h"
#include "regcache/notifiers/notifiers.h"

namespace {

using Open = void* (*)(const char*, int);
using Close = int (*)(void*);

constinit std::atomic<Open> next_open{nullptr};
constinit std::atomic<Close> next_close{nullptr};

// Whether libraries found their own by DT_RPATH. The loader heeds none beside a DT_RUNPATH.
bool has_rpath(const ElfW(Dyn) * entry) {
  bool has = false;
  for (; entry->d_tag != DT_NULL; entry++) {
    if (entry->d_tag == DT_RUNPATH) return false;
    if (entry->d_tag == DT_RPATH) has = true;
  }
  return has;
}

// The program comes first, and is looked at in the end for every caller.
int look_for_rpath(dl_phdr_info* info, size_t, void* is_program) {
  if (std::exchange(*static_cast<bool*>(is_program), false)) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_DYNAMIC &&
        has_rpath(reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + segment.p_vaddr)))
      return 1;
  }
  return 0;
}

// Whether the caller may have been loaded for a library with a DT_RPATH; for which one, the loader
// keeps to itself.
bool may_inherit_rpath(const link_map* caller) {
  if (caller->l_prev == nullptr) return false;  // the program
  rdmalloc::fork_check();
  if (!rdmalloc::loader_may_be_locked.load(std::memory_order_relaxed)) {
    bool is_program = true;
    return dl_iterate_phdr(look_for_rpath, &is_program) != 0;
  }
  // A child of fork reads the list without the lock (core/loaded_library.cc says why it may).
  for (const link_map* map = caller; map != nullptr; map = map->l_next)
    if (map->l_ld != nullptr && has_rpath(map->l_ld)) return true;
  for (const link_map* map = caller; map->l_prev != nullptr; map = map->l_prev)
    if (map->l_ld != nullptr && has_rpath(map->l_ld)) return true;
  return false;
}

// Whether it makes no difference to dlopen(file) who calls it.
bool caller_does_not_matter(const char* file, const void* caller) {
  if (strchr(file, '$') != nullptr) return false;  // $ORIGIN is the caller's
  Dl_info info;
  link_map* map = nullptr;
  if (dladdr1(caller, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 ||
      map == nullptr)
    return false;
  Lmid_t space = 0;
  if (dlinfo(map, RTLD_DI_LMID, &space) != 0 || space != LM_ID_BASE) return false;
  if (strchr(file, '/') != nullptr) return true;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
    if (entry->d_tag == DT_RUNPATH || entry->d_tag == DT_RPATH) return false;
  return !may_inherit_rpath(map);
}

// Without RTLD_DEEPBIND. A library loaded with it takes libc's free() before ours, also for what
// libc's strdup() or getline() got from our malloc, and the process crashes.
int without_deep_bind(int mode) {
  if ((mode & RTLD_DEEPBIND) == 0) return mode;
  rdmalloc::deep_binds.fetch_add(1, std::memory_order_relaxed);
  return mode & ~RTLD_DEEPBIND;
}

// What is linked to the program is loaded by now. (Purges before notifiers_start() go by libc.)
__attribute__((constructor)) void begin_purging() {
  rdmalloc::notifiers_begin_purging();
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
// A call in tail position becomes a jump from -O2 on, and this file needs it to.
#if defined(__clang__)
#define LEAVE_BY_JUMP [[clang::musttail]]
#define NEEDS_JUMPS
#else
#define LEAVE_BY_JUMP
#define NEEDS_JUMPS __attribute__((optimize("O2")))
#endif

EXPORT NEEDS_JUMPS void* dlopen(const char* file, int mode) noexcept {
  Open open = rdmalloc::next_of(next_open, "dlopen");
  if (file == nullptr || (mode & RTLD_NOLOAD) != 0) LEAVE_BY_JUMP return open(file, mode);
  mode = without_deep_bind(mode);
  rdmalloc::notifiers_hold();
  if (!caller_does_not_matter(file, __builtin_return_address(0))) {
    // What is loaded is not looked at then, and may be a fabric's library.
    rdmalloc::page_heap_keep_places();
    LEAVE_BY_JUMP return open(file, mode);
  }
  void* handle = open(file, mode);
  rdmalloc::notifiers_hold();
  if (handle != nullptr) {
    rdmalloc::notifiers_rescan();
    rdmalloc::notifiers_begin_purging();
  }
  return handle;
}

EXPORT int dlclose(void* handle) noexcept {
  Close close = rdmalloc::next_of(next_close, "dlclose");
  rdmalloc::notifiers_hold();
  rdmalloc::notifiers_close_begin(rdmalloc::kTextWaitMs);
  int result = close(handle);
  rdmalloc::notifiers_hold();
  rdmalloc::notifiers_close_end();
  return result;
}

namespace {

// Before the notifiers' own start, which is an ordinary constructor.
__attribute__((constructor(101))) void say_which_dlclose() {
  rdmalloc::notifiers_set_dlclose(dlclose);
}

}  // namespace
