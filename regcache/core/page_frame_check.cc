#include "regcache/core/page_frame_check.h"

#if RDMALLOC_CHECKED

#include <atomic>
#include <bit>

#include "alloc/for_regcache.h"
#include "regcache/core/history.h"
#include "regcache/core/state.h"

namespace rdmalloc::regcache {
namespace {

// A word of /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst of Linux).
constexpr std::uint64_t kFrame = (std::uint64_t{1} << 55) - 1;  // 0 without CAP_SYS_ADMIN
constexpr std::uint64_t kIsFile = std::uint64_t{1} << 61;       // or shared memory
constexpr std::uint64_t kIsSwapped = std::uint64_t{1} << 62;
constexpr std::uint64_t kIsPresent = std::uint64_t{1} << 63;

constinit std::atomic<bool> has_warned{false};

void warn_once(const char* detail) {
  // Relaxed: orders nothing.
  if (!has_warned.exchange(true, std::memory_order_relaxed))
    report_warning("stale registrations", detail);
}

// The pages that [low, high) touches.
struct Pages {
  Pages(std::uintptr_t low, std::uintptr_t high)
      : first(low / os::page_bytes()), end((high + os::page_bytes() - 1) / os::page_bytes()) {}
  std::size_t count() const { return end - first; }
  std::uintptr_t first, end;  // numbers, as the file counts them
};

// Calls fn(page, word) for each. False when the kernel does not tell.
template <class Fn>
bool read_pagemap(const Pages& pages, Fn fn) {
  // Not /proc/self, which has no memory any more once the first thread has ended.
  int fd = os::open_to_read("/proc/thread-self/pagemap");
  if (fd < 0) return false;
  constexpr std::size_t kBatch = 256;
  std::uint64_t words[kBatch];
  std::uintptr_t page = pages.first;
  while (page < pages.end) {
    std::size_t wanted = pages.end - page < kBatch ? pages.end - page : kBatch;
    std::size_t got = os::read_some_at(fd, reinterpret_cast<char*>(words), wanted * sizeof *words,
                                       page * sizeof *words) /
                      sizeof *words;
    if (got == 0) break;
    for (std::size_t i = 0; i < got; ++i) fn(page + i, words[i]);
    page += got;
  }
  os::close_file(fd);
  return page == pages.end;
}

// What is wrong with a pinned page whose word was `then`, or NULL.
const char* what_is_stale(std::uint64_t then, std::uint64_t now) {
  if ((then & kIsPresent) == 0) return nullptr;  // on the move when it was looked at
  if ((now & kIsPresent) != 0) {
    bool are_seen = (then & kFrame) != 0 && (now & kFrame) != 0;
    return are_seen && ((then ^ now) & kFrame) != 0 ? "is another page now" : nullptr;
  }
  return (now & kIsSwapped) == 0 && (then & kIsFile) == 0 ? "is gone" : nullptr;
}

[[noreturn]] void report_stale(const Domain& domain, const Registration* reg, std::uintptr_t page,
                               const char* what) {
  Message()
      .text("a stale registration: ")
      .value(domain.ops.name)
      .text(" registered ")
      .address(reinterpret_cast<void*>(reg->base()))
      .text(" + ")
      .number(reg->length())
      .text(" bytes (generation ")
      .number(reg->head.key.generation)
      .text("), and the page at ")
      .address(reinterpret_cast<void*>(page))
      .text(" ")
      .text(what)
      .print();
  print_history(page, page + os::page_bytes());
  report_fatal_address("a registration's page was taken away without notice",
                       reinterpret_cast<void*>(page));
}

}  // namespace

std::uint32_t FrameStore::take(std::size_t pages) {
  auto size_class = static_cast<std::size_t>(std::bit_width(pages - 1));
  LockGuard guard(lock_);
  if (words_ == nullptr) {
    std::uintptr_t base = 0;
    if (os::map_metadata(kWords * sizeof *words_, &base) != 0) return 0;
    words_ = reinterpret_cast<std::uint64_t*>(base);
    used_ = 1;  // no array has the handle 0
  }
  if (size_class >= kClasses) return 0;
  if (std::uint32_t handle = free_[size_class]) {
    free_[size_class] = static_cast<std::uint32_t>(words_[handle]);
    return handle;
  }
  std::size_t words = std::size_t{1} << size_class;
  if (words > kWords - used_) return 0;
  used_ += words;
  return static_cast<std::uint32_t>(used_ - words);
}

void FrameStore::give(std::uint32_t handle, std::size_t pages) {
  auto size_class = static_cast<std::size_t>(std::bit_width(pages - 1));
  LockGuard guard(lock_);
  words_[handle] = free_[size_class];
  free_[size_class] = handle;
}

bool page_frames_are_checked(const Domain& domain) {
  return (domain.ops.flags & RDMALLOC_REGISTRAR_PINS) != 0;
}

void page_frames_registered(const Domain& domain, Registration* reg) {
  // One for a single use is never found again.
  if (!page_frames_are_checked(domain) || reg->rest().kind == Kind::kPerUse) return;
  Pages pages(reg->base(), reg->end());
  FrameStore& store = state()->frames;
  std::uint32_t handle = store.take(pages.count());
  if (handle == 0) return;
  std::uint64_t* words = store.at(handle);
  bool is_blind = false;
  bool is_told = read_pagemap(pages, [&](std::uintptr_t page, std::uint64_t word) {
    words[page - pages.first] = word;
    is_blind |= (word & kIsPresent) != 0 && (word & kFrame) == 0;
  });
  if (is_blind)
    warn_once("no right to see page frames (CAP_SYS_ADMIN): only missing pages are found");
  if (!is_told) {
    warn_once("/proc/thread-self/pagemap can't be read: none is found");
    store.give(handle, pages.count());
    return;
  }
  reg->rest().frames = handle;
}

void page_frames_deregistered(Registration* reg) {
  if (reg->rest().frames == 0) return;
  state()->frames.give(reg->rest().frames, Pages(reg->base(), reg->end()).count());
  reg->rest().frames = 0;
}

void page_frames_check(const Domain& domain, const Registration* reg, std::uintptr_t low,
                       std::uintptr_t high) {
  if (reg->rest().frames == 0) return;
  std::uint64_t* words = state()->frames.at(reg->rest().frames);
  Pages registered(reg->base(), reg->end());
  read_pagemap(Pages(low, high), [&](std::uintptr_t page, std::uint64_t word) {
    if (const char* what = what_is_stale(words[page - registered.first], word))
      report_stale(domain, reg, page * os::page_bytes(), what);
  });
}

}  // namespace rdmalloc::regcache

#endif
