#include "alloc/pages/arena.h"

#include <errno.h>
#include <sys/auxv.h>

#include "alloc/api/options.h"
#include "alloc/os/memory.h"
#include "alloc/os/os.h"

namespace rdmalloc {

constinit Arena arena;

namespace {

constexpr std::size_t kSmallestGrowthBytes = std::size_t{4} << 20;
constexpr std::size_t kLargestGrowthBytes = std::size_t{1} << 30;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define RDMALLOC_SHADOWED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define RDMALLOC_SHADOWED 1
#endif
#endif
#if RDMALLOC_SHADOWED
// The sanitizers' shadow memory leaves few addresses to the program: where the kernel likes, and
// less.
constexpr bool kMayChooseBase = false;
constexpr std::size_t kDefaultExtent = std::size_t{1} << 36;
#else
constexpr bool kMayChooseBase = true;
constexpr std::size_t kDefaultExtent = std::size_t{1} << 40;
#endif
constexpr std::size_t kSmallestExtent = std::size_t{16} << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// One metadata array, reserved as long as the arena and made usable with it.
struct Table {
  std::size_t bytes_per_slice;
  std::uintptr_t base;
  std::size_t committed_bytes;
};
enum {
  kClassMap,
  kFirst,
  kSpans,
  kBitmaps,
  kPageEvents,
  kPurgedPages,
  kReusedPages,
#if RDMALLOC_CHECKED
  kInUse,
#endif
  kTables
};
constinit Table tables[kTables] = {
    {sizeof(std::uint8_t), 0, 0},
    {sizeof(SliceIndex), 0, 0},
    {sizeof(Span), 0, 0},
    {sizeof(std::uint64_t) * kBitmapWords, 0, 0},
    {sizeof(std::uint8_t), 0, 0},
    {sizeof(std::uint16_t), 0, 0},
    {sizeof(std::uint16_t), 0, 0},
#if RDMALLOC_CHECKED
    {sizeof(std::uint64_t) * kBitmapWords, 0, 0},
#endif
};

std::size_t table_bytes(const Table& table, std::size_t slices) {
  return round_up(table.bytes_per_slice * slices, arena.page_bytes);
}

std::size_t all_table_bytes(std::size_t slices) {
  std::size_t bytes = 0;
  for (const Table& table : tables) bytes += table_bytes(table, slices);
  return bytes;
}

void tables_release(std::size_t slices) {
  os::unreserve(tables[0].base, all_table_bytes(slices));
  for (Table& table : tables) table.base = table.committed_bytes = 0;
}

// All in one range: a start is as many system calls shorter.
int tables_reserve(std::size_t slices) {
  std::uintptr_t base = 0;
  if (int error = os::reserve(0, all_table_bytes(slices), &base)) return error;
  // They are sparse: a huge page under the kernel's setting `always` would be for a few lines of
  // it.
  os::advise_small(base, all_table_bytes(slices));
  for (Table& table : tables) {
    table.base = base;
    table.committed_bytes = 0;
    base += table_bytes(table, slices);
  }
  return 0;
}

int tables_commit(std::size_t slices) {
  for (Table& table : tables) {
    std::size_t wanted = table_bytes(table, slices);
    if (wanted <= table.committed_bytes) continue;
    if (int error = os::commit(table.base + table.committed_bytes, wanted - table.committed_bytes))
      return error;
    table.committed_bytes = wanted;
  }
  return 0;
}

// Where to ask for the arena: low in a 47-bit address space, far below where the kernel puts
// libraries and stacks, so that a reservation that must grow finds the addresses above it free.
// Random to 2 MiB by the bits the kernel gave this process, as its own mappings are.
std::uintptr_t preferred_base() {
  std::uintptr_t random = 0;
  if (auto* bytes = reinterpret_cast<const unsigned char*>(getauxval(AT_RANDOM)))
    for (int i = 0; i < 4; ++i) random = random << 8 | bytes[i];
  return (std::uintptr_t{0x1000} << 32) + (random & 0x3ffff) * kChunkBytes;
}

// Reserves `bytes` (a multiple of a chunk), aligned to a chunk, near preferred_base() if possible.
int reserve_aligned(std::size_t bytes, std::uintptr_t* base) {
  std::uintptr_t hint = preferred_base();
  if (kMayChooseBase && os::reserve_at(hint, bytes) == 0) {
    *base = hint;
    return 0;
  }
  std::uintptr_t got = 0;
  if (int error = os::reserve(0, bytes + kChunkBytes, &got)) return error;
  *base = round_up(got, kChunkBytes);
  if (*base != got) os::unreserve(got, *base - got);
  std::uintptr_t end = *base + bytes, got_end = got + bytes + kChunkBytes;
  if (got_end != end) os::unreserve(end, got_end - end);
  return 0;
}

// How many addresses the arena may have, and how many of them to reserve now.
void choose_extent(std::size_t* extent, std::size_t* reserved) {
  std::size_t wanted = options().arena_bytes;
  if (wanted == 0) {
    wanted = kDefaultExtent;
    while (wanted / 4 < os::physical_memory_bytes() && wanted < (std::size_t{1} << 45)) wanted *= 2;
  }
  *extent = round_up(wanted, kChunkBytes);
  *reserved = *extent;
  std::uint64_t left = os::address_space_left_bytes();
  if (left / 2 >= wanted) return;
  // Short of address space: a window as wide as what is left, a quarter of it reserved now, the
  // rest when it is needed, for stacks and libraries want some too.
  if (*extent > left) *extent = round_up(left, kChunkBytes);
  *reserved = round_up(*extent / 4, kChunkBytes);
}

}  // namespace

int arena_reserve() {
  arena.page_bytes = os::page_bytes();
  std::size_t extent = 0, reserved = 0;
  choose_extent(&extent, &reserved);
  std::uintptr_t base = 0;
  for (;; extent /= 2, reserved /= 2) {
    if (extent < kSmallestExtent) return -ENOMEM;
    extent = round_up(extent, kChunkBytes);
    reserved = round_up(reserved, kChunkBytes);
    if (tables_reserve(extent / kSliceBytes) != 0) continue;
    if (reserve_aligned(reserved, &base) == 0) break;
    tables_release(extent / kSliceBytes);
  }
  arena.class_map = reinterpret_cast<std::atomic<std::uint8_t>*>(tables[kClassMap].base);
  arena.first = reinterpret_cast<std::atomic<SliceIndex>*>(tables[kFirst].base);
  arena.spans = reinterpret_cast<Span*>(tables[kSpans].base);
  arena.bitmaps = reinterpret_cast<std::atomic<std::uint64_t>*>(tables[kBitmaps].base);
  arena.page_events = reinterpret_cast<std::atomic<std::uint8_t>*>(tables[kPageEvents].base);
  arena.purged_pages = reinterpret_cast<std::atomic<std::uint16_t>*>(tables[kPurgedPages].base);
  arena.reused_pages = reinterpret_cast<std::atomic<std::uint16_t>*>(tables[kReusedPages].base);
#if RDMALLOC_CHECKED
  arena.in_use = reinterpret_cast<std::atomic<std::uint64_t>*>(tables[kInUse].base);
#endif
  arena.reserved = static_cast<SliceIndex>(reserved / kSliceBytes);
  // The class map is read for any address in the extent, so all of it must be readable from the
  // start. Writable it becomes with the slices, as the other tables: 16 MiB of it for 1 TiB would
  // count against RLIMIT_DATA and, under strict overcommit, against what is promised.
  Table& map = tables[kClassMap];
  if (int error = os::make_readable(map.base, table_bytes(map, extent / kSliceBytes))) {
    os::unreserve(base, reserved);
    tables_release(extent / kSliceBytes);
    return error;
  }
  // A wish, as for the tables.
  os::advise_small(base, reserved);
  arena.base = base;
  arena.published_extent.store(extent, std::memory_order_release);
  return 0;
}

namespace {

int reservation_grow(SliceIndex wanted) {
  std::size_t extent_slices = arena.extent() / kSliceBytes;
  if (wanted > extent_slices) return -ENOMEM;
  std::size_t step = arena.reserved / 2;
  if (step < wanted - arena.reserved) step = wanted - arena.reserved;
  step = round_up(step, kSlicesPerChunk);
  if (step > extent_slices - arena.reserved) step = extent_slices - arena.reserved;
  int error = os::reserve_at(arena.address_of(arena.reserved), step << kSliceShift);
  if (error != 0) {
    step = round_up(wanted - arena.reserved, kSlicesPerChunk);
    error = os::reserve_at(arena.address_of(arena.reserved), step << kSliceShift);
  }
  if (error == 0) {
    os::advise_small(arena.address_of(arena.reserved), step << kSliceShift);
    arena.reserved += static_cast<SliceIndex>(step);
  }
  return error == 0 ? 0 : -ENOMEM;
}

int commit_to(SliceIndex end) {
  if (int error = tables_commit(end)) return error;
  std::uintptr_t from = arena.address_of(arena.committed);
  std::size_t bytes = static_cast<std::size_t>(end - arena.committed) << kSliceShift;
  if (int error = os::commit(from, bytes)) return error;
  arena.committed = end;
  return 0;
}

}  // namespace

bool arena_may_be_huge() {
  return options().huge != HugeMode::kNever;
}

void arena_ask_for_huge(SliceIndex begin, SliceIndex end) {
  if (begin < end)
    os::advise_huge(arena.address_of(begin), static_cast<std::size_t>(end - begin) << kSliceShift);
}

int arena_commit(SliceIndex wanted) {
  if (wanted <= arena.committed) return 0;
  if (wanted > arena.reserved)
    if (int error = reservation_grow(wanted)) return error;
  std::size_t have = static_cast<std::size_t>(arena.committed) << kSliceShift;
  std::size_t step = have / 4;
  if (step < kSmallestGrowthBytes) step = kSmallestGrowthBytes;
  if (step > kLargestGrowthBytes) step = kLargestGrowthBytes;
  std::size_t end = have + step;
  std::size_t wanted_bytes = static_cast<std::size_t>(wanted) << kSliceShift;
  if (end < wanted_bytes) end = wanted_bytes;
  end = round_up(end, kChunkBytes);
  std::size_t most = static_cast<std::size_t>(arena.reserved) << kSliceShift;
  if (end > most) end = most;
  if (commit_to(static_cast<SliceIndex>(end >> kSliceShift)) == 0) return 0;
  // Strict overcommit may refuse a generous step and grant a small one.
  end = round_up(wanted_bytes, kChunkBytes);
  return commit_to(static_cast<SliceIndex>((end > most ? most : end) >> kSliceShift)) == 0
             ? 0
             : -ENOMEM;
}

}  // namespace rdmalloc
