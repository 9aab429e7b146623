// Notifies other caches of a purge, after rdmalloc's own cache has released the range and before
// its decommit: the listener of phase "decommit" (alloc/pages/give_back.h). The purge thread
// calls it with no lock held, so it may wait for locks of fabrics. It can't refuse, and answers
// whether the pages may go silently (a raw call) or must go through libc's patched symbol.
//
//   RDMALLOC_NOTIFY   notifies                                     decommits by
//   auto (T0)         OPAL and UCX by their call, when loaded      libc's madvise: hooks hear of it
//   hooks (T0)        no library                                   libc's madvise
//   explicit (T1)     OPAL, UCX and libfabric's imported monitor   a raw call; libc's where it is
//                                                                  not certain that all are
//                                                                  notified
//   off               no library                                   a raw call
//
// Each library watches foreign memory itself. If its user has turned that off and asks for
// `explicit`, interpose/foreign.cc sees unmappings in its place and reports them here (I9).
//
// A second notification, by a hook beside the call, does no harm: it finds nothing registered.
#include "regcache/notifiers/notifiers.h"

#include <dlfcn.h>
#include <errno.h>
#include <rdmalloc/notifier.h>

#include <atomic>

#include "alloc/for_regcache.h"
#include "regcache/core/at_exit.h"
#include "regcache/core/loaded_library.h"
#include "regcache/notifiers/closes.h"
#include "regcache/notifiers/libfabric_monitor.h"
#include "regcache/notifiers/libfabric_race.h"
#include "regcache/notifiers/patched_text.h"
#include "regcache/notifiers/watching.h"

namespace rdmalloc {

namespace detail {
constinit std::atomic<bool> watches_foreign{false};
}

namespace {

// Open MPI's: reports the range as released by an allocator that Open MPI watches.
using OpalRelease = void (*)(void* address, std::size_t length, bool from_alloc);
// UCX's: calls the handlers of UCM_EVENT_VM_UNMAPPED; releases nothing.
using UcmUnmap = void (*)(void* address, std::size_t length);

// kDetached: by the user, and attached again by the user only. kReliesOnUs, for good: the library
// does not watch foreign memory itself. One word: what one thread detaches, no other announces to.
enum class Standing : std::uint8_t { kUsual, kDetached, kReliesOnUs };

template <typename Function>
struct Target {
  std::atomic<Function> function{nullptr};  // forgotten at each dlclose
  // The same, of a library that relies on rdmalloc, and is kept loaded: never forgotten.
  std::atomic<Function> relied_on{nullptr};
  std::atomic<Standing> standing{Standing::kUsual};
  std::atomic<std::uint64_t> attaches{0};
  std::atomic<std::int32_t> error{-ENOENT};

  bool relies_on_us() const {
    // Acquire: pairs with the store in let_rely_on_us(), once the library is kept.
    return relied_on.load(std::memory_order_acquire) != nullptr;
  }
  Function attached() const {
    Function kept = relied_on.load(std::memory_order_acquire);
    return kept != nullptr ? kept : function.load(std::memory_order_acquire);
  }
  // What the user detached may be attached again.
  void end_detachment() {
    Standing seen = Standing::kDetached;
    standing.compare_exchange_strong(seen, Standing::kUsual, std::memory_order_seq_cst);
  }
};
constinit Target<OpalRelease> opal;
constinit Target<UcmUnmap> ucm;
constinit std::atomic<std::uint64_t> fabric_attaches{0};
constinit std::atomic<std::uint64_t> foreign_notified{0}, holds{0};

bool is_explicit() {
  return options().notify == NotifyMode::kExplicit;
}

// What was loaded when a program's thread looked last. The words may be of two different looks:
// then the counts are not the present ones, and is_certain() is false.
struct Known {
  std::atomic<std::uint64_t> loaded{0}, unloaded{0};
  std::atomic<bool> has_opal{false}, has_ucm{false}, has_fabric{false};
  std::atomic<bool> is_fronted{false};  // another madvise stands in front of libc's by its symbol
};
constinit Known known;
// Begins and ends of changes to the list of libraries to notify: a dlclose, an attach, a detach.
constinit std::atomic<std::uint64_t> changes{0};

RDMALLOC_AT_START constinit std::atomic<int (*)(void*)> our_dlclose{nullptr};

// Not where rdmalloc was loaded late, or stands behind libc.
bool is_dlclose_ours() {
  auto* ours = our_dlclose.load(std::memory_order_relaxed);
  return ours != nullptr && dlsym(RTLD_DEFAULT, "dlclose") == reinterpret_cast<void*>(ours);
}

void note_change() {
  // seq_cst: pairs with the loads in notify_all(), before and after its notifications.
  changes.fetch_add(1, std::memory_order_seq_cst);
}

const void* libcs_own() {
  return dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
}

void look_what_is_loaded() {
  if (!is_walk_safe()) return;  // nothing is certain there
  Loads loads = loads_so_far();
  known.has_opal.store(is_loaded(kOpalFunction), std::memory_order_relaxed);
  known.has_ucm.store(is_loaded(kUcmFunction), std::memory_order_relaxed);
  known.has_fabric.store(is_loaded(kFabricFunction), std::memory_order_relaxed);
  const void* front = libc_madvise();
  const void* libc = libcs_own();
  known.is_fronted.store(front != nullptr && libc != nullptr && !lie_together(front, libc),
                         std::memory_order_relaxed);
  known.unloaded.store(loads.unloaded, std::memory_order_relaxed);
  // Release: pairs with the acquire in is_certain().
  known.loaded.store(loads.loaded, std::memory_order_release);
}

// Whether the last look still holds. The walk does not take the lock that constructors run under. A
// child of fork can't walk: a thread that it lacks may hold the walk's own lock.
bool is_certain() {
  if (loader_may_be_locked.load(std::memory_order_relaxed)) return false;
  std::uint64_t loaded = known.loaded.load(std::memory_order_acquire);
  return !is_closing() &&
         loads_so_far() == Loads{loaded, known.unloaded.load(std::memory_order_relaxed)};
}

// Whether the jump at the head of libc's madvise leads to a library that rdmalloc notifies by a
// call.
bool leads_to_a_notified_library(const void* target) {
  auto is_there = [target](auto function) {
    return function != nullptr && lie_together(target, reinterpret_cast<const void*>(function));
  };
  return is_there(opal.attached()) || is_there(ucm.attached());
}

bool is_patched_by_unknown_library() {
  const unsigned char* text = libc_madvise();
  if (text == nullptr || known.is_fronted.load(std::memory_order_relaxed)) return true;
  return begins_with_jump(text) && !leads_to_a_notified_library(jump_target(text));
}

bool fabric_is_notified() {
  if (!known.has_fabric.load(std::memory_order_relaxed)) return true;
  if (opal.attached() != nullptr) return true;  // passes it on
  LibfabricMonitorState state = libfabric_monitor_state();
  return state.is_attached && !state.is_overridden;
}

// Whether some cache could miss a raw decommit.
bool needs_libc() {
  if (options().notify == NotifyMode::kOff) return false;
  if (!is_explicit() || !is_certain() || is_patched_by_unknown_library()) return true;
  auto is_missed = [](const auto& target, const std::atomic<bool>& is_there) {
    return is_there.load(std::memory_order_relaxed) && target.attached() == nullptr;
  };
  return is_missed(opal, known.has_opal) || is_missed(ucm, known.has_ucm) || !fabric_is_notified();
}

// The function that may be called now. One that a dlclose under way may take away is none, and is
// skipped.
template <typename Function>
Function callable(const Target<Function>& target, bool* is_skipped) {
  // Acquire: as in relies_on_us().
  if (Function kept = target.relied_on.load(std::memory_order_acquire)) return kept;
  Function function = target.function.load(std::memory_order_seq_cst);
  if (function == nullptr) return nullptr;
  if (!is_closing()) return function;
  *is_skipped = true;
  return nullptr;
}

// Notifies OPAL and UCX; whether none that is attached was skipped. Any thread; several threads at
// once, and from inside OPAL and UCX too.
bool notify_by_call(std::uintptr_t base, std::size_t length) {
  bool is_skipped = false;
  // Either this thread finds a close under way, or notifiers_close_begin() sees this thread inside.
  begin_notifying();
  auto* address = reinterpret_cast<void*>(base);
  if (OpalRelease release = callable(opal, &is_skipped)) {
    ranges_notified.open_mpi.fetch_add(1, std::memory_order_relaxed);
    release(address, length, true);
  }
  if (UcmUnmap unmap = callable(ucm, &is_skipped)) {
    ranges_notified.ucx.fetch_add(1, std::memory_order_relaxed);
    unmap(address, length);
  }
  end_notifying();
  return !is_skipped;
}

// Whether all that must hear of the range were notified.
bool notify_all(std::uintptr_t base, std::size_t length) {
  // On both sides: what is attached or forgotten in between was perhaps not notified, and libc's
  // hooks are notified twice rather than not at all.
  std::uint64_t before = changes.load(std::memory_order_seq_cst);
  bool is_by_libc = needs_libc();
  // A look at a library counts as a close for a moment, and may have ended before the question
  // below.
  if (!notify_by_call(base, length)) is_by_libc = true;
  libfabric_monitor_notify(base, length);
  return !is_by_libc && changes.load(std::memory_order_seq_cst) == before && !needs_libc();
}
constinit PageListener listener{.decommit = notify_all, .state = PageListener::kActive};

// Whether libc's madvise begins with a jump (I8: read only).
bool is_madvise_patched() {
  const unsigned char* text = libc_madvise();
  return text != nullptr && begins_with_jump(text);
}

template <typename Function>
int attach(Target<Function>& target, const char* symbol) {
  if (target.relies_on_us()) return -EALREADY;
  std::uint64_t before = 0;
  if (!may_attach(&before)) {
    if (target.function.load(std::memory_order_relaxed) == nullptr)
      target.error.store(-EAGAIN, std::memory_order_relaxed);
    return -EAGAIN;
  }
  // After that: one that another call stores, and may take back, is a close under way until it is
  // settled.
  if (target.function.load(std::memory_order_acquire) != nullptr) {
    if (!may_attach(&before)) return -EAGAIN;
    if (target.function.load(std::memory_order_acquire) != nullptr) {
      target.error.store(0, std::memory_order_relaxed);
      return -EALREADY;
    }
  }
  HeldLibrary library(symbol);
  auto function = reinterpret_cast<Function>(library.symbol(symbol));
  int error = function == nullptr ? -ENOENT : 0;
  target.error.store(error, std::memory_order_relaxed);
  if (error != 0) return error;
  page_heap_keep_places();
  hold_at_exit();
  count_anew_in_children();
  // A dlclose may have left the library to the one that lets go of it here, and its end may have
  // attached it: then it stays.
  bool is_kept = !is_dlclose_ours();
  if (!begin_letting_go(before)) is_kept = true;
  if (is_kept) library.keep();
  library.release();
  // No thread calls it before end_close().
  target.function.store(function, std::memory_order_seq_cst);
  // seq_cst, both: a dlclose, or a detach by the user, that begins after the load finds the
  // function, and forgets it.
  if (!is_kept && has_close_begun_since(before)) error = -EAGAIN;
  bool is_detached = target.standing.load(std::memory_order_seq_cst) == Standing::kDetached;
  if (error != 0) target.error.store(error, std::memory_order_relaxed);
  if (is_detached) error = -ENOENT;
  if (error != 0) target.function.store(nullptr, std::memory_order_seq_cst);
  if (error == 0) target.attaches.fetch_add(1, std::memory_order_relaxed);
  note_change();
  end_close(error == -EAGAIN);
  return error;
}

// A library that does not watch foreign memory itself caches nothing until it hears that another
// watches: so all that it then relies on is in place before it is told.
template <typename Function>
void let_rely_on_us(Target<Function>& target, const char* symbol, const ForeignWatch& watch) {
  HeldLibrary library(symbol);  // perhaps not there any more
  auto function = reinterpret_cast<Function>(library.symbol(symbol));
  auto announce = reinterpret_cast<void (*)(int)>(library.symbol(watch.announce_by));
  // Any thread may be about to call it from then on. Also if it is not to be told: to let go could
  // unload what is attached by now.
  library.keep();
  if (function == nullptr || announce == nullptr) return;
  // seq_cst: pairs with detach(). One thread tells it.
  Standing seen = Standing::kUsual;
  if (!target.standing.compare_exchange_strong(seen, Standing::kReliesOnUs,
                                               std::memory_order_seq_cst))
    return;
  target.relied_on.store(function, std::memory_order_release);
  detail::watches_foreign.store(true, std::memory_order_seq_cst);
  announce(watch.argument);
}

// Only if rdmalloc does watch: interpose/foreign.cc is linked in.
template <typename Function>
int attach_and_watch(Target<Function>& target, const char* symbol, const ForeignWatch& watch) {
  int error = attach(target, symbol);
  if (error == 0 && is_explicit() && can_watch_foreign() && watch.hooks_are_off())
    let_rely_on_us(target, symbol, watch);
  return error;
}
int attach_opal() {
  return attach_and_watch(opal, kOpalFunction, opal_watch);
}
int attach_ucm() {
  return attach_and_watch(ucm, kUcmFunction, ucm_watch);
}
int attach_fabric(bool is_by_user) {
  int error = libfabric_monitor_attach(is_by_user);
  if (error == 0) fabric_attaches.fetch_add(1, std::memory_order_relaxed);
  if (error != -ENOENT) page_heap_keep_places();
  if (error == 0) hold_at_exit();
  return error;
}

// In an Open MPI process Open MPI imports the monitor, and OPAL passes notifications on.
bool fabric_is_opals() {
  return is_loaded(kOpalFunction);
}

// Only where something is wrong: hooks beside a library that is notified by a call are as they
// should be. What is loaded but was not looked at yet is no reason, since the rescan that follows
// looks.
void warn_where_hooks_are_needed() {
  static constinit std::atomic<bool> said{false};
  if (!is_explicit() || !is_madvise_patched() || !is_certain() || !needs_libc()) return;
  if (said.exchange(true)) return;
  report_warning("RDMALLOC_NOTIFY=explicit, and another library has patched libc's madvise",
                 "its hooks are still used for our memory: not all can be notified");
}

template <typename Function>
int detach(Target<Function>& target) {
  if (target.attached() == nullptr) return -ENOENT;
  // A library that relies on rdmalloc can't be detached: it may hold registrations by now.
  // seq_cst, and in this order: pairs with the end of attach().
  Standing seen = Standing::kUsual;
  if (!target.standing.compare_exchange_strong(seen, Standing::kDetached,
                                               std::memory_order_seq_cst) &&
      seen == Standing::kReliesOnUs)
    return -EBUSY;
  target.function.store(nullptr, std::memory_order_seq_cst);
  note_change();
  purge_turn_wait();
  return 0;
}

// Whether there was something to forget. A library that relies on rdmalloc stays attached, also
// while other libraries are closed: foreign memory may go at any moment.
template <typename Function>
bool forget(Target<Function>& target) {
  if (target.relies_on_us()) return false;
  return target.function.exchange(nullptr, std::memory_order_seq_cst) != nullptr;
}

// Runs as early as a library can: the libraries of the program are loaded, and the first domain is
// not yet opened.
__attribute__((constructor)) void notifiers_start() {
  ensure_settings();
  NotifyMode mode = options().notify;
  if (mode == NotifyMode::kHooks) libfabric_race_warn();  // else by the rescan
  if (mode == NotifyMode::kOff || mode == NotifyMode::kHooks) return;
  libc_madvise();  // here, and not first inside a library's mprotect()
  notifiers_rescan();
  hold_at_exit();
  events_listen(listener);
}

const char* explain_call(bool is_attached, bool relies_on_us, std::int32_t error) {
  if (relies_on_us) return "notified before each purge, and when foreign memory is unmapped";
  if (is_attached) return "notified by a call before each purge";
  if (error == -EAGAIN) return "a dlclose() is under way: purges go through libc until its end";
  return error == 0 ? "detached" : "its library is not loaded";
}

template <typename Function>
void describe(const Target<Function>& target, const std::atomic<std::uint64_t>& notified,
              rdmalloc_notifier_info* state) {
  state->is_attached = state->is_started = target.attached() != nullptr;
  state->error = target.error.load(std::memory_order_relaxed);
  state->notified = notified.load(std::memory_order_relaxed);
  state->attaches = target.attaches.load(std::memory_order_relaxed);
  state->watches_foreign = target.relies_on_us();
  state->explanation = explain_call(state->is_attached, state->watches_foreign, state->error);
}

const char* explain_fabric(const LibfabricMonitorState& state) {
  if (state.is_attached && state.is_overridden)
    return "imported, but FI_MR_CACHE_MONITOR in the environment overrides it: hooks are used";
  if (state.is_started) return "imported and started: notified before each purge";
  if (state.is_attached) return "imported; no domain caches yet";
  switch (state.error) {
    case -EAGAIN:
      return "a dlclose() was under way: hooks are used until it is attached anew";
    case -EBUSY:
      return "libfabric has an active monitor or one of another importer: hooks are used";
    case -ENOTSUP:
      return "this libfabric takes no monitor (before 1.14), or we were built without its headers";
    case -ENOMEM:
      return "libfabric could not be kept in memory: hooks are used";
    default:
      break;
  }
  if (!is_loaded(kFabricFunction)) return "its library is not loaded";
  return fabric_is_opals() ? "left to Open MPI, which imports a monitor of its own"
                           : "not asked for: libc's madvise reaches its hooks (RDMALLOC_NOTIFY)";
}

}  // namespace

void notifiers_rescan() {
  libfabric_race_warn();
  if (options().notify == NotifyMode::kOff || options().notify == NotifyMode::kHooks) return;
  if (opal.standing.load(std::memory_order_relaxed) != Standing::kDetached) attach_opal();
  if (ucm.standing.load(std::memory_order_relaxed) != Standing::kDetached) attach_ucm();
  if (is_explicit() && !fabric_is_opals()) attach_fabric(false);
  // Last: a library that came after the first look above makes the counts differ.
  if (is_explicit()) look_what_is_loaded();
  warn_where_hooks_are_needed();
}

void notifiers_begin_purging() {
  for (const char* function : {kOpalFunction, kUcmFunction, kFabricFunction})
    if (is_loaded(function)) {
      purge_thread_start();
      return;
    }
  for (const char* function : {kMpiFunction, kVerbsFunction})
    if (is_loaded(function)) page_heap_keep_places();
}

void notifiers_notify_foreign(std::uintptr_t base, std::size_t length) {
  if (length == 0) return;
  foreign_notified.fetch_add(1, std::memory_order_relaxed);
  notify_by_call(base, length);
}

void notifiers_hold() {
  holds.fetch_add(1, std::memory_order_relaxed);
  purge_hold(kTextHoldMs, kTextWaitMs);
}

void notifiers_note_patch() {
  warn_where_hooks_are_needed();
}

const unsigned char* libc_madvise() {
  RDMALLOC_AT_START static constinit std::atomic<const unsigned char*> found{nullptr};
  // Relaxed: every thread that looks finds the same function.
  const unsigned char* text = found.load(std::memory_order_relaxed);
  if (text == nullptr) {
    if (os::should_fail(os::Site::kFindFunction)) return nullptr;
    text = static_cast<const unsigned char*>(dlsym(RTLD_DEFAULT, "madvise"));
    found.store(text, std::memory_order_relaxed);
  }
  return text;
}

void notifiers_close_begin(int wait_ms) {
  begin_close();
  note_change();
  bool had_opal = forget(opal), had_ucm = forget(ucm);
  std::int64_t until = os::monotonic_ns() + std::int64_t{wait_ms} * 1000000;
  while (is_any_notifying()) {
    if (os::monotonic_ns() < until) {
      os::sleep_ns(1000000);
      continue;
    }
    if (had_opal) keep_loaded(kOpalFunction);
    if (had_ucm) keep_loaded(kUcmFunction);
    return;
  }
}

void notifiers_close_end() {
  note_change();
  end_close(true);
}

void notifiers_set_dlclose(int (*ours)(void*)) {
  our_dlclose.store(ours, std::memory_order_relaxed);
}

}  // namespace rdmalloc

using namespace rdmalloc;

extern "C" int rdmalloc_notifier_attach(enum rdmalloc_notifier which) {
  if (!ensure_initialised()) return -ENOMEM;
  int error = -EINVAL;
  switch (which) {
    case RDMALLOC_NOTIFIER_OPAL:
      opal.end_detachment();
      error = attach_opal();
      break;
    case RDMALLOC_NOTIFIER_UCX:
      ucm.end_detachment();
      error = attach_ucm();
      break;
    case RDMALLOC_NOTIFIER_LIBFABRIC:
      error = attach_fabric(true);
      break;
    case RDMALLOC_NOTIFIER_AUTO: {
      opal.end_detachment();
      ucm.end_detachment();
      int errors[3] = {attach_opal(), attach_ucm(),
                       fabric_is_opals() ? -ENOENT : attach_fabric(true)};
      error = -ENOENT;
      for (int one : errors)
        if (one == 0 || one == -EALREADY) error = 0;
      if (error != 0 && errors[2] != -ENOENT) error = errors[2];
      for (int one : errors)
        if (error == -ENOENT && one == -EAGAIN) error = one;
      break;
    }
    default:
      return -EINVAL;
  }
  if (is_explicit()) look_what_is_loaded();
  if (error == 0) events_listen(listener);
  return error;
}

extern "C" int rdmalloc_notifier_detach(enum rdmalloc_notifier which) {
  if (purge_turn_is_mine()) return -EDEADLK;
  switch (which) {
    case RDMALLOC_NOTIFIER_OPAL:
      return detach(opal);
    case RDMALLOC_NOTIFIER_UCX:
      return detach(ucm);
    case RDMALLOC_NOTIFIER_LIBFABRIC: {
      purge_pause();
      int error = libfabric_monitor_detach();
      purge_resume();
      return error;
    }
    case RDMALLOC_NOTIFIER_AUTO: {
      int errors[3] = {detach(opal), detach(ucm),
                       rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_LIBFABRIC)};
      for (int one : errors)
        if (one == -EBUSY) return -EBUSY;
      return errors[0] != 0 && errors[1] != 0 && errors[2] != 0 ? -ENOENT : 0;
    }
  }
  return -EINVAL;
}

extern "C" int rdmalloc_notifier_state(enum rdmalloc_notifier which,
                                       struct rdmalloc_notifier_info* wanted) {
  if (int error = check_struct(wanted)) return error;
  if (!ensure_initialised()) return -ENOMEM;
  rdmalloc_notifier_info state = {};
  state.calls_libc = options().notify != NotifyMode::kOff && needs_libc();
  state.is_madvise_patched = is_madvise_patched();
  state.holds = holds.load(std::memory_order_relaxed);
  state.foreign_notified = foreign_notified.load(std::memory_order_relaxed);
  if (which == RDMALLOC_NOTIFIER_LIBFABRIC) {
    LibfabricMonitorState fabric = libfabric_monitor_state();
    state.is_attached = fabric.is_attached;
    state.is_started = fabric.is_started;
    state.error = fabric.error;
    state.notified = fabric.notified;
    state.attaches = fabric_attaches.load(std::memory_order_relaxed);
    state.refused = fabric.refused;
    state.explanation = explain_fabric(fabric);
    write_struct(state, wanted);
    return 0;
  }
  if (which == RDMALLOC_NOTIFIER_OPAL) {
    describe(opal, ranges_notified.open_mpi, &state);
  } else if (which == RDMALLOC_NOTIFIER_UCX) {
    describe(ucm, ranges_notified.ucx, &state);
  } else {
    return -EINVAL;
  }
  write_struct(state, wanted);
  return 0;
}
