// One registration: what a reader of the fast path sees, and the word that counts its holders.
//
// Records live in a pool that never gives memory back (pool.h), so a reader that has a pointer from
// a slot may always read `state`, which tells what the record has become. A reader may read nothing
// else of a record before acquire() succeeded, or, for the sticky table, before it knows that a
// block of its own in the range is alive (README.md, "Why no reader is late").
//
//   state   63      62 .. 26    25      24     23 .. 0
//           fold    hits        apart   open   refs
//
//   open, refs == 0    idle: may be found, evicted, purged
//   open, refs  > 0    in use: may be found; stays
//   closed, refs > 0   per-use, or invalidated while held: never found again, the last put drops it
//   closed, refs == 0  the thread that closed it drops it; a fork child sees zero too (I11)
//
// Apart: out of the LRU order while it is held, so that an eviction does not look at it. The put
// that leaves it idle lists it.
//
// The word also counts the hits: a hit writes it anyway, so statistics need no other cache line.
#pragma once

#include <rdmalloc/regcache.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc::regcache {

inline constexpr std::uint64_t kRefs = (std::uint64_t{1} << 24) - 1;
// Set from 2^23 holders on: acquire() refuses there, long before refs could run into the open bit.
inline constexpr std::uint64_t kTooManyRefs = std::uint64_t{1} << 23;
inline constexpr std::uint64_t kOpen = std::uint64_t{1} << 24;
inline constexpr std::uint64_t kApart = std::uint64_t{1} << 25;
inline constexpr int kHitShift = 26;
inline constexpr std::uint64_t kHit = std::uint64_t{1} << kHitShift;
// The hits' topmost bit: put() carries it over to the domain's counter.
inline constexpr std::uint64_t kFold = std::uint64_t{1} << 63;

enum class Kind : std::uint8_t {
  kCached,  // local access on owned or adopted memory: found again after its put
  kPerUse,  // other foreign memory (I6) and remote access (I13): ends at its put
  kHeap,    // a region of a registered heap: held by the heap until its end, found by every get
};

struct Registration;

// A word that is written under the domain's lock, and read by readers of foreign memory without it
// (find_foreign.h). Release: a reader that follows a link finds the record filled in.
template <class T>
class Shared {
 public:
  constexpr Shared() = default;
  Shared& operator=(T value) {
    value_.store(value, std::memory_order_release);
    return *this;
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  operator T() const { return value_.load(std::memory_order_acquire); }

 private:
  std::atomic<T> value_{};
};

struct RangeLinks {
  Shared<Registration*> left;
  Shared<Registration*> right;
};
struct StampLinks {
  Registration* left;
  Registration* right;
};

// What rdmalloc_reg_head.extent packs, so that a record's first line holds all that a hit touches.
struct Extent {
  std::uint64_t word;

  static constexpr std::size_t kMostLength = (std::size_t{1} << 48) - 1;
  static constexpr Extent of(std::size_t length, std::uint32_t domain_index, std::uint32_t access) {
    return {length << 16 | domain_index << 8 | (access & 0xff)};
  }
  constexpr std::size_t length() const { return word >> 16; }
  constexpr std::uint32_t domain_index() const { return static_cast<std::uint8_t>(word >> 8); }
  // With RDMALLOC_NO_REGISTER: a hit with "only look" passes the same test of rights as any other.
  constexpr std::uint32_t access() const {
    return RDMALLOC_NO_REGISTER | static_cast<std::uint8_t>(word);
  }
};
static_assert((RDMALLOC_ACCESS_LOCAL | RDMALLOC_ACCESS_REMOTE) < 0x100);

// A block that is a span of its own, by slices of the arena; {0, 0}: none.
struct BlockSlices {
  std::uint32_t first, end;
  bool operator==(const BlockSlices&) const = default;
};

// What is touched under the domain's lock only. It lies a page away from the Registration itself
// (RegistrationPlaces), so that the lines of which each hit touches one lie together.
struct alignas(64) RegistrationRest {
  std::uint64_t listed_stamp;  // its place in the domain's by_stamp, at most `stamp`
  RangeLinks by_range;
  Shared<std::uintptr_t> furthest_end;  // largest end of a range in its subtree of by_range
  // Outside the tree, by_stamp.left links lists: drops, in flight, free. Both link the ring of
  // those that are sticky.
  StampLinks by_stamp;
  std::uint32_t frames;  // the page-frame check's handle
  Kind kind;
  // In one byte, so written under the lock only, or by the only thread that has the record.
  bool is_sticky : 1;
  bool is_listed : 1;       // in by_stamp: cached, not sticky, not apart
  bool is_awaited : 1;      // an invalidation waits for its end
  bool is_quarantined : 1;  // its deregistration failed: kept for ever, so that no purge touches it
  bool is_stale : 1;        // invalidated while register_ ran: for its caller alone
  bool is_suspended : 1;    // closed by a quiesce, which holds one reference (core/drop.h)
  bool was_sticky : 1;      // when it was suspended
  // Read by holders without the lock too, so a byte of its own.
  bool is_watched;  // foreign, and cached because its pages are watched (watch.h)
  // Which block it was made for, or, where keys are noted (Domain::notes_keys()), of which it last
  // gave one. Another by now: realloc has changed it in place, or it was freed, and keys from
  // before are over.
  BlockSlices block;
};
static_assert(sizeof(RegistrationRest) == 64);

// All that a get and its put touch. A store to another line would hold up the next get, whose
// locked instruction waits for it.
struct alignas(64) Registration {
  rdmalloc_reg_head head;  // must be first: the inline fast path of regcache.h reads it
  std::atomic<std::uint64_t> state;
  std::atomic<std::uint64_t> stamp;  // of its registration, or the latest put (put_clock.h)

  // The other page of the two that hold the record.
  static constexpr std::uintptr_t kRestDistance = 4096;
  RegistrationRest& rest() { return *reinterpret_cast<RegistrationRest*>(rest_address()); }
  const RegistrationRest& rest() const {
    return *reinterpret_cast<const RegistrationRest*>(rest_address());
  }

  Extent extent() const { return {head.extent}; }
  std::uintptr_t base() const { return head.base; }
  std::size_t length() const { return extent().length(); }
  std::uintptr_t end() const { return base() + length(); }
  std::uint32_t access() const { return extent().access(); }
  std::uint32_t domain_index() const { return extent().domain_index(); }
  bool covers(std::uintptr_t low, std::uintptr_t high) const {
    return low >= head.base && high <= end();
  }
  Registration*& next() { return rest().by_stamp.left; }
  static Registration*& free_link(Registration* reg) { return reg->next(); }
  bool is_open() const { return (state.load(std::memory_order_relaxed) & kOpen) != 0; }
  std::uint64_t refs() const { return state.load(std::memory_order_relaxed) & kRefs; }

 private:
  std::uintptr_t rest_address() const {
    return reinterpret_cast<std::uintptr_t>(this) ^ kRestDistance;
  }
};
static_assert(sizeof(Registration) == 64, "with its rest two lines; 10^6 of them in 122 MiB");

// Where records lie (pool.h): 64 to two pages, of which each record has a line in the one, and its
// rest the line of that number in the other.
//
// The first records are spread: of two neighbours one begins in the first page, one in the second.
// So no two of them are in one pair of lines, which processors fetch together and pass around
// together, and threads that use different registrations leave each other alone. Of many records
// the lines of hits fill whole pages instead. Two threads rarely meet in a pair then, but what is
// touched at all is half as much for the TLB, and neighbours by pair are both of use.
struct RegistrationPlaces {
  static constexpr bool kHaveNumbers = true;  // which the slots of domains hold
  // For threads that miss at once. Of records that rest they keep 128 KiB each at most.
  static constexpr std::size_t kShelves = 16;
  // A put too many finds a record that has ended, and not another's in its place, until as many
  // have ended after it. Late readers of slots seldom meet another's, too.
  static inline constinit std::size_t resting = 1024;  // fewer in tests of that very meeting
  static constexpr std::size_t kRunBytes = 2 * Registration::kRestDistance;
  // Of the pool's first chunks, 960 KiB together: 7,680 records.
  static constexpr std::uint32_t kSpreadChunks = 4;

  // `cursor` is where unused memory begins: it stays in the first of a run's pages.
  static std::uintptr_t after(std::uintptr_t cursor) {
    std::uintptr_t next = cursor + sizeof(Registration);
    return next % Registration::kRestDistance == 0 ? next + Registration::kRestDistance : next;
  }
  static std::uintptr_t record_at(std::uintptr_t cursor, std::uint32_t chunks) {
    // Packed, the order of the two pages changes every 128 KiB: else all lines of hits had a zero
    // in bit 12 of their address, which is half of the sets of a second-level cache.
    bool is_second = chunks <= kSpreadChunks ? (cursor / sizeof(Registration)) % 2 != 0
                                             : (cursor >> 17) % 2 != 0;
    return is_second ? cursor ^ Registration::kRestDistance : cursor;
  }
};

// A key that readers may copy before they know that it is still what they asked for: of a record
// (rdmalloc_reg_key(), whose loads the release pairs with), or of a heap (heap_keys.cc, where a
// turn count says so).
inline void store_registrars_part(rdmalloc_key& to, const rdmalloc_key& from) {
  std::atomic_ref(to.lkey).store(from.lkey, std::memory_order_release);
  std::atomic_ref(to.rkey).store(from.rkey, std::memory_order_release);
  std::atomic_ref(to.handle).store(from.handle, std::memory_order_release);
}
inline void store_key(rdmalloc_key& to, const rdmalloc_key& from) {
  store_registrars_part(to, from);
  std::atomic_ref(to.generation).store(from.generation, std::memory_order_release);
}

// Takes one reference if the registration is open, and counts a hit by `change` = 1 + kHit.
inline bool acquire(Registration* reg, std::uint64_t change) {
  std::uint64_t seen = reg->state.load(std::memory_order_relaxed);
  do {
    if ((seen & (kOpen | kTooManyRefs)) != kOpen) return false;
    // Acquire: pairs with the release of open_with(), after which the head is written no more.
  } while (!reg->state.compare_exchange_weak(seen, seen + change, std::memory_order_acquire,
                                             std::memory_order_relaxed));
  return true;
}

// Closes an idle registration: from then on the caller alone may drop or reopen it. False while it
// is held or closed already. Under the domain's lock, like everything that opens or closes.
inline bool close_idle(Registration* reg) {
  std::uint64_t seen = reg->state.load(std::memory_order_relaxed);
  do {
    if ((seen & (kOpen | kRefs)) != kOpen) return false;
    // Acquire: pairs with the release in put(), so that the last holder is done with it.
  } while (!reg->state.compare_exchange_weak(seen, seen & ~(kOpen | kApart),
                                             std::memory_order_acq_rel, std::memory_order_relaxed));
  return true;
}

// The same for a heap's registration that only the heap holds. The loss of its device may have
// closed it before.
inline bool close_heaps(Registration* reg) {
  std::uint64_t seen = reg->state.load(std::memory_order_relaxed);
  do {
    if ((seen & kRefs) != 1) return false;
    // Acquire: as above.
  } while (!reg->state.compare_exchange_weak(seen, (seen & ~kOpen) - 1, std::memory_order_acq_rel,
                                             std::memory_order_relaxed));
  return true;
}

// Marks a registration that is held as apart. False while it is not held.
inline bool set_apart(Registration* reg) {
  std::uint64_t seen = reg->state.load(std::memory_order_relaxed);
  do {
    if ((seen & kRefs) == 0) return false;
    // Relaxed: the put that finds the mark takes the domain's lock.
  } while (!reg->state.compare_exchange_weak(seen, seen | kApart, std::memory_order_relaxed));
  return true;
}

// Makes a record that is filled in findable, with `refs` holders.
inline void open_with(Registration* reg, std::uint64_t refs) {
  reg->state.store(kOpen | refs, std::memory_order_release);
}

}  // namespace rdmalloc::regcache
