// Type-stable metadata objects in one reserved range: what was once a T stays a T, so a lock-free
// reader that holds a stale index reads an old T, never something else. Objects are named by index;
// index 0 is never handed out. T has a member `std::atomic<std::uint32_t> next_free`.
//
// TaggedStack: a Treiber stack of such objects. Its head is one 64-bit word, so that it is
// consistent at every moment (also in the child of a fork):
//
//     63        40 39      28 27            0
//    |   tag 24   | count 12 |   index 28   |
//
// The tag is changed by each push and pop: a compare-and-swap with an old head fails although the
// same object is on top again (ABA). It wraps after 16 million exchanges between one thread's load
// and its compare-and-swap, which is a stall of a tenth of a second in the hottest loop there is.
#pragma once

#include <errno.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/core/lock.h"
#include "alloc/core/order_for_fork.h"
#include "alloc/os/os.h"

namespace rdmalloc {

template <typename T>
class TaggedStack {
 public:
  struct Head {
    std::uint32_t index;
    std::uint32_t count;
    std::uint32_t tag;
  };

  // Pushes object `index`, unless `most` are there already. Release: pairs with pop's acquire, so
  // that a popper sees what the pusher wrote into the object. seq_cst: see slab_note_change().
  bool push(T* objects, std::uint32_t index, std::uint32_t most = kMost) {
    std::uint64_t seen = head_.load(std::memory_order_relaxed);
    for (;;) {
      Head head = unpack(seen);
      if (head.count >= most) return false;
      objects[index].next_free.store(head.index, std::memory_order_relaxed);
      if (head_.compare_exchange_weak(seen, pack({index, head.count + 1, head.tag + 1}),
                                      std::memory_order_seq_cst, std::memory_order_relaxed))
        return true;
    }
  }
  // Pops an index; 0 when empty. The acquire on the load orders the read of next_free of an object
  // that another thread pushed.
  std::uint32_t pop(T* objects) {
    std::uint64_t seen = head_.load(std::memory_order_acquire);
    for (;;) {
      Head head = unpack(seen);
      if (head.index == 0) return 0;
      std::uint32_t next = objects[head.index].next_free.load(std::memory_order_relaxed);
      if (head_.compare_exchange_weak(seen, pack({next, head.count - 1, head.tag + 1}),
                                      std::memory_order_acquire, std::memory_order_acquire))
        return head.index;
    }
  }
  Head head() const { return unpack(head_.load(std::memory_order_relaxed)); }

  static constexpr std::uint32_t kMost = (1u << 12) - 1;

 private:
  static constexpr Head unpack(std::uint64_t word) {
    return {static_cast<std::uint32_t>(word & 0xfffffff),
            static_cast<std::uint32_t>(word >> 28 & 0xfff), static_cast<std::uint32_t>(word >> 40)};
  }
  static constexpr std::uint64_t pack(Head head) {
    return head.index | static_cast<std::uint64_t>(head.count) << 28 |
           static_cast<std::uint64_t>(head.tag & 0xffffff) << 40;
  }
  std::atomic<std::uint64_t> head_{0};
};

template <typename T>
class Pool {
 public:
  constexpr Pool() = default;

  // Reserves address space for `bytes` of objects; less when there is not that much. 0 or -ENOMEM.
  int reserve(std::size_t bytes) {
    for (; bytes >= kStepBytes; bytes /= 2) {
      bytes = bytes / kStepBytes * kStepBytes;
      std::uintptr_t base = 0;
      if (os::reserve(0, bytes, &base) != 0) continue;
      take_range(base, bytes);
      return 0;
    }
    return -ENOMEM;
  }
  // Of address space that is reserved already, in whole steps.
  void take_range(std::uintptr_t base, std::size_t bytes) {
    // Object 0 would lie before the range: a small program has its first object in the first page.
    objects_ = reinterpret_cast<T*>(base - sizeof(T));
    capacity_ = static_cast<std::uint32_t>(bytes / sizeof(T) + 1);
    order_for_fork();  // a child, where initialisation begins anew, goes by the last word
    reserved_bytes_ = bytes;
  }
  bool is_reserved() const { return reserved_bytes_ != 0; }

  // Gives up address space beyond `bytes` that no object has been cut from.
  void give_up_beyond(std::size_t bytes) {
    LockGuard guard(lock_);
    bytes = bytes / kStepBytes * kStepBytes;
    if (bytes < committed_bytes_) bytes = committed_bytes_;
    if (bytes >= reserved_bytes_) return;
    std::size_t given_up = reserved_bytes_ - bytes;
    reserved_bytes_ = bytes;
    capacity_ = static_cast<std::uint32_t>(bytes / sizeof(T) + 1);
    order_for_fork();  // a child must not take for reserved what others may have mapped since
    os::unreserve(base() + bytes, given_up);
  }

  // An object, zeroed the first time it is ever handed out; nullptr when all are in use.
  T* allocate() {
    if (T* object = pop_free()) return object;
    return allocate_new(1);
  }
  // `count` neighbours that were never handed out, or nullptr.
  T* allocate_new(std::uint32_t count) {
    LockGuard guard(lock_);
    // Relaxed: written under the lock; read elsewhere only for statistics.
    std::uint32_t index = used_.load(std::memory_order_relaxed);
    if (index + count > capacity_) return nullptr;
    std::size_t end = std::size_t{index + count - 1} * sizeof(T);
    if (end > committed_bytes_) {
      std::size_t step = (end - committed_bytes_ + kStepBytes - 1) / kStepBytes * kStepBytes;
      if (step > reserved_bytes_ - committed_bytes_) return nullptr;
      if (os::commit(base() + committed_bytes_, step) != 0) return nullptr;
      committed_bytes_ += step;
    }
    used_.store(index + count, std::memory_order_relaxed);
    return objects_ + index;
  }
  // The same of up to `*count` neighbours, where there are none to be had again; how many there
  // are.
  [[gnu::noinline]] T* allocate_some(std::uint32_t* count) {
    T* object = pop_free();
    if (object == nullptr) {
      object = allocate_new(*count);
      if (object != nullptr) return object;
      object = allocate_new(1);
    }
    *count = 1;
    return object;
  }
  void free(T* object) {
    std::uint32_t index = index_of(object);
    // The stack counts to 4,095: what does not fit goes onto the slow list.
    if (free_.push(objects_, index)) return;
    LockGuard guard(lock_);
    object->next_free.store(overflow_, std::memory_order_relaxed);
    overflow_ = index;
  }

  T* at(std::uint32_t index) const { return objects_ + index; }
  std::uint32_t index_of(const T* object) const {
    return static_cast<std::uint32_t>(object - objects_);
  }
  T* objects() const { return objects_; }
  // Objects ever handed out, index 0 included.
  std::uint32_t used() const { return used_.load(std::memory_order_relaxed); }
  Lock& lock() { return lock_; }

  static constexpr std::size_t kStepBytes = 64 << 10;

 private:
  std::uintptr_t base() const { return reinterpret_cast<std::uintptr_t>(objects_) + sizeof(T); }

  T* pop_free() {
    if (std::uint32_t index = free_.pop(objects_)) return objects_ + index;
    if (overflow_ == 0) return nullptr;  // a hint; checked again under the lock
    LockGuard guard(lock_);
    std::uint32_t index = overflow_;
    if (index == 0) return nullptr;
    overflow_ = objects_[index].next_free.load(std::memory_order_relaxed);
    return objects_ + index;
  }

  // Read by each push and pop of every stack of these objects, and written once.
  T* objects_ = nullptr;
  std::uint32_t capacity_ = 0;
  // On lines of their own, which threads write.
  alignas(64) std::atomic<std::uint32_t> used_{1};
  std::size_t reserved_bytes_ = 0;
  std::size_t committed_bytes_ = 0;
  Lock lock_;
  std::atomic<std::uint32_t> overflow_{0};  // written under the lock
  TaggedStack<T> free_;
};

}  // namespace rdmalloc
