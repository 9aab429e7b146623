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
template <class Record, class Places = InOrder<Record>>
class Pool {
 public:
  // A record as its last user left it, or zero. NULL when the kernel gives no memory.
  Record* take(PoolMemory& memory) {
    LockGuard guard(lock_);
    if (free_count_ > Places::resting) return take_free();
    if (!has_unused(memory) && !add_chunk(memory)) return free_count_ != 0 ? take_free() : nullptr;
    std::uintptr_t cursor = memory.next.load(std::memory_order_relaxed);
    memory.next.store(Places::after(cursor), std::memory_order_relaxed);
    return reinterpret_cast<Record*>(
        Places::record_at(cursor, memory.chunks.load(std::memory_order_relaxed)));
  }
  void give(Record* record) {
    LockGuard guard(lock_);
    bool is_last = Places::resting != 0 && free_count_ != 0;
    next_of(record) = is_last ? nullptr : free_;
    (is_last ? next_of(last_free_) : free_) = record;
    if (is_last || free_count_ == 0) last_free_ = record;
    ++free_count_;
  }
  // Makes sure that the next take() needs no kernel. False when that can't be.
  bool prepare(PoolMemory& memory) {
    LockGuard guard(lock_);
    return free_count_ > Places::resting || has_unused(memory) || add_chunk(memory);
  }

 private:
  static constexpr std::size_t kFirstChunkBytes = 65536;
  static constexpr std::uint32_t kMostDoublings = 8;  // 16 MiB, 131,072 registrations
  static_assert(kFirstChunkBytes % Places::kRunBytes == 0);

  static Record*& next_of(Record* record) { return Record::free_link(record); }

  Record* take_free() {
    Record* record = free_;
    free_ = next_of(record);
    --free_count_;
    return record;
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

  Lock lock_;
  Record* free_ = nullptr;
  Record* last_free_ = nullptr;
  std::size_t free_count_ = 0;
};

}  // namespace rdmalloc::regcache
