// SPDK's functions as the spdk registrar finds them, over a map that keeps SPDK's rules (read in
// lib/env_dpdk/memory.c of 24.09 and 26.05): regions begin and end at 2 MiB, never overlap, and are
// taken back as they were given.
#include "tests/unit/registrars/fake_spdk.h"

#include <errno.h>

#include <cstddef>
#include <map>
#include <mutex>

namespace {

constexpr std::uint64_t kUnit = 1 << 21;

struct Region {
  std::uint64_t length;
  bool is_translated;
};

struct Map {
  std::mutex mutex;
  FakeSpdk face = {kGood, 0, 1, 0, 0, 0, 0};
  std::map<std::uint64_t, Region> regions;

  bool shows(FakeSpdkTemper temper, std::uint64_t base, std::uint64_t length) const {
    return face.temper == temper && (face.refused_unit == 0 || (face.refused_unit >= base &&
                                                                face.refused_unit < base + length));
  }
  Region* region_of(std::uint64_t address) {
    auto next = regions.upper_bound(address);
    if (next == regions.begin()) return nullptr;
    auto& [base, region] = *--next;
    return address < base + region.length ? &region : nullptr;
  }
};

Map& map() {
  static Map one;
  return one;
}

}  // namespace

extern "C" {

// Empty, and in good temper.
FakeSpdk* fake_spdk() {
  map().regions.clear();
  map().face = {kGood, 0, 1, 0, 0, 0, 0};
  return &map().face;
}

int spdk_mem_register(void* addr, std::size_t length) {
  std::lock_guard<std::mutex> guard(map().mutex);
  auto base = reinterpret_cast<std::uint64_t>(addr);
  ++map().face.register_calls;
  if ((base | length) % kUnit != 0) return ++map().face.wrong_calls, -EINVAL;
  for (std::uint64_t unit = base; unit != base + length; unit += kUnit)
    if (map().region_of(unit) != nullptr) return -EBUSY;
  map().regions[base] = {length, true};
  ++map().face.registered;
  if (map().shows(kRefusesQuietly, base, length)) map().regions[base].is_translated = false;
  return map().shows(kRefusesAloud, base, length) ? -EFAULT : 0;
}

int spdk_mem_unregister(void* addr, std::size_t length) {
  std::lock_guard<std::mutex> guard(map().mutex);
  auto base = reinterpret_cast<std::uint64_t>(addr);
  ++map().face.unregister_calls;
  auto found = map().regions.find(base);
  if (found == map().regions.end() || found->second.length != length)
    return ++map().face.wrong_calls, -ERANGE;
  if (map().shows(kKeepsAloud, base, length)) return -EIO;
  if (map().shows(kKeepsQuietly, base, length)) return 0;
  map().regions.erase(found);
  --map().face.registered;
  return 0;
}

std::uint64_t spdk_vtophys(const void* addr, std::uint64_t* length) {
  std::lock_guard<std::mutex> guard(map().mutex);
  auto address = reinterpret_cast<std::uint64_t>(addr);
  if (!map().face.has_vtophys) return UINT64_MAX;
  if (address == reinterpret_cast<std::uint64_t>(&map())) return address;  // SPDK's own memory
  Region* region = map().region_of(address);
  if (region == nullptr || !region->is_translated) return UINT64_MAX;
  if (*length > kUnit - address % kUnit) *length = kUnit - address % kUnit;
  return address;
}

void* spdk_dma_malloc(std::size_t, std::size_t, std::uint64_t*) {
  return &map();
}
void spdk_dma_free(void*) {}

// A map of the program's: whether a region is there, translated to 7, or not, 5.
std::uint64_t spdk_mem_map_translate(const void*, std::uint64_t address, std::uint64_t*) {
  std::lock_guard<std::mutex> guard(map().mutex);
  Region* region = map().region_of(address);
  return region != nullptr && region->is_translated ? 7 : 5;
}

}  // extern "C"
