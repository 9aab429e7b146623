#include "alloc/pages/arena.h"

#include <errno.h>
#include <sys/auxv.h>

#include "alloc/core/options.h"
#include "alloc/core/order_for_fork.h"
#include "alloc/os/memory.h"
#include "alloc/os/os.h"
#include "alloc/os/rounding.h"
#include "alloc/os/sanitizers.h"

namespace rdmalloc {

constinit Arena arena;

namespace {

constexpr std::size_t kSmallestGrowthBytes = std::size_t{4} << 20;
constexpr std::size_t kLargestGrowthBytes = std::size_t{1} << 30;
// The sanitizers' shadow memory leaves few addresses to the program: where the kernel likes, and
// less.
constexpr bool kMayChooseBase = !os::kThreadSanitizer && !os::kAddressSanitizer;
constexpr std::size_t kDefaultExtent = std::size_t{1} << (kMayChooseBase ? 40 : 36);
constexpr std::size_t kSmallestExtent = std::size_t{16} << 20;

// One metadata array, reserved as long as the arena and made usable with it.
struct Table {
  std::size_t bytes;  // for each so many slices
  std::size_t slices;
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
  kHeapOfSegment,
  kHugeChunks,
#if RDMALLOC_CHECKED
  kInUse,
#endif
  kTables
};
constinit Table tables[kTables] = {
    {sizeof(std::uint8_t), 1, 0, 0},
    {sizeof(SliceIndex), 1, 0, 0},
    {sizeof(Span), 1, 0, 0},
    {sizeof(std::uint64_t) * kBitmapWords * kBitmapGroup, kBitmapGroup, 0, 0},
    {sizeof(std::uint8_t), 1, 0, 0},
    {sizeof(std::uint16_t), 1, 0, 0},
    {sizeof(std::uint16_t), 1, 0, 0},
    {sizeof(std::uint8_t), kSegmentSlices, 0, 0},
    {sizeof(std::atomic<ChunkMark>), kSlicesPerChunk, 0, 0},
#if RDMALLOC_CHECKED
    {sizeof(std::uint64_t) * kBitmapWords, 1, 0, 0},
#endif
};

std::size_t table_bytes(const Table& table, std::size_t slices) {
  return round_up((slices + table.slices - 1) / table.slices * table.bytes, arena.page_bytes);
}

std::size_t all_table_bytes(std::size_t slices) {
  std::size_t bytes = 0;
  for (const Table& table : tables) bytes += table_bytes(table, slices);
  return bytes;
}

// The arrays' windows: one behind the other, from `base` on, each for all slices of the extent.
void tables_place(std::uintptr_t base, std::size_t slices) {
  for (Table& table : tables) {
    table.base = base;
    table.committed_bytes = 0;
    base += table_bytes(table, slices);
  }
}

// Reserves exactly there. The arrays are sparse, and in the arena small pages are the rule: a huge
// page comes only where it is asked for, also under the kernel's setting `always`.
int reserve_small_at(std::uintptr_t base, std::size_t bytes) {
  int error = os::reserve_at(base, bytes);
  if (error == 0) os::advise_small(base, bytes);  // a wish
  return error;
}

// The arrays' parts for slices [from, to), but for the class map's, which is reserved whole. All of
// them or none.
int tables_reserve(std::size_t from, std::size_t to) {
  for (Table& table : tables) {
    if (&table == &tables[kClassMap]) continue;
    std::size_t begin = table_bytes(table, from), end = table_bytes(table, to);
    if (begin == end) continue;
    int error = reserve_small_at(table.base + begin, end - begin);
    if (error == 0) continue;
    for (Table* made = tables + kClassMap + 1; made != &table; ++made)
      os::unreserve(made->base + table_bytes(*made, from),
                    table_bytes(*made, to) - table_bytes(*made, from));
    return error;
  }
  return 0;
}
void tables_unreserve(std::size_t from, std::size_t to) {
  for (Table& table : tables) {
    std::size_t begin = table_bytes(table, from), end = table_bytes(table, to);
    if (&table != &tables[kClassMap] && begin != end)
      os::unreserve(table.base + begin, end - begin);
  }
}

// Programs of one shard, and without huge pages, need no system call.
constinit bool wants_segments = false;
constinit bool wants_huge_chunks = false;

int tables_commit(std::size_t slices) {
  for (Table& table : tables) {
    std::size_t wanted = table_bytes(table, slices);
    if (wanted <= table.committed_bytes) continue;
    if (&table == &tables[kHeapOfSegment] && !wants_segments) continue;
    if (&table == &tables[kHugeChunks] && !wants_huge_chunks) continue;
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

// What the arena is to be, in bytes.
struct Plan {
  std::size_t extent;    // addresses that it may have
  std::size_t reserved;  // of them, those to reserve now

  std::size_t slices() const { return extent / kSliceBytes; }
  bool is_whole() const { return reserved == extent; }
};

// All of it, arrays behind the arena, in one mapping: a start is as many system calls shorter.
int reserve_whole(const Plan& plan, std::uintptr_t* base) {
  std::size_t bytes = plan.extent + all_table_bytes(plan.slices());
  *base = preferred_base();
  if (!kMayChooseBase || os::reserve_at(*base, bytes) != 0) {
    std::uintptr_t got = 0;
    if (int error = os::reserve(0, bytes + kChunkBytes, &got)) return error;
    *base = round_up(got, kChunkBytes);
    if (*base != got) os::unreserve(got, *base - got);
    std::uintptr_t end = *base + bytes, got_end = got + bytes + kChunkBytes;
    if (got_end != end) os::unreserve(end, got_end - end);
  }
  os::advise_small(*base, bytes);  // as reserve_small_at()
  tables_place(*base + plan.extent, plan.slices());
  return 0;
}

// The first part of it and of the arrays, at addresses from which they can grow.
int reserve_parts(const Plan& plan, std::uintptr_t* base) {
  if (!kMayChooseBase) return -ENOMEM;
  *base = preferred_base();
  tables_place(*base + plan.extent, plan.slices());
  const Table& map = tables[kClassMap];
  if (int error = reserve_small_at(*base, plan.reserved)) return error;
  int error = reserve_small_at(map.base, table_bytes(map, plan.slices()));
  if (error == 0) {
    error = tables_reserve(0, plan.reserved / kSliceBytes);
    if (error == 0) return 0;
    os::unreserve(map.base, table_bytes(map, plan.slices()));
  }
  os::unreserve(*base, plan.reserved);
  return error;
}

void unreserve(const Plan& plan, std::uintptr_t base) {
  if (plan.is_whole()) {
    os::unreserve(base, plan.extent + all_table_bytes(plan.slices()));
    return;
  }
  tables_unreserve(0, plan.reserved / kSliceBytes);
  os::unreserve(tables[kClassMap].base, table_bytes(tables[kClassMap], plan.slices()));
  os::unreserve(base, plan.reserved);
}

Plan choose_plan() {
  std::size_t wanted = options().arena_bytes;
  if (wanted == 0) {
    wanted = kDefaultExtent;
    while (wanted / 4 < os::physical_memory_bytes() && wanted < (std::size_t{1} << 45)) wanted *= 2;
  }
  wanted = round_up(wanted, kChunkBytes);
  std::uint64_t left = os::address_space_left_bytes();
  arena.room_bytes = left < wanted ? round_up(left, kChunkBytes) : wanted;
  if (left / 2 >= wanted) return {wanted, wanted};
  // Short of address space: a quarter of what is left now, the rest when it is needed, for stacks
  // and libraries want some too. The program may raise the limit: up to sixteen times what is left
  // are within the extent, for which the class map, and tables that others index by slice, are
  // reserved whole.
  constexpr std::uint64_t kMostRaise = 16;
  std::uint64_t most = os::address_limit().most_bytes;
  if (most / kMostRaise > left) most = left * kMostRaise;
  if (most > wanted) most = wanted;
  return {round_up(most, kChunkBytes), round_up(arena.room_bytes / 4, kChunkBytes)};
}

}  // namespace

int arena_reserve() {
  arena.page_bytes = os::page_bytes();
  Plan plan = choose_plan();
  std::uintptr_t base = 0;
  while ((plan.is_whole() ? reserve_whole(plan, &base) : reserve_parts(plan, &base)) != 0) {
    // First all of a smaller one, anywhere, then less and less.
    if (plan.is_whole()) plan.reserved = round_up(plan.reserved / 2, kChunkBytes);
    plan.extent = plan.reserved;
    if (plan.extent < kSmallestExtent) return -ENOMEM;
  }
  arena.class_map = reinterpret_cast<std::atomic<std::uint8_t>*>(tables[kClassMap].base);
  arena.first = reinterpret_cast<std::atomic<SliceIndex>*>(tables[kFirst].base);
  arena.spans = reinterpret_cast<Span*>(tables[kSpans].base);
  arena.bitmaps = reinterpret_cast<std::atomic<std::uint64_t>*>(tables[kBitmaps].base);
  arena.page_events = reinterpret_cast<std::atomic<std::uint8_t>*>(tables[kPageEvents].base);
  arena.purged_pages = reinterpret_cast<std::atomic<std::uint16_t>*>(tables[kPurgedPages].base);
  arena.reused_pages = reinterpret_cast<std::atomic<std::uint16_t>*>(tables[kReusedPages].base);
  arena.heap_of_segment = reinterpret_cast<std::atomic<std::uint8_t>*>(tables[kHeapOfSegment].base);
#if RDMALLOC_CHECKED
  arena.in_use = reinterpret_cast<std::atomic<std::uint64_t>*>(tables[kInUse].base);
#endif
  arena.reserved = static_cast<SliceIndex>(plan.reserved / kSliceBytes);
  // The class map is read for any address in the extent, so all of it must be readable from the
  // start. Writable it becomes with the slices, as the other tables: 16 MiB of it for 1 TiB would
  // count against RLIMIT_DATA and, under strict overcommit, against what is promised.
  Table& map = tables[kClassMap];
  if (int error = os::make_readable(map.base, table_bytes(map, plan.slices()))) {
    unreserve(plan, base);
    return error;
  }
  arena.base = base;
  arena.published_extent.store(plan.extent, std::memory_order_release);
  return 0;
}

namespace {

// So many slices more of the arena and of its arrays, or none.
int reserve_more(std::size_t slices) {
  std::uintptr_t from = arena.address_of(arena.reserved);
  if (int error = reserve_small_at(from, slices << kSliceShift)) return error;
  if (int error = tables_reserve(arena.reserved, arena.reserved + slices)) {
    os::unreserve(from, slices << kSliceShift);
    return error;
  }
  arena.reserved += static_cast<SliceIndex>(slices);
  return 0;
}

int reservation_grow(SliceIndex wanted) {
  std::size_t extent_slices = arena.extent() / kSliceBytes;
  if (wanted > extent_slices) return -ENOMEM;
  std::size_t step = arena.reserved / 2;
  if (step < wanted - arena.reserved) step = wanted - arena.reserved;
  step = round_up(step, kSlicesPerChunk);
  if (step > extent_slices - arena.reserved) step = extent_slices - arena.reserved;
  if (reserve_more(step) == 0) return 0;
  return reserve_more(round_up(wanted - arena.reserved, kSlicesPerChunk)) == 0 ? 0 : -ENOMEM;
}

// Whether RLIMIT_AS allows so much. The kernel says it where more is reserved; what was reserved
// before the program lowered the limit, past us (prlimit(2) from outside, a raw call), it counts no
// more.
bool is_within_limit(std::size_t bytes) {
  // Of small programs it is not asked at each step.
  constexpr std::size_t kAskedFromBytes = std::size_t{64} << 20;
  return bytes < kAskedFromBytes || bytes <= os::address_limit().bytes;
}

int commit_to(SliceIndex end) {
  if (!is_within_limit(std::size_t{end} << kSliceShift)) return -ENOMEM;
  if (int error = tables_commit(end)) return error;
  std::uintptr_t from = arena.address_of(arena.committed);
  std::size_t bytes = static_cast<std::size_t>(end - arena.committed) << kSliceShift;
  if (int error = os::commit(from, bytes)) return error;
  arena.committed = end;
  return 0;
}

// What lies from there on, never used, is not ours any more.
void unreserve_from(SliceIndex keep) {
  if (keep >= arena.reserved) return;
  SliceIndex end = arena.reserved;
  arena.reserved = keep;
  // Where the kernel refused a part of the arena its tables were there before.
  for (Table& table : tables) {
    std::size_t kept = table_bytes(table, keep);
    if (&table != &tables[kClassMap] && table.committed_bytes > kept) table.committed_bytes = kept;
  }
  order_for_fork();  // a child must not take for reserved what others may have mapped since
  os::unreserve(arena.address_of(keep), static_cast<std::size_t>(end - keep) << kSliceShift);
  tables_unreserve(keep, end);
}

// What lies from there on, never used, is usable no more. A child of fork must not take for usable
// what is not, so what says so comes first each time.
void revoke_from(SliceIndex keep) {
  SliceIndex end = arena.committed;
  arena.committed = keep;
  order_for_fork();
  if (keep < end)
    os::revoke(arena.address_of(keep), static_cast<std::size_t>(end - keep) << kSliceShift);
  for (Table& table : tables) {
    std::size_t kept = table_bytes(table, keep), had = table.committed_bytes;
    if (had <= kept) continue;
    table.committed_bytes = kept;
    order_for_fork();
    if (&table == &tables[kClassMap])
      os::make_readable(table.base + kept, had - kept);
    else
      os::revoke(table.base + kept, had - kept);
  }
}

}  // namespace

int arena_want_segments() {
  wants_segments = true;
  return tables_commit(arena.committed);
}

int arena_want_huge_chunks() {
  if (wants_huge_chunks) return 0;
  wants_huge_chunks = true;
  if (int error = tables_commit(arena.committed)) {
    wants_huge_chunks = false;
    return error;
  }
  arena.huge_chunks.store(reinterpret_cast<std::atomic<ChunkMark>*>(tables[kHugeChunks].base),
                          std::memory_order_release);
  return 0;
}

void arena_give_up_rest() {
  unreserve_from(static_cast<SliceIndex>(round_up(arena.committed, kSlicesPerChunk)));
}

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

bool arena_would_commit(SliceIndex wanted) {
  SliceIndex committed = arena.committed, reserved = arena.reserved;
  if (wanted <= committed) return true;
  bool would = arena_commit(wanted) == 0;
  revoke_from(committed);
  unreserve_from(reserved);
  return would;
}

}  // namespace rdmalloc
