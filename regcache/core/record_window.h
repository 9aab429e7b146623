// Where records that have numbers lie: one range of addresses, of which chunks are made usable one
// behind the other. A number says where its record is, in 32 bits.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc::regcache {

// Counts lines of 64 bytes from a window's begin on. 0: no record.
using RecordNumber = std::uint32_t;
inline constexpr unsigned kRecordShift = 6;

// `from` is RecordWindow::numbered_from().
inline std::uintptr_t record_at(std::uintptr_t from, RecordNumber number) {
  return from + (std::uintptr_t{number} << kRecordShift);
}
inline RecordNumber record_number(std::uintptr_t from, std::uintptr_t record) {
  return static_cast<RecordNumber>((record - from) >> kRecordShift);
}

// Constant-initialised, and the same in a fork child, where the usable part reads as zero. Callers
// see to it that one thread at a time calls take().
class RecordWindow {
 public:
  // 33,554,432 registrations.
  static constexpr std::size_t kMostBytes = std::size_t{4} << 30;

  // The next `*length` bytes, or what is left if that is less: zeroed, from a multiple of `*length`
  // or of a huge page on. False when there is none left, or no memory.
  bool take(std::size_t* length, std::uintptr_t* base);
  // Where a record of number 0 would be; 0 before the first take().
  std::uintptr_t numbered_from() const {
    std::uintptr_t base = base_.load(std::memory_order_relaxed);
    return base == 0 ? 0 : base - (std::uintptr_t{1} << kRecordShift);
  }

 private:
  bool reserve();

  // Atomic for the sake of a child that another thread forks between two stores: it finds no
  // window, or a whole one, of which it makes usable again what its parent was about to
  // (record_window.cc). No thread reads them beside a writer: take()'s callers hold their pool's
  // lock, and numbered_from() follows Pool::prepare(), which takes that lock.
  std::atomic<std::uintptr_t> base_{0};
  std::atomic<std::uintptr_t> next_{0};
  std::atomic<std::uintptr_t> end_{0};
};

}  // namespace rdmalloc::regcache
