// SPDK's memory map as a registrar.
//
// The map is by 2 MiB; a region is taken back as a whole, and one that overlaps another is refused.
// The cache's registrations, rounded to 2 MiB, do overlap: blocks are neighbours in one chunk. So
// each 2 MiB is a region of its own here, and counts the registrations over it, of all domains: the
// map is the process's.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rdmalloc/registrar_spdk.h>
#include <stdlib.h>

#include <cstddef>
#include <cstdint>

#include "alloc/core/sized_struct.h"
#include "regcache/registrars/fault.h"
#include "regcache/registrars/keep_errno.h"
#include "regcache/registrars/of_process.h"

namespace rdmalloc::registrars {
namespace {

constexpr std::size_t kUnit = std::size_t{1} << 21;
constexpr unsigned kAddressBits = 48;  // as far as SPDK's map goes
constexpr unsigned kUnitsShift = 13;   // of a table: 16 GiB
constexpr std::size_t kTables = std::size_t{1} << (kAddressBits - 21 - kUnitsShift);
constexpr std::uint64_t kNoPhysicalAddress = UINT64_MAX;  // SPDK_VTOPHYS_ERROR

struct Units {
  // Held over calls of SPDK, which holds one of its own there: a map's callback that came back to
  // us would hang in SPDK first.
  pthread_mutex_t lock;
  std::uint32_t* counts[kTables];  // registrations over each 2 MiB

  void release() {
    for (std::uint32_t* table : counts) free(table);
  }
};
using UnitsOfProcess = OfProcess<Units>;

struct Spdk {
  rdmalloc_spdk_attr calls;  // the functions, all found; vtophys only if it is to be asked
  Units* units;
};

// The count of the 2 MiB at `unit`; nullptr without memory for it.
std::uint32_t* count_of(Spdk& spdk, std::uintptr_t unit) {
  std::size_t number = unit / kUnit;
  std::uint32_t*& table = spdk.units->counts[number >> kUnitsShift];
  constexpr std::size_t kUnits = std::size_t{1} << kUnitsShift;
  if (table == nullptr) table = allocate<std::uint32_t>(kUnits);
  return table != nullptr ? &table[number % kUnits] : nullptr;
}

enum class State { kAbsent, kThere };

// Whether all that can be asked say so of the 2 MiB at `unit`.
bool is(State state, const Spdk& spdk, std::uintptr_t unit) {
  std::uint64_t length = kUnit;
  bool is_there = state == State::kThere;
  if (spdk.calls.vtophys != nullptr) {
    std::uint64_t found = spdk.calls.vtophys(reinterpret_cast<const void*>(unit), &length);
    if ((found != kNoPhysicalAddress) != is_there) return false;
  }
  if (spdk.calls.map == nullptr) return true;
  length = kUnit;
  std::uint64_t found = spdk.calls.mem_map_translate(spdk.calls.map, unit, &length);
  return (found != spdk.calls.untranslated) == is_there;
}

// What a map of SPDK's said. Never -ENODEV: one device of several must not end the domain.
int errno_of(int error) {
  return error < 0 && error != -ENODEV ? error : -EIO;
}

// One more registration over it. 0 or an error with nothing changed.
int take(Spdk& spdk, std::uintptr_t unit) {
  std::uint32_t* count = count_of(spdk, unit);
  if (count == nullptr) return -ENOMEM;
  // Another domain's: the program's map, which may be this domain's alone, has to have it too.
  if (*count != 0 && !is(State::kThere, spdk, unit)) return -ENOMEM;
  if (*count == 0) {
    void* addr = reinterpret_cast<void*>(unit);
    if (should_fail("spdk_register")) return -ENOMEM;
    int error = spdk.calls.mem_register(addr, kUnit);
    if (error == -EBUSY) return error;  // registered by another caller, and not ours to take back
    if (error == 0 && !is(State::kThere, spdk, unit)) error = -ENOMEM;
    if (error != 0) {
      // Before 25.09 a region that a map refused with an error is still marked as registered.
      if (!should_fail("spdk_unregister")) spdk.calls.mem_unregister(addr, kUnit);
      return errno_of(error);
    }
  }
  ++*count;
  return 0;
}

// One less. After an error it counts as registered, which for all we know it is.
int give_back(Spdk& spdk, std::uintptr_t unit) {
  std::uint32_t* count = count_of(spdk, unit);
  if (*count == 1) {
    int error = should_fail("spdk_unregister")
                    ? -EIO
                    : spdk.calls.mem_unregister(reinterpret_cast<void*>(unit), kUnit);
    if (error == 0 && !is(State::kAbsent, spdk, unit)) error = -EIO;
    if (error != 0) return errno_of(error);
  }
  --*count;
  return 0;
}

// Each of them, also after one that fails; the first error.
int give_back_all(Spdk& spdk, std::uintptr_t base, std::uintptr_t end) {
  int first = 0;
  for (std::uintptr_t unit = end; unit != base;) {
    unit -= kUnit;
    int error = give_back(spdk, unit);
    if (first == 0) first = error;
  }
  return first;
}

int spdk_register(void* context, void* addr, std::size_t length, std::uint32_t, rdmalloc_key*) {
  auto& spdk = *static_cast<Spdk*>(context);
  auto base = reinterpret_cast<std::uintptr_t>(addr), end = base + length;
  if ((base | end) % kUnit != 0 || (end - 1) >> kAddressBits != 0) return -EINVAL;
  pthread_mutex_lock(&spdk.units->lock);
  int error = 0;
  std::uintptr_t reached = base;
  while (reached != end && error == 0) {
    error = take(spdk, reached);
    if (error == 0) reached += kUnit;
  }
  if (error != 0 && give_back_all(spdk, base, reached) != 0) error = -ENOTRECOVERABLE;
  pthread_mutex_unlock(&spdk.units->lock);
  return error;
}

int spdk_deregister(void* context, void* addr, std::size_t length, const rdmalloc_key*) {
  auto& spdk = *static_cast<Spdk*>(context);
  auto base = reinterpret_cast<std::uintptr_t>(addr);
  pthread_mutex_lock(&spdk.units->lock);
  int error = give_back_all(spdk, base, base + length);
  pthread_mutex_unlock(&spdk.units->lock);
  return error;
}

void spdk_close(void* context) {
  auto* spdk = static_cast<Spdk*>(context);
  UnitsOfProcess::give(spdk->units);
  free(spdk);
}

template <class Function>
bool find(Function& function, const char* name) {
  if (function == nullptr && !should_fail("spdk_find"))
    function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

// Whether vtophys answers at all here: without PCI devices SPDK makes no such map, and "no
// translation" would mean nothing. SPDK's own memory is the witness.
bool knows_spdks_memory(const rdmalloc_spdk_attr& calls) {
  void* (*allocate)(std::size_t, std::size_t, std::uint64_t*) = nullptr;
  void (*release)(void*) = nullptr;
  if (!find(allocate, "spdk_dma_malloc") || !find(release, "spdk_dma_free")) return true;
  void* witness = allocate(4096, 0, nullptr);
  if (witness == nullptr) return true;
  std::uint64_t length = 4096;
  bool is_known = calls.vtophys(witness, &length) != kNoPhysicalAddress;
  release(witness);
  return is_known;
}

int find_functions(rdmalloc_spdk_attr& calls) {
  if (!find(calls.mem_register, "spdk_mem_register") ||
      !find(calls.mem_unregister, "spdk_mem_unregister"))
    return -ENOENT;
  if (calls.map != nullptr && !find(calls.mem_map_translate, "spdk_mem_map_translate"))
    return -ENOENT;
  bool is_given = calls.vtophys != nullptr;
  if (find(calls.vtophys, "spdk_vtophys") && !is_given && !knows_spdks_memory(calls))
    calls.vtophys = nullptr;
  return 0;
}

}  // namespace
}  // namespace rdmalloc::registrars

using namespace rdmalloc::registrars;

extern "C" RDMALLOC_API int rdmalloc_domain_open_spdk(const rdmalloc_spdk_attr* attr,
                                                      const rdmalloc_domain_attr* domain_attr,
                                                      rdmalloc_domain** domain) {
  KeepErrno keep;
  rdmalloc_spdk_attr known = {};
  if (int error = attr != nullptr ? rdmalloc::read_struct(attr, &known) : 0) return error;
  auto* spdk = allocate<Spdk>();
  if (spdk == nullptr) return -ENOMEM;
  spdk->calls = known;
  spdk->units = UnitsOfProcess::take();
  if (spdk->units == nullptr) {
    free(spdk);
    return -ENOMEM;
  }
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "spdk";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = spdk_register;
  ops.deregister = spdk_deregister;
  ops.close = spdk_close;
  ops.granularity = kUnit;
  int error = find_functions(spdk->calls);
  if (error == 0) error = rdmalloc_domain_open(&ops, spdk, domain_attr, domain);
  if (error != 0) spdk_close(spdk);
  return error;
}
