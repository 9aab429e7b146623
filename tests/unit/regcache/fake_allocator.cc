#include "tests/unit/regcache/fake_allocator.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "alloc/core/fork.h"
#include "alloc/core/options.h"
#include "alloc/pages/events.h"
#include "alloc/purge/purge.h"
#include "regcache/core/rooms.h"

// What the cache calls at exit: there is no thread here that purges.
void rdmalloc::purge_hold(std::int64_t, int) {}
// And what an open domain asks for.
int rdmalloc::purge_thread_start() {
  return 0;
}

// What it asks of forks: the stand-in has no locks that a child would have to free.
constinit std::atomic<std::uint32_t>* rdmalloc::detail::fork_word = nullptr;
void rdmalloc::detail::fork_recover() {}

// The rooms above the core whose objects lie in blocks of the allocator: none here.
namespace rdmalloc::regcache {
constexpr Holder kNone = {[] { return 0; },
                          [](std::size_t) { return false; },
                          [](std::size_t) { return std::uint64_t{0}; },
                          [](State&, Registration**) {},
                          [](State&) { return 0; },
                          [] { return false; }};
constinit const Holder* const holders[kHolders] = {&kNone, &kNone};
}  // namespace rdmalloc::regcache

namespace fake {
namespace {

constexpr std::size_t kSlices = kArenaBytes / kSlice;

struct SliceInfo {
  // 0: free. Otherwise the first slice of the span plus one. seq_cst throughout: it stands in for
  // the fences that the contract of rdmalloc_range_is_idle() asks for.
  std::atomic<std::uint32_t> owner;
  std::atomic<std::uint32_t> slices;  // of the first slice of a span in use
  std::atomic<std::size_t> block_bytes;
  std::atomic<bool> is_in_flight;
  std::atomic<unsigned> generation;
};

char* make_arena() {
  constexpr std::size_t kAlign = RDMALLOC_CHUNK_BYTES;
  void* base = mmap(nullptr, kArenaBytes + kAlign, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) abort();
  auto address = (reinterpret_cast<std::uintptr_t>(base) + kAlign - 1) & ~(kAlign - 1);
  return reinterpret_cast<char*>(address);
}

char* arena() {
  static char* const base = make_arena();
  return base;
}
SliceInfo* slices_info() {
  static auto* const info = new SliceInfo[kSlices]();
  return info;
}
std::size_t slice_of(const void* address) {
  return static_cast<std::size_t>(static_cast<const char*>(address) - arena()) / kSlice;
}
bool is_in_arena(const void* address) {
  return static_cast<const char*>(address) >= arena() &&
         static_cast<const char*>(address) < arena() + kArenaBytes;
}

struct Observer {
  rdmalloc_observer_ops ops;
  void* arg;
} observer;
std::atomic<bool> has_observer{false};
std::mutex purge_turn;  // one event at a time
std::atomic<std::thread::id> turns_owner;

// One purge's turn.
class Turn {
 public:
  Turn() : guard_(purge_turn) { turns_owner = std::this_thread::get_id(); }
  ~Turn() { turns_owner = std::thread::id(); }

 private:
  std::lock_guard<std::mutex> guard_;
};
std::function<void(void*, std::size_t)> decommit_check;
std::function<void()> idle_hook;

thread_local bool in_page_event = false;

int ask_purge(void* base, std::size_t length, enum rdmalloc_purge_reason reason) {
  in_page_event = true;
  int refusal = observer.ops.purge(observer.arg, base, length, reason);
  in_page_event = false;
  return refusal;
}

void notify_purged(void* base, std::size_t length) {
  in_page_event = true;
  observer.ops.purged(observer.arg, base, length, 0);
  in_page_event = false;
}

void decommit(std::size_t at, std::size_t slices) {
  madvise(arena() + at * kSlice, slices * kSlice, MADV_DONTNEED);
  for (std::size_t slice = at; slice < at + slices; ++slice) ++slices_info()[slice].generation;
}

}  // namespace

char* span(std::size_t at, std::size_t slices, std::size_t block_bytes) {
  SliceInfo* info = slices_info();
  // The words of all slices first, by read-modify-write: an answer "idle" after this is impossible.
  info[at].slices = static_cast<std::uint32_t>(slices);
  info[at].block_bytes = block_bytes != 0 ? block_bytes : slices * kSlice;
  for (std::size_t slice = at; slice < at + slices; ++slice) {
    std::uint32_t before = info[slice].owner.exchange(static_cast<std::uint32_t>(at) + 1);
    if (before != 0 || info[slice].is_in_flight) abort();  // the test's own mistake
  }
  return arena() + at * kSlice;
}

void resize_span(void* base, std::size_t slices) {
  SliceInfo* info = slices_info();
  std::size_t at = slice_of(base), before = info[at].slices;
  for (std::size_t slice = at + before; slice < at + slices; ++slice)
    if (info[slice].owner.exchange(static_cast<std::uint32_t>(at) + 1) != 0) abort();
  for (std::size_t slice = at + slices; slice < at + before; ++slice) info[slice].owner = 0;
  info[at].slices = static_cast<std::uint32_t>(slices);
  info[at].block_bytes = slices * kSlice;
}

void free_span(void* base) {
  std::size_t at = slice_of(base);
  for (std::size_t slice = at; slice < at + slices_info()[at].slices; ++slice)
    slices_info()[slice].owner = 0;
}

int purge(std::size_t at, std::size_t slices, const std::function<void()>& while_in_flight) {
  Turn turn;
  SliceInfo* info = slices_info();
  for (std::size_t slice = at; slice < at + slices; ++slice) {
    if (info[slice].owner != 0) abort();
    info[slice].is_in_flight = true;
  }
  void* base = arena() + at * kSlice;
  int refusal = 0;
  if (has_observer) refusal = ask_purge(base, slices * kSlice, RDMALLOC_PURGE_REQUEST);
  if (refusal == 0) {
    if (decommit_check) decommit_check(base, slices * kSlice);
    decommit(at, slices);
    if (while_in_flight) while_in_flight();
    if (has_observer) notify_purged(base, slices * kSlice);
  }
  for (std::size_t slice = at; slice < at + slices; ++slice) info[slice].is_in_flight = false;
  return refusal;
}

int purge_pages_of(char* slab, std::size_t first, std::size_t count,
                   enum rdmalloc_purge_reason reason,
                   const std::function<void()>& while_in_flight) {
  constexpr std::size_t kPage = 4096;
  Turn turn;
  void* base = slab + first * kPage;
  int refusal = ask_purge(base, count * kPage, reason);
  if (refusal != 0) return refusal;
  if (decommit_check) decommit_check(base, count * kPage);
  madvise(base, count * kPage, MADV_DONTNEED);
  if (while_in_flight) while_in_flight();
  notify_purged(base, count * kPage);
  return 0;
}

void purge_silently(std::size_t at, std::size_t slices) {
  decommit(at, slices);
}

void set_idle_hook(std::function<void()> hook) {
  idle_hook = std::move(hook);
}

void set_decommit_check(std::function<void(void*, std::size_t)> check) {
  decommit_check = std::move(check);
}

std::atomic<int> purge_requests{0};
std::atomic<std::uint64_t> idle_questions{0};

unsigned page_generation(const void* address) {
  return slices_info()[slice_of(address)].generation;
}

}  // namespace fake

using namespace fake;

bool rdmalloc::is_in_page_event() {
  return in_page_event;
}

int rdmalloc::purge_pause() {
  if (turns_owner.load() == std::this_thread::get_id()) return -EDEADLK;
  Turn ended;
  return 0;
}
void rdmalloc::purge_resume() {}

void rdmalloc::purge_request_all() {
  ++purge_requests;
}

extern "C" {

int rdmalloc_arena_extent(uintptr_t* base, size_t* length) {
  rdmalloc::options_read();  // as the allocator does before anything else
  *base = reinterpret_cast<uintptr_t>(arena());
  *length = kArenaBytes;
  return 0;
}

int rdmalloc_observer_add(const rdmalloc_observer_ops* ops, void* arg, rdmalloc_observer** out) {
  observer = {*ops, arg};
  has_observer = true;
  *out = reinterpret_cast<rdmalloc_observer*>(&observer);
  return 0;
}

bool rdmalloc_owns(const void* ptr) {
  return is_in_arena(ptr);
}

int rdmalloc_range_of(const void* ptr, rdmalloc_range* range) {
  if (range->size != sizeof *range) return -EINVAL;
  if (!is_in_arena(ptr)) return -EFAULT;
  std::uint32_t owner = slices_info()[slice_of(ptr)].owner;
  if (owner == 0) return -EFAULT;
  const SliceInfo& first = slices_info()[owner - 1];
  range->base = arena() + (owner - 1) * kSlice;
  range->length = first.slices * kSlice;
  range->block_bytes = first.block_bytes;
  range->generation = first.generation;
  range->flags = range->length == range->block_bytes ? RDMALLOC_RANGE_LARGE : RDMALLOC_RANGE_SLAB;
  return 0;
}

bool rdmalloc_range_is_idle(const void* base, size_t length) {
  ++idle_questions;
  const char* begin = static_cast<const char*>(base);
  bool is_idle = true;
  for (std::size_t slice = slice_of(begin); slice <= slice_of(begin + length - 1); ++slice)
    is_idle = is_idle && slices_info()[slice].owner == 0;
  if (idle_hook) idle_hook();
  return is_idle;
}

// Of blocks in slabs nothing is known here.
bool rdmalloc_range_is_free(const void* base, size_t length) {
  return rdmalloc_range_is_idle(base, length);
}

void rdmalloc_caches_flush(void) {}

}  // extern "C"
