// What puts are ordered by (put_clock.h). Each test was seen to fail; the comment at each says how.
#include "regcache/core/put_clock.h"

#include "regcache/core/domain.h"
#include "tests/unit/regcache/fixture.h"

namespace {

using rdmalloc::regcache::put_clock_runs;
using PutClock = Regcache;

// A put writes nothing before the first bound; from then on it comes after all that was not put
// since, which goes in the order of its registration. Fails when put() does not look at the clock,
// or when ask_twice() does not start it.
TEST_F(PutClock, puts_are_ordered_from_the_first_refusal_on) {
  put_clock_runs.store(false);
  StubDomain domain(fabric);
  fabric.capacity_bytes = 3 * kSlice;
  for (std::size_t i = 0; i < 3; ++i) domain.touch(span(10 + 2 * i, 1), 8);
  rdmalloc_reg* reg = domain.get(spans[1], 8);
  std::uint64_t made = rdmalloc::regcache::registration_of(reg)->stamp;
  rdmalloc_reg_put(reg);
  EXPECT_EQ(rdmalloc::regcache::registration_of(reg)->stamp, made);
  domain.touch(span(30, 1), 8);
  EXPECT_FALSE(fabric.touches(spans[0], 1)) << "registered first";
  // The registrar has refused once.
  for (std::size_t i : {3, 1, 2}) domain.touch(spans[i], 8);
  EXPECT_GT(rdmalloc::regcache::registration_of(reg)->stamp, made);
  domain.touch(span(40, 1), 8);
  EXPECT_FALSE(fabric.touches(spans[3], 1));
  domain.touch(span(50, 1), 8);
  EXPECT_FALSE(fabric.touches(spans[1], 1));
  EXPECT_TRUE(fabric.touches(spans[2], 1));
}

rdmalloc_domain_attr limit(std::uint64_t count, std::uint64_t bytes) {
  rdmalloc_domain_attr attr = {};
  attr.max_count = count;
  attr.max_bytes = bytes;
  return attr;
}

// Fails when set_defaults() in domain.cc does not look at one of the limits, or reserve_room() at
// the registrar's.
TEST_F(PutClock, each_bound_starts_the_clock) {
  struct Way {
    rdmalloc_domain_attr attr;
    std::uint64_t registrars_count;
    bool is_exact_at_once;
  };
  std::size_t at = 10;
  for (const Way& way : {Way{{}, 0, false}, Way{limit(100, 0), 0, true},
                         Way{limit(0, 100 * kSlice), 0, true}, Way{{}, 4, false}}) {
    put_clock_runs.store(false);
    fabric.ops.max_count = way.registrars_count;
    StubDomain domain(fabric, way.attr);
    EXPECT_EQ(put_clock_runs.load(), way.is_exact_at_once);
    if (way.is_exact_at_once) continue;
    for (std::size_t i = 0; i < 4; ++i, at += 2) {
      domain.touch(span(at, 1), 8);
      EXPECT_EQ(put_clock_runs.load(), way.registrars_count != 0 && i >= 2) << i;
    }
  }
}

}  // namespace
