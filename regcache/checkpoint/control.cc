#include "regcache/checkpoint/control.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include <atomic>

#include "alloc/for_regcache.h"
#include "regcache/core/at_exit.h"
#include "regcache/core/state.h"

namespace rdmalloc::regcache {
namespace {

constexpr std::size_t kStackBytes = std::size_t{4} << 20;  // registrars and events run on it
constexpr int kMostNumber = 100;

// The process whose thread runs; 0: none. A child of fork finds its parent's.
constinit std::atomic<int> process{0};
constinit HelperStack stack;

// A registrar without ANY_THREAD can't be called from here.
bool needs_users_thread() {
  State* all = state();
  if (all == nullptr) return false;
  for (std::size_t i = 0; i < kMostDomains; ++i) {
    const Domain& domain = all->domains[i];
    // Acquire: pairs with open's release.
    if (domain.phase.load(std::memory_order_acquire) == Phase::kIsOpen && !domain.is_any_thread())
      return true;
  }
  return false;
}

void answer(int number, const char* word, int result) {
  Message name;
  name.text("rdmckpt:").number(static_cast<std::uint64_t>(number)).text(":");
  if (word != nullptr)
    name.text(word);
  else
    name.signed_number(result);
  prctl(PR_SET_NAME, name.c_str());
}

void serve(std::uint32_t value) {
  int number = static_cast<int>(value & 0x7f) % kMostNumber;
  bool resumes = (value & 0x80) != 0;
  answer(number, "busy", 0);
  int result = 0;
  if (exit_has_begun())
    result = -EAGAIN;
  else if (needs_users_thread())
    result = -ENOTSUP;
  else
    result = resumes ? rdmalloc_resume() : rdmalloc_quiesce(static_cast<int>(value >> 8));
  answer(number, nullptr, result);
}

void* wait_for_requests(void*) {
  helper_thread_begins("rdmckpt");
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGRTMAX);
  for (;;) {
    // A process ends with its last thread, and this must not be what keeps it alive.
    timespec tick = {1, 0};
    siginfo_t request = {};
    int signal =
        os::should_fail(os::Site::kWaitRequest) ? -1 : sigtimedwait(&wanted, &request, &tick);
    if (signal == SIGRTMAX)
      serve(static_cast<std::uint32_t>(request.si_value.sival_int));
    else if (are_only_helpers_left())
      break;
  }
  pthread_detach(pthread_self());
  helper_thread_ends();
  helper_threads.fetch_sub(1, std::memory_order_relaxed);
  return nullptr;
}

// As early as a library can be; a program that does not ask for it begins as if this were not here.
__attribute__((constructor)) void control_at_start() {
  if (secure_getenv("RDMALLOC_CHECKPOINT") != nullptr && ensure_initialised()) control_begin();
}

}  // namespace

void control_begin() {
  if (!options().checkpoint) return;
  int here = os::process_id();
  int seen = process.load(std::memory_order_relaxed);
  if (seen == here || !process.compare_exchange_strong(seen, here)) return;
  helper_threads.fetch_add(1, std::memory_order_relaxed);
  pthread_t thread;
  int error = helper_thread_create(&stack, kStackBytes, wait_for_requests, nullptr, &thread);
  if (error == 0) return;
  helper_threads.fetch_sub(1, std::memory_order_relaxed);
  process.store(0, std::memory_order_relaxed);
  report_warning("RDMALLOC_CHECKPOINT: its thread could not be created",
                 helper_thread_remedy(error));
}

}  // namespace rdmalloc::regcache
