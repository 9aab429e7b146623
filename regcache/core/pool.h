// Type-stable records: a record, once made, is memory for records of its type for ever. A reader
// that comes late finds a record, perhaps another's, and never an unmapped page.
//
// The chunks double in size, so a million records are a dozen mappings. The free list lies in
// memory that is empty in a fork child (state.h); the place where unused memory begins does not,
// and only moves on: a child never makes a record where the parent has one, so that a put of a
// registration the child inherited can't meet one of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/core/record_window.h"
#include "regcache/core/wiped_on_fork.h"

namespace rdmalloc::regcache {

// What survives a fork. Constant-initialised, one for each type.
struct PoolMemory {
  std::atomic<std::uintptr_t> next{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<std::uint32_t> chunks{0};
  RecordWindow window;  // of records with numbers
};

// One record after the other.
template <class Record>
struct InOrder {
  static constexpr bool kHaveNumbers = false;
  static constexpr std::size_t kShelves = 1;
  static inline constinit std::size_t resting = 0;
  static constexpr std::size_t kRunBytes = sizeof(Record);
  static std::uintptr_t after(std::uintptr_t cursor) { return cursor + sizeof(Record); }
  static std::uintptr_t record_at(std::uintptr_t cursor, std::uint32_t) { return cursor; }
};

// Records that were given back are used again latest first, while they are warm; or, where Places
// has a number of them that rest, earliest first, and only once more than that many lie there.
//
// Places says where in a chunk the records are, and whether chunks lie in a window, so that records
// have numbers. Each chunk is a number of runs, from one of which on they lie alike, and begins at
// a multiple of them (of a page at most without numbers): after() moves the cursor, which begins
// where the chunk does, by one record and past the chunk's end with its last; record_at() is the
// record for it, in the n-th chunk of all.
//
// With Places::kShelves above 1 a record goes back to a shelf of the thread that gives it, so that
// threads which take and give meet neither at a lock nor at each other's records. Each shelf rests
// its own, so a record rests at least as long as with one. What a shelf has beyond twice that (its
// thread ends what others made) goes to the last one, which all take from before new memory. New
// memory comes to a shelf in batches.
template <class Record, class Places = InOrder<Record>>
class Pool {
 public:
  // A record as its last user left it, or zero. NULL when the kernel gives no memory.
  Record* take(PoolMemory& memory) {
    // The last shelf's were given back first, and have rested. Mostly it is empty.
    if (kHasLast && last().has_any())
      if (Record* record = last().take(0)) return record;
    Shelf& here = shelf_here();
    if (Record* record = here.take(Places::resting)) return record;
    if (Record* record = take_unused(memory, here)) return record;
    // Memory is short: what others have not used, then one that has not rested.
    for (Shelf& shelf : shelves_) {
      LockGuard guard(shelf.lock);
      if (shelf.unused.has_any()) return shelf.unused.take();
    }
    for (Shelf& shelf : shelves_)
      if (Record* record = shelf.take(0)) return record;
    return nullptr;
  }
  void give(Record* record) {
    Shelf& shelf = shelf_here();
    shelf.give(record);
    if (!kHasLast || !shelf.is_over(2 * Places::resting)) return;
    if (Record* spare = shelf.take(2 * Places::resting)) last().give(spare);
  }
  // Makes sure that the next take() needs no kernel. False when that can't be.
  bool prepare(PoolMemory& memory) {
    Shelf& here = shelf_here();
    LockGuard here_guard(here.lock);
    if (here.unused.has_any()) return true;
    LockGuard guard(lock_);
    return here.is_over(Places::resting) || has_unused(memory) || add_chunk(memory);
  }

 private:
  static constexpr std::size_t kFirstChunkBytes = 65536;
  static constexpr std::uint32_t kMostDoublings = 8;  // 16 MiB, 131,072 registrations
  static_assert(kFirstChunkBytes % Places::kRunBytes == 0);
  static constexpr bool kHasLast = Places::kShelves > 1;

  // Records of new memory that a shelf takes at once: a page's.
  static constexpr unsigned kBatch = kHasLast ? 64 : 1;

  static Record*& next_of(Record* record) { return Record::free_link(record); }

  // A part of a chunk that no record was taken from yet.
  struct Unused {
    std::uintptr_t next = 0, end = 0;
    std::uint32_t chunks = 0;  // the chunk's number

    bool has_any() const { return next < end; }
    Record* take() {
      std::uintptr_t cursor = next;
      next = Places::after(cursor);
      return reinterpret_cast<Record*>(Places::record_at(cursor, chunks));
    }
  };

  // A list of free records, in lines of its own. Under its lock only that of new memory is taken.
  struct alignas(64) Shelf {
    Lock lock;
    Unused unused;
    Record* first = nullptr;
    Record* last = nullptr;
    std::atomic<std::size_t> count{0};  // written under the lock

    // NULL where no more than `left` are there.
    Record* take(std::size_t left) {
      LockGuard guard(lock);
      std::size_t before = count.load(std::memory_order_relaxed);
      if (before <= left) return nullptr;
      Record* record = first;
      first = next_of(record);
      count.store(before - 1, std::memory_order_relaxed);
      return record;
    }
    void give(Record* record) {
      LockGuard guard(lock);
      std::size_t before = count.load(std::memory_order_relaxed);
      bool is_last = Places::resting != 0 && before != 0;
      next_of(record) = is_last ? nullptr : first;
      (is_last ? next_of(last) : first) = record;
      if (is_last || before == 0) last = record;
      count.store(before + 1, std::memory_order_relaxed);
    }
    // Hints.
    bool is_over(std::size_t number) const {
      return count.load(std::memory_order_relaxed) > number;
    }
    bool has_any() const { return is_over(0); }
  };

  Shelf& shelf_here() { return shelves_[kHasLast ? thread_id() % Places::kShelves : 0]; }
  Shelf& last() { return shelves_[kCount - 1]; }

  Record* take_unused(PoolMemory& memory, Shelf& here) {
    LockGuard guard(here.lock);
    if (!here.unused.has_any()) here.unused = take_batch(memory);
    return here.unused.has_any() ? here.unused.take() : nullptr;
  }

  // Empty where the kernel gives no memory.
  Unused take_batch(PoolMemory& memory) {
    LockGuard guard(lock_);
    if (!has_unused(memory) && !add_chunk(memory)) return {};
    std::uintptr_t first = memory.next.load(std::memory_order_relaxed), next = first;
    std::uintptr_t end = memory.end.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < kBatch && next < end; ++i) next = Places::after(next);
    memory.next.store(next, std::memory_order_relaxed);
    return {first, next, memory.chunks.load(std::memory_order_relaxed)};
  }

  static bool has_unused(const PoolMemory& memory) {
    return memory.next.load(std::memory_order_relaxed) < memory.end.load(std::memory_order_relaxed);
  }
  bool add_chunk(PoolMemory& memory) {
    std::uint32_t chunks = memory.chunks.load(std::memory_order_relaxed);
    std::size_t length = kFirstChunkBytes << (chunks < kMostDoublings ? chunks : kMostDoublings);
    std::uintptr_t base = 0;
    if constexpr (Places::kHaveNumbers) {
      if (!memory.window.take(&length, &base)) return false;
    } else if (map_wiped_on_fork(length, &base) != 0) {
      return false;
    }
    memory.chunks.store(chunks + 1, std::memory_order_relaxed);
    // In this order, so that a child forked between two of them finds no unused memory, never wrong
    // memory. Of the chunk before nothing is left.
    memory.end.store(0, std::memory_order_release);
    memory.next.store(base, std::memory_order_release);
    memory.end.store(base + length, std::memory_order_release);
    return true;
  }

  static constexpr std::size_t kCount = kHasLast ? Places::kShelves + 1 : 1;

  Lock lock_;  // of new memory
  Shelf shelves_[kCount];
};

}  // namespace rdmalloc::regcache
