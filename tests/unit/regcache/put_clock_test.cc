// What puts are ordered by (put_clock.h). Each test was seen to fail; the comment at each says how.
#include "regcache/core/put_clock.h"

#include "regcache/core/domain.h"
#include "tests/unit/regcache/fixture.h"

namespace {

using rdmalloc::regcache::put_clock;
using rdmalloc::regcache::put_clock_step;
using PutClock = Regcache;

// How far apart registrations are that move the clock.
class PutClockStep {
 public:
  explicit PutClockStep(std::uint64_t ticks) { put_clock_step = ticks; }
  ~PutClockStep() { put_clock_step = before_; }
  PutClockStep(const PutClockStep&) = delete;
  PutClockStep& operator=(const PutClockStep&) = delete;

 private:
  std::uint64_t before_ = put_clock_step;
};

// Without a bound a put has the time of the latest registration, where that moved the clock. Fails
// when put_clock_advance() leaves the clock as it is, or when ask_twice() does not make it exact.
TEST_F(PutClock, puts_before_the_first_bound_have_their_registrations_order) {
  PutClockStep each(0);
  put_clock.store(1);
  StubDomain domain(fabric);
  fabric.capacity_bytes = 3 * kSlice;
  for (std::size_t i = 0; i < 3; ++i) domain.touch(span(10 + 2 * i, 1), 8);
  domain.touch(spans[0], 8);  // after the third was registered
  domain.touch(span(30, 1), 8);
  EXPECT_FALSE(fabric.touches(spans[1], 1)) << "put before the third was registered, and not since";
  EXPECT_TRUE(fabric.touches(spans[0], 1));
  // The registrar has refused once.
  for (std::size_t i : {3, 0, 2}) domain.touch(spans[i], 8);
  domain.touch(span(40, 1), 8);
  EXPECT_FALSE(fabric.touches(spans[3], 1));
  domain.touch(span(50, 1), 8);
  EXPECT_FALSE(fabric.touches(spans[0], 1));
  EXPECT_TRUE(fabric.touches(spans[2], 1));
}

// One that comes soon after leaves it, so that misses of all threads do not write one line. Its own
// stamp is no later than that of a put, or its place in the order were wrong for ever. Fails when
// each moves the clock, and when what is made has the time that it was made at.
TEST_F(PutClock, a_registration_soon_after_another_leaves_it) {
  PutClockStep long_one(std::uint64_t{1} << 60);
  std::uint64_t now = rdmalloc::regcache::ticks();
  put_clock.store(now);
  StubDomain domain(fabric);
  for (bool by_key : {false, true}) {
    char* block = span(10 + 2 * spans.size(), 1);
    rdmalloc_key key;
    if (by_key) {
      EXPECT_EQ(rdmalloc_reg_key(domain.handle, block, 8, RDMALLOC_ACCESS_LOCAL, &key), 0);
    }
    rdmalloc_reg* reg = domain.get(block, 8);
    ASSERT_NE(reg, nullptr);
    EXPECT_EQ(rdmalloc::regcache::registration_of(reg)->stamp.load(), now);
    rdmalloc_reg_put(reg);
    EXPECT_EQ(rdmalloc::regcache::registration_of(reg)->stamp.load(), now);
    EXPECT_EQ(put_clock.load(), now);
  }
  put_clock_step = 0;
  EXPECT_NE(domain.touch(span(30, 1), 8), 0u);
  EXPECT_GT(put_clock.load(), now);
}

rdmalloc_domain_attr limit(std::uint64_t count, std::uint64_t bytes) {
  rdmalloc_domain_attr attr = {};
  attr.max_count = count;
  attr.max_bytes = bytes;
  return attr;
}

// Fails when settle() in domain.cc does not look at one of the limits, or reserve_room() at the
// registrar's.
TEST_F(PutClock, each_bound_makes_the_order_exact) {
  struct Way {
    rdmalloc_domain_attr attr;
    std::uint64_t registrars_count;
    bool is_exact_at_once;
  };
  std::size_t at = 10;
  for (const Way& way : {Way{{}, 0, false}, Way{limit(100, 0), 0, true},
                         Way{limit(0, 100 * kSlice), 0, true}, Way{{}, 4, false}}) {
    put_clock.store(1);
    fabric.ops.max_count = way.registrars_count;
    StubDomain domain(fabric, way.attr);
    EXPECT_EQ(put_clock.load() == 0, way.is_exact_at_once);
    if (way.is_exact_at_once) continue;
    for (std::size_t i = 0; i < 4; ++i, at += 2) {
      domain.touch(span(at, 1), 8);
      EXPECT_EQ(put_clock.load() == 0, way.registrars_count != 0 && i >= 2) << i;
    }
  }
}

}  // namespace
