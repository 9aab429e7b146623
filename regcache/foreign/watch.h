// RDMALLOC_FOREIGN=watch: foreign memory whose pages the kernel watches for us (I6), so that its
// registrations may be kept after their put.
//
// Two threads work for it. The reader takes the events of a userfaultfd (alloc/os/userfault.h) and
// puts them in a ring. It takes no lock and calls no registrar, because a thread in munmap waits
// until its event was read and may hold any lock: a fabric's, the program's or, in a signal
// handler, rdmalloc's. The helper, and each get that finds events in the ring, apply them: they
// close the registrations that an event touches, under each domain's lock. The helper, a get that
// misses, a flush or a close then deregisters what was closed.
//
//   munmap ──► kernel: event ──► reader ──► ring ──► apply() ──► closed ──► deregistered
//              changing + 1      reading odd         applied     helper, or a get of the domain
//              changing - 1 ◄──  reading even
//
// Why a hit is never stale. A thread gets addresses from mmap and asks for them; some thread
// unmapped what was there before. Until the reader has read the event of that, the kernel says
// "changing" (a counter that it raises under the mmap lock before the old mapping goes, so before
// mmap returns). is_settled() requires
//
//   1. nothing changing: then each such event has been read, so `reading` was made odd before;
//   2. `reading` even: then it was made even after, and the event is in the ring (`head`);
//   3. head == applied: then each registration that the event touches is closed.
//
// Only then does an open word of a held registration mean that no event has touched it. Anything
// else is a miss, and while the kernel says "changing" the cache registers for one use: no thread
// waits for another. The question is a system call at each hit. Without it, a thread that mmap
// gives the addresses of a munmap that has not yet returned on another thread would hit the old
// registration.
//
// The question has no call of its own: it is UFFDIO_WRITEPROTECT without an argument, and kernels
// look for changes before they look at that. So each start tries it, on a page of ours: where the
// kernel says "settled" while the event of its unmapping is unread, watching stays off.
//
// A registration that is being made while an event comes: its record is in the domain's list of
// those in flight before its pages are watched, and in the tree afterwards, so the event finds it
// in one of the two.
//
// Events that come too early. For madvise (DONTNEED, FREE, REMOVE) the kernel sends the event
// before it takes the pages, and sends none afterwards; a registration made in between would keep
// the old pages for ever. So the cache *retires* such a range: it registers it for each use until
// it is unmapped.
//
// Memory that can't be watched is registered for each use: memory that is shared or a file's (its
// pages can go by a call on the file, in another process too), hugetlb, what another userfaultfd of
// the process watches, and more ranges than a quarter of the mappings that the process may have,
// since each may cost two. Not seen: MADV_GUARD_INSTALL (Linux 6.13), which has no event.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/core/byte_ranges.h"
#include "regcache/core/registration.h"
#include "regcache/core/rooms.h"

namespace rdmalloc::regcache {

struct State;
struct Domain;

// What a fork child must close, and the memory it may use again.
struct WatchSurvivors {
  std::atomic<int> descriptors[3] = {-1, -1, -1};
  std::atomic<std::uintptr_t> ring{0};
  HelperStack reader_stack, helper_stack;
  std::atomic<bool> has_fork_handler{false};
  PoolMemory retired;
};

class Watch {
 public:
  // One more domain is open, or one less. The first starts the threads, where the setting says so;
  // the last stops them. Under no lock; may wait for munmaps of others to have been read.
  void attach(State& all);
  void detach();
  // For a checkpoint: stops the threads and closes the descriptors while nothing is registered, and
  // starts again.
  void quiesce();
  void resume(State& all);

  // Whether all that happened to watched memory before this call has been applied. Lock-free. Asked
  // of a registration that the caller holds: only then does its open word mean that it is good.
  bool is_settled() const;
  // The same as is_settled(), after applying what is there. False: register for one use.
  bool catch_up(State& all);

  // Watches a range that is about to be registered, and whose record is in flight. False: can't be
  // watched. In either case end() must follow, once the record is out of its domain's tree, or in
  // flight no more, or says that it isn't watched.
  bool begin(std::uintptr_t low, std::uintptr_t high);
  void end(State& all, std::uintptr_t low, std::uintptr_t high);
  // A range that was begun is quarantined: end() never follows.
  void quarantined() { quarantined_.fetch_add(1, std::memory_order_relaxed); }

  // Before a fork, and after it in the parent: a child born while descriptors are open that
  // WatchSurvivors does not name would keep them.
  void begin_fork();
  void end_fork() {
    if (is_forking()) forker_.store(0, std::memory_order_relaxed);
    forks_.fetch_sub(1, std::memory_order_seq_cst);
  }

  struct Counters {
    bool is_on;
    int error;  // why it is not
    std::uint64_t watched, events, stale, unsettled, refusals, retired;
  };
  Counters counters();
  // Whether userfaultfd is available, for statistics: 0 or a negative errno. Opens one, once in a
  // process, and a fork waits for its end.
  static int could_watch();

 private:
  // The page that try_question() watches.
  enum class Probe : std::uint32_t { kThere = 0, kGone, kRefused };
  enum class Phase : std::uint32_t { kOff = 0, kOn, kRefused, kGivenUp, kStopping, kEnded };
  // A power of two. So many events that were not applied end watching for good.
  static constexpr std::uint64_t kRing = 16384;

  void begin_if_wanted(State& all);
  int start(State& all);
  void stop();
  int create_threads();
  int try_question();
  void end_helper();
  int open_descriptors();
  void close_descriptors();
  bool is_forking() const { return forker_.load(std::memory_order_relaxed) == thread_id(); }
  void begin_unnoted();
  void end_unnoted() { unnoted_.fetch_sub(1, std::memory_order_seq_cst); }
  void give_up(const char* why, int error);
  void apply(State& all);
  void mark(State& all, const os::UserfaultEvent& event);
  void mark_in(Domain& domain, std::uintptr_t low, std::uintptr_t high);
  void disarm(State& all, std::uintptr_t low, std::uintptr_t high);
  ByteRanges::Range first_kept(State& all, std::uintptr_t low, std::uintptr_t high);
  bool is_ending();
  void disarm_all();
  void wake();
  void read_events();
  void help();

  Lock life_lock_;  // starting and stopping; before all others
  std::uint32_t domains_;
  // Release: what start() has made. Acquire: who uses it.
  std::atomic<Phase> phase_;
  std::atomic<int> error_;
  bool has_warned_;
  State* all_;
  int fd_, stop_fd_, maps_fd_;
  pthread_t reader_, helper_;
  std::uintptr_t probe_page_;
  std::atomic<Probe> probe_;
  std::uint64_t most_ranges_;
  os::UserfaultEvent* ring_;

  // Written by the reader only.
  alignas(64) std::atomic<std::uint64_t> reading_;  // odd: events may be read that are not in ring_
  std::atomic<std::uint64_t> head_;                 // events ever put in ring_
  std::atomic<std::uint32_t> wake_;                 // moves on with them; a futex

  alignas(64) Lock apply_lock_;  // before ranges_lock_ and the domains'
  std::atomic<std::uint64_t> applied_;
  bool has_marked_all_;  // after giving up

  // Registering ranges with the kernel and unregistering them; before the domains' locks.
  Lock ranges_lock_;
  ByteRanges retired_;

  // Begun and not ended, across a checkpoint too: what is held of a lost domain ends after it.
  // Relaxed, like the others: limits and statistics.
  std::atomic<std::uint64_t> watched_;
  std::atomic<std::uint64_t> quarantined_;  // of watched_, until the next start
  std::atomic<std::uint64_t> stale_, unsettled_, refusals_;

  // Forks under way, and threads that open or close descriptors. Each counts itself before it looks
  // at the other, seq_cst: at least one sees the other and waits. Zero in a child.
  std::atomic<std::uint32_t> forks_, unnoted_;
  // The thread that began one last: one whose own handlers of fork open or close a domain waits for
  // no fork. Relaxed: what a thread wrote itself.
  std::atomic<std::uint32_t> forker_;
};

}  // namespace rdmalloc::regcache
