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

#include "alloc/core/lock.h"
#include "regcache/core/child_empty.h"

namespace rdmalloc::regcache {

// What survives a fork. Constant-initialised, one for each type.
struct PoolMemory {
  std::atomic<std::uintptr_t> next{0};
  std::atomic<std::uintptr_t> end{0};
  std::atomic<std::uint32_t> chunks{0};
};

template <class Record>
class Pool {
 public:
  // A record as its last user left it, or zero. NULL when the kernel gives no memory.
  Record* take(PoolMemory& memory) {
    LockGuard guard(lock_);
    if (free_ != nullptr) {
      Record* record = free_;
      free_ = next_of(record);
      return record;
    }
    if (!has_unused(memory) && !add_chunk(memory)) return nullptr;
    std::uintptr_t next = memory.next.load(std::memory_order_relaxed);
    memory.next.store(next + sizeof(Record), std::memory_order_relaxed);
    return reinterpret_cast<Record*>(next);
  }
  void give(Record* record) {
    LockGuard guard(lock_);
    next_of(record) = free_;
    free_ = record;
  }
  // Makes sure that the next take() needs no kernel. False when that can't be.
  bool prepare(PoolMemory& memory) {
    LockGuard guard(lock_);
    return free_ != nullptr || has_unused(memory) || add_chunk(memory);
  }

 private:
  static constexpr std::size_t kFirstChunkBytes = 65536;
  static constexpr std::uint32_t kMostDoublings = 8;  // 16 MiB, 131,072 registrations
  static_assert(kFirstChunkBytes % sizeof(Record) == 0);

  static Record*& next_of(Record* record) { return Record::free_link(record); }

  static bool has_unused(const PoolMemory& memory) {
    return memory.next.load(std::memory_order_relaxed) < memory.end.load(std::memory_order_relaxed);
  }
  bool add_chunk(PoolMemory& memory) {
    std::uint32_t chunks = memory.chunks.load(std::memory_order_relaxed);
    std::size_t length = kFirstChunkBytes << (chunks < kMostDoublings ? chunks : kMostDoublings);
    std::uintptr_t base = 0;
    if (map_child_empty_dense(length, &base) != 0) return false;
    memory.chunks.store(chunks + 1, std::memory_order_relaxed);
    // In this order, so that a child forked between two of them finds no unused memory, never wrong
    // memory. What is left of the chunk before is less than a record.
    memory.end.store(0, std::memory_order_release);
    memory.next.store(base, std::memory_order_release);
    memory.end.store(base + length, std::memory_order_release);
    return true;
  }

  Lock lock_;
  Record* free_ = nullptr;
};

}  // namespace rdmalloc::regcache
