#include "alloc/core/next_definition.h"

#include <dlfcn.h>

#include <cstdint>

// Where the file that this is linked into begins and ends in memory; the linker makes the names.
extern "C" {
// NOLINTBEGIN(readability-identifier-naming)
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));
// NOLINTEND(readability-identifier-naming)
}

namespace rdmalloc {

namespace {

bool is_own(const void* function) {
  auto at = reinterpret_cast<std::uintptr_t>(function);
  return at >= reinterpret_cast<std::uintptr_t>(__ehdr_start) &&
         at < reinterpret_cast<std::uintptr_t>(_end);
}

}  // namespace

// A library that stands in front of dlsym(), as those of VirtualGL and MangoHud do, calls libc's,
// which looks behind its caller: if that library is before this one, what is here comes first. The
// next dlsym() behind it is libc's own, which looks behind us.
void* next_definition(const char* name) {
  void* next = dlsym(RTLD_NEXT, name);
  if (!is_own(next)) return next;
  auto* find = reinterpret_cast<decltype(&dlsym)>(dlsym(RTLD_NEXT, "dlsym"));
  return find != nullptr ? find(RTLD_NEXT, name) : nullptr;
}

}  // namespace rdmalloc
