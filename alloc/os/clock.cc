// The clocks, read from the kernel's own code in every process (the vDSO) and not by libc's
// function around it: that lies in a part of libc which small programs run nothing else of, and the
// kernel maps 64 KiB of a file at a page fault. Where there is no vDSO, as under valgrind, it is
// libc's.
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <time.h>

#include <atomic>
#include <cstring>

#include "alloc/os/os.h"

namespace rdmalloc::os {
namespace {

using ReadClock = int (*)(clockid_t, timespec*);

#if defined(__aarch64__)
constexpr char kName[] = "__kernel_clock_gettime";
#else
constexpr char kName[] = "__vdso_clock_gettime";
#endif

// nullptr: there is none, or it has no table that says how many symbols there are.
ReadClock find_in_vdso() {
  std::uintptr_t base = getauxval(AT_SYSINFO_EHDR);
  if (base == 0) return nullptr;
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(base);
  const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(base + header->e_phoff);
  std::uintptr_t offset = 0;  // of addresses to what the file says
  const ElfW(Dyn)* entry = nullptr;
  for (unsigned i = 0; i < header->e_phnum; ++i) {
    const ElfW(Phdr)& segment = segments[i];
    if (segment.p_type == PT_LOAD) offset = base + segment.p_offset - segment.p_vaddr;
    if (segment.p_type == PT_DYNAMIC)
      entry = reinterpret_cast<const ElfW(Dyn)*>(base + segment.p_offset);
  }
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const std::uint32_t* hash = nullptr;
  for (; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    std::uintptr_t there = offset + entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(there);
    if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(there);
    if (entry->d_tag == DT_HASH) hash = reinterpret_cast<const std::uint32_t*>(there);
  }
  if (symbols == nullptr || names == nullptr || hash == nullptr) return nullptr;
  for (std::uint32_t i = 0; i < hash[1]; ++i)
    if (symbols[i].st_shndx != SHN_UNDEF && std::strcmp(names + symbols[i].st_name, kName) == 0)
      return reinterpret_cast<ReadClock>(offset + symbols[i].st_value);
  return nullptr;
}

// Relaxed: whichever of the two a thread sees, it reads the clock.
constinit std::atomic<ReadClock> read_clock{clock_gettime};

timespec now_of(clockid_t clock) {
  timespec now = {};
  read_clock.load(std::memory_order_relaxed)(clock, &now);
  return now;
}

}  // namespace

void clock_learn() {
  if (ReadClock found = find_in_vdso()) read_clock.store(found, std::memory_order_relaxed);
}

std::int64_t monotonic_ns() {
  timespec now = now_of(CLOCK_MONOTONIC);
  return now.tv_sec * std::int64_t{1000000000} + now.tv_nsec;
}

std::int64_t coarse_ms() {
  timespec now = now_of(CLOCK_MONOTONIC_COARSE);
  return now.tv_sec * std::int64_t{1000} + now.tv_nsec / 1000000;
}

}  // namespace rdmalloc::os
