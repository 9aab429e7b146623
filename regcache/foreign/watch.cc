#include "regcache/foreign/watch.h"

#include <errno.h>
#include <rdmalloc/regcache.h>

#include "alloc/for_regcache.h"
#include "regcache/core/drop.h"
#include "regcache/core/history.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

constinit WipedObject<Watch> watch;
constinit WatchSurvivors watch_survivors;

constinit std::atomic<bool> first_thread_has_ended{false};

// Stacks, backed where they are touched. The helper calls registrars.
constexpr std::size_t kReaderStackBytes = std::size_t{1} << 20;
constexpr std::size_t kHelperStackBytes = std::size_t{4} << 20;
// Events that the reader takes at once.
constexpr std::size_t kAtOnce = 16;
// A fork and a start wait for each other so long, and not for ever: a handler of fork may want a
// lock that the thread which opens a domain holds, and a signal's handler may fork in the middle.
constexpr int kForkTurns = 10000;
constexpr std::int64_t kForkTurnNs = 100000;

// If the program has closed our descriptors, their numbers are the program's.
bool is_still_ours(int userfaultfd) {
  int answer = os::userfault_settled(userfaultfd);
  return answer == 0 || answer == -EAGAIN;
}

// A child shares its parent's userfaultfd: as long as it has it open, the parent's close would not
// end the watching, and no thread would read the events.
void close_in_child() {
  bool are_ours = is_still_ours(watch_survivors.descriptors[0].load(std::memory_order_relaxed));
  for (std::atomic<int>& descriptor : watch_survivors.descriptors) {
    int fd = descriptor.exchange(-1, std::memory_order_relaxed);
    if (fd >= 0 && are_ours) os::close_file(fd);
  }
  // The thread that called fork is the child's first.
  first_thread_has_ended.store(false, std::memory_order_relaxed);
}

std::uintptr_t page_low(std::uintptr_t address) {
  return round_down(address, os::page_bytes());
}
std::uintptr_t page_high(std::uintptr_t address) {
  return round_up(address, os::page_bytes());
}

void warn(const char* what, int error) {
  Message()
      .text("warning: RDMALLOC_FOREIGN=watch: ")
      .text(what)
      .text(" (error ")
      .signed_number(error)
      .text("): foreign memory is registered for each use")
      .warn();
}

}  // namespace

// ---- whether all events are applied ----

bool Watch::is_settled() const {
  if (phase_.load(std::memory_order_acquire) != Phase::kOn) return false;
  if (os::userfault_settled(fd_) != 0) return false;
  // Acquire, for a load that the kernel did: what the count's last decrement came after (the
  // reader's store to reading_, then its read) comes before what we load from here on.
  std::atomic_thread_fence(std::memory_order_acquire);
  // Acquire: pairs with the reader's release; head_ was stored before reading_ was made even.
  if ((reading_.load(std::memory_order_acquire) & 1) != 0) return false;
  // Acquire: pairs with the release in apply(), after which what it closed is closed.
  return head_.load(std::memory_order_acquire) == applied_.load(std::memory_order_acquire);
}

bool Watch::catch_up(State& all) {
  if (phase_.load(std::memory_order_acquire) != Phase::kOn) return false;
  bool is_quiet = os::userfault_settled(fd_) == 0;
  std::atomic_thread_fence(std::memory_order_acquire);  // as in is_settled()
  if (!is_quiet || (reading_.load(std::memory_order_acquire) & 1) != 0) {
    unsettled_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  apply(all);
  return phase_.load(std::memory_order_acquire) == Phase::kOn;
}

// ---- events ----

// Called under no lock, since a thread in munmap could hold any.
void Watch::read_events() {
  os::UserfaultEvent events[kAtOnce];
  std::uint64_t turn = reading_.load(std::memory_order_relaxed);
  for (;;) {
    os::Ready ready = os::userfault_wait(fd_, stop_fd_);
    if (ready == os::Ready::kStop) return;
    if (ready == os::Ready::kBroken) {
      give_up("its descriptor was closed", -EBADF);
      return;
    }
    // Before the read: the thread that waits for the event goes on during the read.
    reading_.store(++turn, std::memory_order_seq_cst);
    std::size_t count = os::userfault_read(fd_, events, kAtOnce);
    std::uint64_t head = head_.load(std::memory_order_relaxed);
    // Acquire: pairs with the release in apply(): the places are read no more.
    if (head + count - applied_.load(std::memory_order_acquire) > kRing) {
      // The thread that applies events is stuck. Without these events no watched registration may
      // be believed; the reader goes on reading, since threads wait for that.
      give_up("too many events at once", -EOVERFLOW);
    } else {
      for (std::size_t i = 0; i < count; ++i) ring_[(head + i) % kRing] = events[i];
      // Release: pairs with the acquires in apply() and is_settled().
      head_.store(head + count, std::memory_order_release);
    }
    // Release: as above.
    reading_.store(++turn, std::memory_order_release);
    wake();
  }
}

void Watch::wake() {
  wake_.fetch_add(1, std::memory_order_release);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&wake_), 1);
}

void Watch::give_up(const char* why, int error) {
  Phase expected = Phase::kOn;
  if (!phase_.compare_exchange_strong(expected, Phase::kGivenUp, std::memory_order_seq_cst)) return;
  error_.store(error, std::memory_order_relaxed);
  warn(why, error);
}

void Watch::apply(State& all) {
  LockGuard guard(apply_lock_);
  std::uint64_t next = applied_.load(std::memory_order_relaxed);
  // Acquire: pairs with the reader's release of what is in the ring.
  for (; next != head_.load(std::memory_order_acquire); ++next) {
    mark(all, ring_[next % kRing]);
    // Release: pairs with the acquires in is_settled() and read_events().
    applied_.store(next + 1, std::memory_order_release);
  }
  if (phase_.load(std::memory_order_acquire) == Phase::kGivenUp && !has_marked_all_) {
    has_marked_all_ = true;
    for (Domain& domain : all.domains) mark_in(domain, 0, UINTPTR_MAX);
  }
}

void Watch::mark(State& all, const os::UserfaultEvent& event) {
  {
    // Before the look into the domains: one that begins later finds the range retired, one that has
    // begun is found there.
    LockGuard guard(ranges_lock_);
    if (event.what != os::PageEvent::kRemoving)
      // When it can't be cut in two, what is left of it stays retired with the rest.
      retired_.remove(watch_survivors.retired, event.low, event.high);
    else if (retired_.add(watch_survivors.retired, event.low, event.high) != 0)
      give_up("no memory", -ENOMEM);
  }
  for (Domain& domain : all.domains) mark_in(domain, event.low, event.high);
  // The kernel goes on watching the pages in their new place, to no use.
  if (event.what == os::PageEvent::kMoved) {
    LockGuard guard(ranges_lock_);
    disarm(all, event.moved_to, event.moved_to + (event.high - event.low));
  }
}

// As long as a quiesce waits, what it has closed may be opened again.
static bool has_watched(const Domain& domain) {
  // Acquire: pairs with open's release.
  auto phase = domain.phase.load(std::memory_order_acquire);
  return phase == rdmalloc::regcache::Phase::kIsOpen ||
         phase == rdmalloc::regcache::Phase::kIsChanging;
}

// Closes the watched registrations there, as an invalidation does, and defers them to a thread that
// may deregister.
void Watch::mark_in(Domain& domain, std::uintptr_t low, std::uintptr_t high) {
  // A look without the lock spares most of the 64.
  if (!has_watched(domain)) return;
  RangeGuard guard(domain, low, high);
  if (!has_watched(domain)) return;
  auto close = [&](Registration* reg) {
    if (!reg->rest().is_watched) return true;
    if (reg->rest().is_suspended) {
      // A quiesce that fails must not open it again.
      if (unsuspend(reg)) defer(domain, reg);
      stale_.fetch_add(1, std::memory_order_relaxed);
      return true;
    }
    if (!reg->is_open()) return true;
    if (close_held_too(domain, reg)) defer(domain, reg);
    stale_.fetch_add(1, std::memory_order_relaxed);
    note(Event::kInvalidated, reg->base(), reg->end(), domain.ops.name, reg->head.key.generation);
    return true;
  };
  visit_overlapping(domain, low, high, close);
  visit_in_flight(domain, low, high, [](Registration* reg) {
    if (reg->rest().is_watched) reg->rest().is_stale = true;
    return true;
  });
}

// ---- ranges ----

bool Watch::begin(std::uintptr_t low, std::uintptr_t high) {
  low = page_low(low);
  high = page_high(high);
  std::uint64_t before = watched_.fetch_add(1, std::memory_order_relaxed);
  LockGuard guard(ranges_lock_);
  ByteRanges::Range retired;
  bool is_possible = phase_.load(std::memory_order_acquire) == Phase::kOn &&
                     before + retired_.count() < most_ranges_ &&
                     !retired_.find_first(low, high, &retired);
  // Asks for the kind once the range is watched: an event reports a later change.
  if (is_possible && os::userfault_register(fd_, low, high - low) == 0 &&
      os::is_private_anonymous(maps_fd_, low, high))
    return true;
  refusals_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void Watch::end(State& all, std::uintptr_t low, std::uintptr_t high) {
  watched_.fetch_sub(1, std::memory_order_relaxed);
  LockGuard guard(ranges_lock_);
  disarm(all, page_low(low), page_high(high));
}

// The first part of [low, high) that must go on being watched: for a registration, or since it is
// retired and wants the event of its unmapping. {high, high}: none. Under ranges_lock_.
ByteRanges::Range Watch::first_kept(State& all, std::uintptr_t low, std::uintptr_t high) {
  ByteRanges::Range first{high, high};
  auto take = [&](std::uintptr_t base, std::uintptr_t end) {
    base = page_low(base) > low ? page_low(base) : low;
    if (base < first.low) first = {base, page_high(end)};
  };
  for (Domain& domain : all.domains) {
    if (domain.phase.load(std::memory_order_acquire) == rdmalloc::regcache::Phase::kUnused)
      continue;
    auto look = [&](Registration* reg) {
      if (!reg->rest().is_watched) return true;
      take(reg->base(), reg->end());
      return false;  // by rising base, in each stripe
    };
    RangeGuard guard(domain, low, high);
    each_stripe(domain, low, high, [&](Stripe& stripe) {
      visit_overlapping(stripe.by_range.root(), low, high, look);
      return true;
    });
    visit_in_flight(domain, low, high, [&](Registration* reg) {
      if (reg->rest().is_watched) take(reg->base(), reg->end());
      return true;
    });
  }
  ByteRanges::Range retired;
  if (retired_.find_first(low, high, &retired)) take(retired.low, retired.high);
  return first;
}

// Ends the kernel's watching of the parts of [low, high) that no registration needs. Under
// ranges_lock_, so that nothing there begins meanwhile. Errors: a part of it is memory of another
// kind by now, and the rest is watched to no use until it is unmapped, which costs an event then.
void Watch::disarm(State& all, std::uintptr_t low, std::uintptr_t high) {
  // Once stopped or not begun, the descriptor is none.
  Phase phase = phase_.load(std::memory_order_acquire);
  if (phase != Phase::kOn && phase != Phase::kGivenUp) return;
  while (low < high) {
    ByteRanges::Range kept = first_kept(all, low, high);
    if (kept.low > low) os::userfault_unregister(fd_, low, kept.low - low);
    low = kept.high;
  }
}

// ---- the two threads ----

// Everything is unwatched, and all that waits for us has been read. The reader must run.
void Watch::disarm_all() {
  {
    LockGuard guard(ranges_lock_);
    os::userfault_unregister_all(fd_, maps_fd_);
  }
  // The kernel still sends events of changes that began before, and their threads wait. (Closing
  // the descriptor would release them, but not while a child of a raw clone has it open.)
  while (os::userfault_settled(fd_) == -EAGAIN) os::sleep_ns(100000);
}

// Whether the process has no thread left but ours; then everything is unwatched, for exit handlers
// will unmap memory whose events no thread reads any more.
bool Watch::is_ending() {
  if (!are_only_helpers_left()) return false;
  if (!life_lock_.try_lock()) return false;
  phase_.store(Phase::kEnded, std::memory_order_seq_cst);
  disarm_all();
  pthread_detach(reader_);
  pthread_detach(helper_);
  os::event_raise(stop_fd_);
  life_lock_.unlock();
  return true;
}

void Watch::help() {
  for (;;) {
    // Acquire: pairs with the release in wake().
    std::uint32_t seen = wake_.load(std::memory_order_acquire);
    if (phase_.load(std::memory_order_acquire) == Phase::kStopping) return;
    apply(*all_);
    for (std::size_t i = 0; i < kMostDomains; ++i) {
      Domain& domain = all_->domains[i];
      if (domain.phase.load(std::memory_order_acquire) == rdmalloc::regcache::Phase::kIsOpen &&
          domain.is_any_thread())
        drain_deferred(domain);
    }
    std::int64_t tick_ns =
        last_thread_tick_ns(first_thread_has_ended.load(std::memory_order_acquire));
    if (tick_ns != 0 && is_ending()) return;
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&wake_), seen,
                   tick_ns != 0 ? tick_ns : -1);
  }
}

// Whether the kernel answers userfault_settled() as is_settled() needs it: -EAGAIN while the
// helper's unmapping of the probe waits for its event to be read. Before the reader is there.
int Watch::try_question() {
  bool has_event = false;
  for (;;) {
    // Acquire, here and below: pairs with the release on the helper.
    bool is_over = probe_.load(std::memory_order_acquire) != Probe::kThere;
    has_event = os::userfault_has_event(fd_);
    if (has_event || is_over) break;
    os::sleep_ns(20000);
  }
  bool is_told = has_event && os::userfault_settled(fd_) == -EAGAIN &&
                 !os::should_fail(os::Site::kUserfaultOrder);
  os::UserfaultEvent event;
  while (probe_.load(std::memory_order_acquire) == Probe::kThere)
    if (os::userfault_read(fd_, &event, 1) == 0) os::sleep_ns(20000);
  if (probe_.load(std::memory_order_relaxed) == Probe::kRefused) return -ENOMEM;
  return is_told ? 0 : -ENOSYS;
}

void Watch::end_helper() {
  phase_.store(Phase::kStopping, std::memory_order_seq_cst);
  wake();
  pthread_join(helper_, nullptr);
}

int Watch::create_threads() {
  std::atomic<std::uintptr_t>& ring = watch_survivors.ring;
  if (ring.load(std::memory_order_relaxed) == 0) {
    std::uintptr_t base = 0;
    if (int error = os::map_metadata(kRing * sizeof(os::UserfaultEvent), &base)) return error;
    ring.store(base, std::memory_order_relaxed);
  }
  ring_ = reinterpret_cast<os::UserfaultEvent*>(ring.load(std::memory_order_relaxed));
  auto run_reader = [](void* self) -> void* {
    helper_thread_begins("rdmalloc-watch");
    static_cast<Watch*>(self)->read_events();
    helper_thread_ends();
    helper_threads.fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  };
  auto run_helper = [](void* self) -> void* {
    helper_thread_begins("rdmalloc-unmap");
    is_helper_thread = true;
    auto* mine = static_cast<Watch*>(self);
    bool is_gone = os::unreserve(mine->probe_page_, os::page_bytes()) == 0;
    // Release: pairs with the acquires in try_question().
    mine->probe_.store(is_gone ? Probe::kGone : Probe::kRefused, std::memory_order_release);
    mine->help();
    helper_thread_ends();
    helper_threads.fetch_sub(1, std::memory_order_relaxed);
    return nullptr;
  };
  // Stacks of rdmalloc's: libc would unmap a stack of its own on the thread that must read the
  // event of that.
  if (int error = os::reserve(0, os::page_bytes(), &probe_page_)) return error;
  probe_.store(Probe::kThere, std::memory_order_relaxed);
  int error = os::userfault_register(fd_, probe_page_, os::page_bytes());
  helper_threads.fetch_add(2, std::memory_order_relaxed);
  if (error == 0)
    error = helper_thread_create(&watch_survivors.helper_stack, kHelperStackBytes, run_helper, this,
                                 &helper_);
  if (error != 0) {
    helper_threads.fetch_sub(2, std::memory_order_relaxed);
    return error;
  }
  error = try_question();
  if (error == 0)
    error = helper_thread_create(&watch_survivors.reader_stack, kReaderStackBytes, run_reader, this,
                                 &reader_);
  if (error == 0) return 0;
  helper_threads.fetch_sub(1, std::memory_order_relaxed);
  end_helper();
  return error;
}

// ---- from the first domain to the last ----

void Watch::begin_fork() {
  forks_.fetch_add(1, std::memory_order_seq_cst);
  forker_.store(thread_id(), std::memory_order_relaxed);
  for (int i = 0; i < kForkTurns && unnoted_.load(std::memory_order_seq_cst) != 0; ++i)
    os::sleep_ns(kForkTurnNs);
}

void Watch::begin_unnoted() {
  for (int i = 0; i < kForkTurns; ++i) {
    unnoted_.fetch_add(1, std::memory_order_seq_cst);
    std::uint32_t forks = forks_.load(std::memory_order_seq_cst);
    if (forks == 0 || (forks == 1 && is_forking())) return;
    // The fork waits for us, too, so it goes first.
    end_unnoted();
    os::sleep_ns(kForkTurnNs);
  }
  unnoted_.fetch_add(1, std::memory_order_seq_cst);
}

void Watch::close_descriptors() {
  begin_unnoted();
  for (std::atomic<int>& descriptor : watch_survivors.descriptors)
    descriptor.store(-1, std::memory_order_relaxed);
  for (int fd : {fd_, maps_fd_, stop_fd_})
    if (fd >= 0) os::close_file(fd);
  end_unnoted();
}

// 0, or why there are not all three.
int Watch::open_descriptors() {
  begin_unnoted();
  fd_ = os::userfault_open();
  maps_fd_ = fd_ < 0 ? fd_ : os::moved_away(os::open_to_read("/proc/self/maps"));
  stop_fd_ = fd_ < 0 ? fd_ : os::event_open();
  int fds[] = {fd_, maps_fd_, stop_fd_};
  for (int i = 0; i < 3; ++i)
    watch_survivors.descriptors[i].store(fds[i] < 0 ? -1 : fds[i], std::memory_order_relaxed);
  end_unnoted();
  return fd_ < 0 ? fd_ : maps_fd_ < 0 ? maps_fd_ : stop_fd_ < 0 ? stop_fd_ : 0;
}

// Whether forks wait for those who open or close descriptors. Under life_lock_: a second caller may
// open one once the handler is there, not sooner.
static bool make_forks_wait() {
  std::atomic<bool>& has_handler = watch_survivors.has_fork_handler;
  if (has_handler.exchange(true, std::memory_order_relaxed)) return true;
  if (!os::should_fail(os::Site::kForkHandler) &&
      pthread_atfork([] { watch->begin_fork(); }, [] { watch->end_fork(); }, close_in_child) == 0)
    return true;
  has_handler.store(false, std::memory_order_relaxed);
  return false;
}

int Watch::start(State& all) {
  all_ = &all;
  if (!make_forks_wait()) return -ENOMEM;
  int error = open_descriptors();
  if (fd_ < 0) return error;
  most_ranges_ = os::most_mappings() / 4;
  has_marked_all_ = false;
  // Of an earlier life, whose ranges the kernel watches no more.
  retired_.clear();
  watched_.fetch_sub(quarantined_.exchange(0, std::memory_order_relaxed),
                     std::memory_order_relaxed);
  probe_.store(Probe::kGone, std::memory_order_relaxed);
  if (error == 0) error = create_threads();
  if (error == 0) return 0;
  // No thread reads the event of its unmapping: the watching ends first.
  bool is_left = probe_.load(std::memory_order_relaxed) != Probe::kGone;
  if (is_left) os::userfault_unregister(fd_, probe_page_, os::page_bytes());
  close_descriptors();
  if (is_left) os::unreserve(probe_page_, os::page_bytes());
  return error;
}

void Watch::attach(State& all) {
  LockGuard guard(life_lock_);
  ++domains_;
  begin_if_wanted(all);
}

void Watch::quiesce() {
  LockGuard guard(life_lock_);
  stop();
}

void Watch::resume(State& all) {
  LockGuard guard(life_lock_);
  if (domains_ != 0) begin_if_wanted(all);
}

// Under life_lock_.
void Watch::begin_if_wanted(State& all) {
  Phase phase = phase_.load(std::memory_order_relaxed);
  if (options().foreign != ForeignMode::kWatch || phase != Phase::kOff) return;
  notify_first_thread_ends.store(
      [] {
        first_thread_has_ended.store(true, std::memory_order_release);
        if (Watch* now = watch.get()) now->wake();
      },
      std::memory_order_release);
  int error = start(all);
  error_.store(error, std::memory_order_relaxed);
  // Once, until it has worked.
  if (error != 0 && !has_warned_)
    warn(error == -EPERM ? "userfaultfd is not permitted" : "it could not begin", error);
  has_warned_ = error != 0;
  watch_was_used.store(true, std::memory_order_relaxed);
  // Release: pairs with the acquires of threads that use what start() made.
  phase_.store(error == 0 ? Phase::kOn : Phase::kRefused, std::memory_order_release);
}

void Watch::detach() {
  LockGuard guard(life_lock_);
  if (--domains_ == 0) stop();
}

// No domain is open, so nothing can be got any more; what could not be deregistered is unwatched.
void Watch::stop() {
  Phase phase = phase_.load(std::memory_order_relaxed);
  if (phase == Phase::kOn || phase == Phase::kGivenUp) {
    end_helper();
    disarm_all();
    os::event_raise(stop_fd_);
    pthread_join(reader_, nullptr);
    if (is_still_ours(fd_)) close_descriptors();
  }
  // What is in the ring is of memory that is watched no more.
  applied_.store(head_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  if (phase != Phase::kEnded) phase_.store(Phase::kOff, std::memory_order_relaxed);
}

Watch::Counters Watch::counters() {
  Phase phase = phase_.load(std::memory_order_acquire);
  return {phase == Phase::kOn,
          phase == Phase::kRefused || phase == Phase::kGivenUp
              ? error_.load(std::memory_order_relaxed)
              : 0,
          watched_.load(std::memory_order_relaxed),
          head_.load(std::memory_order_relaxed),
          stale_.load(std::memory_order_relaxed),
          unsettled_.load(std::memory_order_relaxed),
          refusals_.load(std::memory_order_relaxed),
          retired_.count()};
}

int Watch::could_watch() {
  constexpr int kUnknown = 1;
  static constinit std::atomic<int> answer{kUnknown};
  // Relaxed: two threads at once ask twice, and get the same answer.
  int known = answer.load(std::memory_order_relaxed);
  if (known != kUnknown) return known;
  if (watch.prepare() != 0) return -ENOMEM;
  LockGuard guard(watch->life_lock_);
  if (!make_forks_wait()) return -ENOMEM;
  watch->begin_unnoted();
  int fd = os::userfault_open();
  if (fd >= 0) os::close_file(fd);
  watch->end_unnoted();
  known = fd < 0 ? fd : 0;
  answer.store(known, std::memory_order_relaxed);
  return known;
}

constinit const Watcher watcher = {
    .prepare = [] { return watch.prepare(); },
    .attach = [](State& all) { watch->attach(all); },
    .detach = [] { watch->detach(); },
    .quiesce = [] { watch->quiesce(); },
    .resume = [](State& all) { watch->resume(all); },
    .is_settled = [] { return watch->is_settled(); },
    .catch_up = [](State& all) { return watch->catch_up(all); },
    .begin = [](std::uintptr_t low, std::uintptr_t high) { return watch->begin(low, high); },
    .end = [](State& all, std::uintptr_t low, std::uintptr_t high) { watch->end(all, low, high); },
    .quarantined = [] { watch->quarantined(); },
};

}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_watch_stats(rdmalloc_watch_counters* wanted) {
  if (int error = rdmalloc::check_struct(wanted)) return error;
  Watch::Counters now = {};
  if (watch.get() != nullptr) now = watch->counters();
  if (!now.is_on && now.error == 0) now.error = Watch::could_watch();
  std::uint64_t is_on = now.is_on ? 1 : 0;
  rdmalloc_watch_counters stats = {sizeof stats,  is_on,        now.error,
                                   now.watched,   now.events,   now.stale,
                                   now.unsettled, now.refusals, now.retired};
  rdmalloc::write_struct(stats, wanted);
  return 0;
}
