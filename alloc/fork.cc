#include "alloc/fork.h"

#include <pthread.h>

#include "alloc/cache/shards.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/at_start.h"
#include "alloc/core/lock.h"
#include "alloc/core/quarantine.h"
#include "alloc/core/size_class.h"
#include "alloc/heaps/heap.h"
#include "alloc/os/fault.h"
#include "alloc/os/os.h"
#include "alloc/pages/events.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/parked.h"
#include "alloc/pages/purge.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

constexpr std::uint32_t kForked = 0, kReady = 1, kRecovering = 2;

constinit std::atomic<std::uint32_t> unwiped_word{kReady};
// The thread of the child that recovers; relaxed: compared with the reader's own id only.
constinit std::atomic<std::uint32_t> recovering_thread{0};

// The process that the word speaks of: set at initialisation and by each recovery.
constinit std::atomic<int> known_process{0};

// libc's fork handler in the child, where one thread is. Besides the wiped page, not instead of it:
// the page sees forks that go past libc, the handler those on which the kernel does not wipe
// (before 4.14; after a checkpoint is restored, which loses the advice; under qemu-user, which
// ignores it).
void mark_child() {
  // A handler that ran before this one may have allocated, and so have recovered.
  int process = os::process_id();
  if (known_process.load(std::memory_order_relaxed) != process)
    detail::fork_word->store(kForked, std::memory_order_relaxed);
}

// A lock found held in the child belongs to a thread that is gone, or to this very thread, when
// fork was called in a signal handler that interrupted malloc: then the interrupted code will go
// on, and release it.
bool is_orphaned(std::uint32_t owner, std::uint32_t forking_thread) {
  return owner != 0 && owner != forking_thread;
}

void recover(std::uint32_t forking_thread) {
  purge_after_fork(forking_thread);
  // A purge of the thread that called fork, from inside a page event, goes on here.
  bool purge_goes_on = purge_turn_is_mine();
  // The page heap first: rebuilding a class walks the spans.
  if (is_orphaned(page_heap_lock_owner(), forking_thread)) page_heap_rebuild(purge_goes_on);
  SlabInPurge in_purge = purge_goes_on ? SlabInPurge{} : slab_in_purge();
  if (!purge_goes_on) page_heap_end_purges();
  parks_after_fork(forking_thread);
  if (in_purge.size_class != 0) slab_end_purge();
  for (unsigned shard = 0; shard < shard_count(); ++shard) {
    for (unsigned c = 1; c < kClasses; ++c) {
      std::uint32_t owner = slab_lock_owner(shard, c);
      // A class whose lock this very thread holds keeps its lists: the slab that was in purge is
      // then listed at the next give-back to it.
      bool was_in_purge = c == in_purge.size_class && shard == in_purge.shard;
      if (is_orphaned(owner, forking_thread) || (was_in_purge && owner == 0))
        slab_rebuild(shard, c);
    }
  }
  // The child's pages are its own: no device reaches them.
  quarantined_ranges.store(0, std::memory_order_relaxed);
  quarantined_bytes.store(0, std::memory_order_relaxed);
  os::topology_after_fork();
  shards_after_fork(forking_thread);
  events_after_fork();
  cache_reclaim_after_fork();
  heaps_after_fork(forking_thread);
}

}  // namespace

namespace detail {

RDMALLOC_AT_START constinit std::atomic<std::uint32_t>* fork_word = nullptr;

void fork_recover() {
  std::uint32_t expected = kForked;
  // Acquire on both outcomes: a thread that loses the race waits below for the winner's stores.
  if (!fork_word->compare_exchange_strong(expected, kRecovering, std::memory_order_acquire)) {
    // Recovery frees blocks and so comes back here: it must not wait for itself. Other new threads
    // of the child wait, by polling: this happens once in a process's life, if ever.
    if (recovering_thread.load(std::memory_order_relaxed) == thread_id()) return;
    while (fork_word->load(std::memory_order_acquire) == kRecovering)
      os::futex_wait(reinterpret_cast<const std::uint32_t*>(fork_word), kRecovering, 1000000);
    return;
  }
  std::uint32_t forking_thread = this_thread_id;  // as the parent knew it
  forget_thread_id();
  recovering_thread.store(thread_id(), std::memory_order_relaxed);
  recover(forking_thread);
  known_process.store(os::process_id(), std::memory_order_relaxed);
  // Release: pairs with fork_check() on other threads of the child.
  fork_word->store(kReady, std::memory_order_release);
}

}  // namespace detail

void fork_wipe_again() {
  std::atomic<std::uint32_t>* word = detail::fork_word;
  // Without success the handler alone tells of a fork, as on kernels that wipe nothing.
  if (word != nullptr && word != &unwiped_word)
    os::wipe_on_fork(reinterpret_cast<std::uintptr_t>(word), os::page_bytes());
}

bool is_known_first_thread() {
  return thread_id() == static_cast<std::uint32_t>(known_process.load(std::memory_order_relaxed));
}

void fork_init() {
  std::uintptr_t page = 0;
  std::size_t bytes = os::page_bytes();
  if (os::map_metadata(bytes, &page) == 0 && os::wipe_on_fork(page, bytes) == 0) {
    auto* word = reinterpret_cast<std::atomic<std::uint32_t>*>(page);
    word->store(kReady, std::memory_order_relaxed);
    detail::fork_word = word;
  } else {
    detail::fork_word = &unwiped_word;
  }
  known_process.store(os::process_id(), std::memory_order_relaxed);
  detail::before_lock_wait.store(fork_check, std::memory_order_relaxed);
  if (!os::should_fail(os::Site::kForkHandler)) pthread_atfork(nullptr, nullptr, mark_child);
}

}  // namespace rdmalloc
