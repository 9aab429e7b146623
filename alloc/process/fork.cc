#include "alloc/process/fork.h"

#include <pthread.h>

#include "alloc/cache/shards.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/fork.h"
#include "alloc/core/helper_threads.h"
#include "alloc/core/lock.h"
#include "alloc/core/quarantine.h"
#include "alloc/core/size_class.h"
#include "alloc/heaps/heap.h"
#include "alloc/os/at_start.h"
#include "alloc/os/fault.h"
#include "alloc/os/os.h"
#include "alloc/pages/events.h"
#include "alloc/pages/page_heap.h"
#include "alloc/purge/purge.h"
#include "alloc/slabs/slab.h"
#include "alloc/slabs/slab_pages.h"

namespace rdmalloc {
namespace {

// The states of the word. While a thread recovers, its number is there too.
constexpr std::uint32_t kForked = 0, kReady = 1, kRecovering = 0x80000000u;
static_assert(kMostThreadId < kRecovering);

// On the page that the kernel wipes in a child.
struct Page {
  std::atomic<std::uint32_t> word;  // first: detail::fork_word
  // What libc's handler says of the thread that called fork, for the thread that recovers, which
  // may be a thread made since: its number and where its stack is. Not atomic: written where the
  // child has one thread. 0: the fork went past libc.
  std::uint32_t forker;
  std::uintptr_t forkers_stack;
};
constinit Page unwiped = {kReady, 0, 0};

Page& page() {
  return *reinterpret_cast<Page*>(detail::fork_word);
}

std::uintptr_t stack_here() {
  return reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
}

// libc's fork handler in the child, where one thread is. Besides the wiped page, not instead of it:
// the page sees forks that go past libc, the handler those on which the kernel does not wipe
// (before 4.14; after a checkpoint is restored, which loses the advice; under qemu-user, which
// ignores it). There alone a child whose id is its parent's, in a pid namespace, is not recognised.
void mark_child() {
  std::uint32_t seen = page().word.load(std::memory_order_relaxed);
  // A handler that ran before this one may have allocated, and so have recovered.
  if (seen != kForked && detail::known_process.load(std::memory_order_relaxed) == os::process_id())
    return;
  page().forker = thread_id();
  page().forkers_stack = stack_here();
  order_for_fork();
  page().word.store(kForked, std::memory_order_relaxed);
}

// Puts blocks back that a vanished thread had in flight. As if a lock had been held there: a child
// of this one, too, makes the lists anew.
void end_purge_of_pages() {
  SpanWord word = pages_in_purge();
  if (word.kind == SpanKind::kNone) return;
  if (word.kind == SpanKind::kSlab) slab_orphan(word.shard, word.size_class);
  if (word.kind == SpanKind::kHeapSlab) heap_orphan(word.heap);
  order_for_fork();
  pages_end_purge();
}

// Makes whole what locks guard that were held, and frees them.
void free_locks(const Forker& forker, std::uintptr_t forkers_stack) {
  // A purge of the thread that called fork, from inside a page event, goes on here.
  bool purge_goes_on = purge_after_fork(forker, forkers_stack);
  if (!purge_goes_on) end_purge_of_pages();
  // The page heap first: rebuilding a class walks the spans.
  page_heap_rebuild(purge_goes_on);
  if (!purge_goes_on) page_heap_end_purges();
  for (unsigned shard = 0; shard < shard_count(); ++shard) {
    for (unsigned c = 1; c < kClasses; ++c)
      if (slab_is_orphaned(shard, c)) slab_rebuild(shard, c);
  }
  // The child's pages are its own: no device reaches them.
  quarantined_ranges.store(0, std::memory_order_relaxed);
  quarantined_bytes.store(0, std::memory_order_relaxed);
  os::topology_after_fork();
  shards_after_fork();
  events_after_fork();
  caches_after_fork();
  heaps_after_fork(forker);
}

}  // namespace

namespace detail {

RDMALLOC_AT_START constinit std::atomic<std::uint32_t>* fork_word = nullptr;

void fork_recover() {
  std::uint32_t mine = kRecovering | thread_id();
  for (;;) {
    // Acquire, here and in the exchange: pairs with the release below, on the thread that recovers.
    std::uint32_t seen = fork_word->load(std::memory_order_acquire);
    // A recovery comes back here from further down: it must not wait for itself.
    if (seen == kReady || seen == mine) return;
    if (seen != kForked) {
      // By polling: this happens once in a process's life, if ever.
      os::futex_wait(reinterpret_cast<const std::uint32_t*>(fork_word), seen, 1000000);
      continue;
    }
    if (!fork_word->compare_exchange_strong(seen, mine, std::memory_order_acquire,
                                            std::memory_order_relaxed))
      continue;
    // Where libc's handler did not run, this thread is taken for the one that forked.
    bool is_marked = page().forker != 0;
    Forker forker = {is_marked ? page().forker : thread_id()};
    free_locks(forker, is_marked ? page().forkers_stack : stack_here());
    first_thread.store(forker.id, std::memory_order_relaxed);
    known_process.store(os::process_id(), std::memory_order_relaxed);
    loader_may_be_locked.store(true, std::memory_order_relaxed);
    is_past_libc.store(!is_marked, std::memory_order_relaxed);
    // Relaxed: set by the parent, or by this thread.
    if (auto* count = count_after_fork.load(std::memory_order_relaxed))
      count(forker.id == thread_id());
    // Gives blocks back, and so takes locks.
    cache_reclaim_after_fork(os::is_first_thread() || is_marked ? forker.id : 0);
    // Release: pairs with the acquires of fork_check() and above, on other threads of the child.
    fork_word->store(kReady, std::memory_order_release);
  }
}

}  // namespace detail

void fork_wipe_again() {
  std::atomic<std::uint32_t>* word = detail::fork_word;
  // Without success the handler alone tells of a fork, as on kernels that wipe nothing.
  if (word != nullptr && word != &unwiped.word)
    os::wipe_on_fork(reinterpret_cast<std::uintptr_t>(word), os::page_bytes());
}

void fork_init(std::uint32_t kernel_id) {
  std::uintptr_t page = 0;
  std::size_t bytes = os::page_bytes();
  if (os::map_metadata(bytes, &page) == 0 && os::wipe_on_fork(page, bytes) == 0) {
    auto* word = reinterpret_cast<std::atomic<std::uint32_t>*>(page);
    word->store(kReady, std::memory_order_relaxed);
    detail::fork_word = word;
  } else {
    detail::fork_word = &unwiped.word;
  }
  int process = os::process_id();
  detail::known_process.store(process, std::memory_order_relaxed);
  if (kernel_id == static_cast<std::uint32_t>(process))
    detail::first_thread.store(thread_id(), std::memory_order_relaxed);
  if (!os::should_fail(os::Site::kForkHandler)) pthread_atfork(nullptr, nullptr, mark_child);
}

}  // namespace rdmalloc
