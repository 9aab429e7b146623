#include "regcache/notifiers/closes.h"

#include <pthread.h>

#include <atomic>

#include "alloc/for_regcache.h"
#include "regcache/notifiers/notifiers.h"

namespace rdmalloc {
namespace {

// Threads inside a function of another library: the purge thread, and those that unmap foreign
// memory (written by them, read by dlclose's side).
constinit std::atomic<int> notifying{0};
// How much of `notifying` and of the closes under way is this thread's: all there is in a child
// that it forks. Of a byte: the library's TLS fits into the little that the loader keeps.
constinit thread_local std::uint8_t notifying_here = 0;
constinit thread_local std::uint8_t closing_here = 0;

// One word: the dlcloses under way, whether the last of them must look again, and above, how many
// have begun.
constinit std::atomic<std::uint64_t> closes{0};
constexpr std::uint64_t kOneUnderWay = 1, kLookAgain = std::uint64_t{1} << 31,
                        kOneBegun = std::uint64_t{1} << 32;

std::uint64_t under_way(std::uint64_t word) {
  return word & (kLookAgain - 1);
}
// Whether what is in the counts of the thread that forked this process is there.
constinit std::atomic<bool> is_forker_counted{true};

// In a child of fork the threads that were inside a library or a dlclose are not there. Before any
// thread counts there (fork_check()); if that is one that an earlier fork handler has made, the
// thread that forked adds its part.
void forget_vanished_threads(bool is_forker) {
  notifying.store(is_forker ? notifying_here : 0, std::memory_order_relaxed);
  std::uint64_t begun = closes.load(std::memory_order_relaxed) / kOneBegun * kOneBegun;
  closes.store(begun + (is_forker ? closing_here : 0) * kOneUnderWay, std::memory_order_relaxed);
  is_forker_counted.store(is_forker, std::memory_order_relaxed);
}

// The fork handler, on the thread that forked.
void count_this_thread() {
  fork_check();
  if (is_forker_counted.exchange(true, std::memory_order_relaxed)) return;
  notifying.fetch_add(notifying_here, std::memory_order_seq_cst);
  closes.fetch_add(closing_here * kOneUnderWay, std::memory_order_seq_cst);
}

}  // namespace

// Without the handler, and where the fork went past libc, the thread that comes first is taken for
// the one that forked.
void count_anew_in_children() {
  static constinit std::atomic<bool> is_asked{false};
  if (is_asked.exchange(true, std::memory_order_relaxed)) return;
  count_after_fork.store(forget_vanished_threads, std::memory_order_relaxed);
  if (!os::should_fail(os::Site::kForkHandler)) pthread_atfork(nullptr, nullptr, count_this_thread);
}

// seq_cst: pairs with the additions to the word.
bool is_closing() {
  return under_way(closes.load(std::memory_order_seq_cst)) != 0;
}

void begin_close() {
  count_anew_in_children();
  fork_check();
  ++closing_here;
  closes.fetch_add(kOneBegun + kOneUnderWay, std::memory_order_seq_cst);
}

void end_close(bool must_look) {
  --closing_here;
  std::uint64_t seen = closes.load(std::memory_order_relaxed), left = 0, next = 0;
  do {
    left = (seen - kOneUnderWay) | (must_look ? kLookAgain : 0);
    next = under_way(left) == 0 ? left & ~kLookAgain : left;
    // seq_cst: pairs with is_closing() and with an attach that is refused.
  } while (!closes.compare_exchange_weak(seen, next, std::memory_order_seq_cst));
  if (next != left) notifiers_rescan();
}

void begin_notifying() {
  fork_check();
  notifying.fetch_add(1, std::memory_order_seq_cst);
  ++notifying_here;
}

void end_notifying() {
  --notifying_here;
  notifying.fetch_sub(1, std::memory_order_seq_cst);
}

bool is_any_notifying() {
  return notifying.load(std::memory_order_seq_cst) != 0;
}

bool may_attach(std::uint64_t* word) {
  fork_check();
  *word = closes.load(std::memory_order_seq_cst);
  while (under_way(*word) != 0)
    // seq_cst: pairs with end_close(), which finds the bit, or has ended before.
    if (closes.compare_exchange_weak(*word, *word | kLookAgain, std::memory_order_seq_cst))
      return false;
  return true;
}

bool begin_letting_go(std::uint64_t before) {
  ++closing_here;
  return closes.fetch_add(kOneUnderWay, std::memory_order_seq_cst) / kOneBegun ==
         before / kOneBegun;
}

bool has_close_begun_since(std::uint64_t before) {
  return closes.load(std::memory_order_seq_cst) / kOneBegun != before / kOneBegun;
}

LookedAtLibrary::LookedAtLibrary(const char* known_by)
    : is_refused_(!may_attach(&closes_before_)), library_(is_refused_ ? nullptr : known_by) {}

LookedAtLibrary::~LookedAtLibrary() {
  if (!library_.is_held()) return;
  count_anew_in_children();
  // A dlclose may have left the library to this, and its end may have attached one that the library
  // needs: then it stays.
  if (!begin_letting_go(closes_before_)) library_.keep();
  library_.release();
  end_close(false);
}

}  // namespace rdmalloc
