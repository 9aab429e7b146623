// In librdmalloc.so only: a library that writes a jump into libc's text makes its page writable
// first, by mprotect. That is the moment to keep the purge thread out of there: it covers every
// occasion, the first domain of a program that is linked with libfabric and MPI initialisation as
// well as finalisation, and needs to know none of them by name.
#include <sys/mman.h>

#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/interpose/in_front_of.h"
#include "regcache/notifiers/notifiers.h"

namespace {

constexpr std::uintptr_t kLongestPatch = 16;

constinit std::atomic<int (*)(void*, size_t, int)> next_mprotect{nullptr};

RDMALLOC_FINDS(find) {
  rdmalloc::next_of(next_mprotect, "mprotect");
  rdmalloc::libc_madvise();
}

bool holds_madvise(const void* address, size_t length) {
  auto text = reinterpret_cast<std::uintptr_t>(rdmalloc::libc_madvise());
  auto base = reinterpret_cast<std::uintptr_t>(address);
  return base < text + kLongestPatch && text < base + length;
}

}  // namespace

RDMALLOC_IN_FRONT_OF(mprotect);
int rdmalloc_in_front_of_mprotect(void* address, size_t length, int protection) noexcept {
  constexpr int kAll = PROT_READ | PROT_WRITE;
  if ((protection & kAll) != kAll) rdmalloc::check_foreign_call("mprotect", address, length);
  auto* next = rdmalloc::next_of(next_mprotect, "mprotect");
  if (!holds_madvise(address, length)) return next(address, length, protection);
  bool begins = (protection & PROT_WRITE) != 0;
  if (begins) rdmalloc::notifiers_hold();
  int result = next(address, length, protection);
  if (!begins) rdmalloc::notifiers_note_patch();
  return result;
}
