#include "regcache/core/loaded_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <string.h>

#include <atomic>
#include <cstddef>

#include "alloc/for_regcache.h"

namespace rdmalloc {

bool is_walk_safe() {
  fork_check();
  return !loader_may_be_locked.load(std::memory_order_relaxed);
}

namespace {

struct Search {
  const char* known_by;
  char path[PATH_MAX];  // "": the program itself
};

// 1: it is the one.
int compare_one(const char* path, const SymbolTables& tables, Search* search) {
  if (path == nullptr) path = "";
  if (strlen(path) >= sizeof search->path || tables.find(search->known_by) == nullptr) return 0;
  strcpy(search->path, path);
  return 1;
}

int compare(dl_phdr_info* info, std::size_t, void* arg) {
  return compare_one(info->dlpi_name, SymbolTables(*info), static_cast<Search*>(arg));
}

// In a child of fork a thread that only its parent has may hold the lock of dl_iterate_phdr() for
// ever: glibc's fork() makes dl_load_lock anew in the child, and not dl_load_write_lock, which this
// one is (fork.c of 2.24 to 2.42). So the child reads the loader's list without it. An object
// stands in the list only once it is mapped whole, so the list is sound at any moment of a dlopen()
// of the parent's.
bool find_in_child(Search* search) {
  if (os::should_fail(os::Site::kOpenLibrary)) return false;
  void* program = dlopen(nullptr, RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (program == nullptr || dlinfo(program, RTLD_DI_LINKMAP, &map) != 0) return false;
  for (; map != nullptr; map = map->l_next)
    if (compare_one(map->l_name, SymbolTables(*map), search) != 0) return true;
  return false;
}

bool find(Search* search) {
  return is_walk_safe() ? dl_iterate_phdr(compare, search) != 0 : find_in_child(search);
}

// A handle of the library, which the caller closes; nullptr when it is not loaded. The walk only
// notes the path: opening inside it would nest the loader's locks.
void* handle_of(const char* known_by, int flags) {
  Search search;
  search.known_by = known_by;
  if (!find(&search) || os::should_fail(os::Site::kOpenLibrary)) return nullptr;
  return dlopen(search.path[0] != 0 ? search.path : nullptr, RTLD_LAZY | RTLD_NOLOAD | flags);
}

// libc's own: in the preloaded library our dlclose() stands in front, which comes back to here.
// Where librdmalloc stands behind libc there is no next one, and the first is libc's.
void close_handle(void* handle) {
  using Close = int (*)(void*);
  static constinit std::atomic<Close> found{nullptr};
  // Relaxed: every thread that looks finds the same function.
  Close close = found.load(std::memory_order_relaxed);
  if (close == nullptr) {
    void* next = next_definition("dlclose");
    close = reinterpret_cast<Close>(next != nullptr ? next : dlsym(RTLD_DEFAULT, "dlclose"));
    found.store(close, std::memory_order_relaxed);
  }
  if (close != nullptr) close(handle);
}

bool holds(const dl_phdr_info& info, const void* address) {
  auto at = reinterpret_cast<std::uintptr_t>(address) - info.dlpi_addr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info.dlpi_phdr[i];
    if (segment.p_type == PT_LOAD && at - segment.p_vaddr < segment.p_memsz) return true;
  }
  return false;
}

}  // namespace

HeldLibrary::HeldLibrary(const char* known_by)
    : handle_(known_by != nullptr ? handle_of(known_by, 0) : nullptr) {}

void* HeldLibrary::symbol(const char* symbol) const {
  if (handle_ == nullptr || os::should_fail(os::Site::kFindFunction)) return nullptr;
  return dlsym(handle_, symbol);
}

void HeldLibrary::release() {
  if (handle_ != nullptr) close_handle(handle_);
  handle_ = nullptr;
}

bool is_loaded(const char* known_by) {
  Search search;
  search.known_by = known_by;
  return find(&search);
}

bool keep_loaded(const char* known_by) {
  void* handle = handle_of(known_by, RTLD_NODELETE);
  if (handle != nullptr) close_handle(handle);
  return handle != nullptr;
}

Loads loads_so_far() {
  Loads loads = {};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* arg) {
        *static_cast<Loads*>(arg) = {info->dlpi_adds, info->dlpi_subs};
        return 1;
      },
      &loads);
  return loads;
}

bool lie_together(const void* one, const void* other) {
  const void* both[2] = {one, other};
  auto look = [](dl_phdr_info* info, std::size_t, void* arg) {
    auto** addresses = static_cast<const void**>(arg);
    if (!holds(*info, addresses[0])) return 0;
    return holds(*info, addresses[1]) ? 1 : 2;
  };
  return dl_iterate_phdr(look, both) == 1;
}

}  // namespace rdmalloc
