// What a call of rdmalloc_reg_prefault() is to do, and whether there is room for it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "regcache/core/make.h"

namespace rdmalloc::regcache {

// One registration to be had.
struct Unit {
  Piece piece;
  Domain* domain;
  rdmalloc_reg* held;  // once it is had, until the call ends
};

struct PrefaultRequest {
  rdmalloc_domain* const* domains;
  std::size_t domain_count;
  const iovec* ranges;
  std::size_t range_count;
};

struct PrefaultPlan {
  std::uint64_t bytes;  // of the ranges' pages
  // Those of registrars that the calling thread alone may call come first. Behind them by rising
  // address, so that threads which take the next one work in different domains.
  Unit* units;
  std::size_t unit_count;
  std::size_t callers_count;
};

// The whole pages that hold a range.
struct PageRange {
  std::uintptr_t low, high;
};
PageRange pages_of(const iovec& range);

// Fills *plan, or refuses with a warning. Needs discard_plan() after success.
int plan_prefault(const PrefaultRequest& request, PrefaultPlan* plan);
void discard_plan(PrefaultPlan& plan);

}  // namespace rdmalloc::regcache
