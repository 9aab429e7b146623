#include "alloc/cache/short_magazines.h"

#include <cstring>

#include "alloc/cache/depot.h"
#include "alloc/cache/loans.h"
#include "alloc/core/order_for_fork.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

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

}  // namespace

Magazine* take_short(ThreadCache& cache) {
  if (cache.free_short == nullptr && !cut_sheet(cache)) return nullptr;
  Magazine* piece = cache.free_short;
  cache.free_short = static_cast<Magazine*>(piece->slots[0]);
  return piece;
}

void hand_over_short(ThreadCache& cache, unsigned size_class, Magazine* piece, bool is_taken_from) {
  Magazine* magazine = piece->count == 0 ? nullptr : depot_take_empty(cache.shard);
  if (magazine != nullptr) {
    magazine->count = piece->count;
    std::memcpy(magazine->slots, piece->slots, piece->count * sizeof(void*));
    depot_hand_over(cache.shard, size_class, magazine, is_taken_from);
  } else {
    slab_give_back(size_class, piece->slots, piece->count);
  }
  put_short(cache, piece);
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
