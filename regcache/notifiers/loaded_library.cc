#include "regcache/notifiers/loaded_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <string.h>

#include <atomic>
#include <cstddef>

#include "alloc/os/fault.h"

namespace rdmalloc {
namespace {

struct Search {
  const char* name;
  char path[PATH_MAX];
};

int compare(dl_phdr_info* info, std::size_t, void* arg) {
  auto* search = static_cast<Search*>(arg);
  if (info->dlpi_name == nullptr) return 0;
  const char* slash = strrchr(info->dlpi_name, '/');
  const char* file = slash == nullptr ? info->dlpi_name : slash + 1;
  if (strncmp(file, search->name, strlen(search->name)) != 0) return 0;
  if (strlen(info->dlpi_name) >= sizeof search->path) return 0;
  strcpy(search->path, info->dlpi_name);
  return 1;
}

// A handle of the library, which the caller closes; nullptr when it is not loaded. The walk only
// notes the path: opening inside it would nest the loader's locks.
void* handle_of(const char* name, int flags) {
  Search search;
  search.name = name;
  if (dl_iterate_phdr(compare, &search) == 0 || os::should_fail(os::Site::kOpenLibrary))
    return nullptr;
  return dlopen(search.path, RTLD_LAZY | RTLD_NOLOAD | flags);
}

// libc's own: in the preloaded library our dlclose() stands in front, which comes back to here.
void release(void* handle) {
  using Close = int (*)(void*);
  static constinit std::atomic<Close> found{nullptr};
  // Relaxed: every thread that looks finds the same function.
  Close close = found.load(std::memory_order_relaxed);
  if (close == nullptr) {
    close = reinterpret_cast<Close>(dlsym(RTLD_NEXT, "dlclose"));
    found.store(close, std::memory_order_relaxed);
  }
  close(handle);
}

}  // namespace

void* symbol_of_loaded(const char* name, const char* symbol) {
  void* handle = handle_of(name, 0);
  if (handle == nullptr) return nullptr;
  void* found = os::should_fail(os::Site::kFindFunction) ? nullptr : dlsym(handle, symbol);
  release(handle);
  return found;
}

bool is_loaded(const char* name) {
  Search search;
  search.name = name;
  return dl_iterate_phdr(compare, &search) != 0;
}

bool keep_loaded(const char* name) {
  void* handle = handle_of(name, RTLD_NODELETE);
  if (handle != nullptr) release(handle);
  return handle != nullptr;
}

}  // namespace rdmalloc
