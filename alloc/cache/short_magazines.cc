#include "alloc/cache/short_magazines.h"

#include "alloc/cache/depot.h"
#include "alloc/cache/loans.h"
#include "alloc/core/order_for_fork.h"

namespace rdmalloc {
namespace {

// One that no class works on.
void put_short(ThreadCache& cache, Magazine* piece) {
  piece->slots[0] = cache.free_short;
  cache.free_short = piece;
}

bool cut_sheet(ThreadCache& cache) {
  Magazine* sheet = depot_take_empty(cache.shard);
  if (sheet == nullptr) return false;
  cache.sheets[cache.sheet_count] = magazines.index_of(sheet);
  order_for_fork();
  cache.sheet_count += 1;
  add_held(cache, 0, sizeof(Magazine), own_part_of_sheet(cache));
  auto* line = reinterpret_cast<char*>(sheet + 1);
  for (std::uint32_t i = 0; i < kShortsOfSheet; ++i) {
    line -= sizeof(Magazine) / kShortsOfSheet;
    auto* piece = reinterpret_cast<Magazine*>(line);
    piece->bottom = nullptr;
    put_short(cache, piece);
  }
  return true;
}

Magazine* take_short(ThreadCache& cache) {
  if (cache.free_short == nullptr && !cut_sheet(cache)) return nullptr;
  Magazine* piece = cache.free_short;
  cache.free_short = static_cast<Magazine*>(piece->slots[0]);
  return piece;
}

}  // namespace

Magazine* take_of_length(ThreadCache& cache, Length length) {
  if (length == Length::kWhole) [[likely]]
    return depot_take_empty(cache.shard);
  return length == Length::kShort ? take_short(cache) : depot_take_pair();
}

void put_of_length(ThreadCache& cache, Magazine* magazine, Length length) {
  if (length == Length::kWhole) return depot_put_empty(cache.shard, magazine);
  length == Length::kShort ? put_short(cache, magazine) : depot_put_pair(magazine);
}

void return_sheets(ThreadCache& cache) {
  cache.free_short = nullptr;
  while (cache.sheet_count != 0) {
    cache.sheet_count -= 1;
    order_for_fork();
    subtract_held(cache, 0, sizeof(Magazine), own_part_of_sheet(cache));
    depot_put_empty(cache.shard, magazines.at(cache.sheets[cache.sheet_count]));
  }
}

}  // namespace rdmalloc
