// SPDX-License-Identifier: BSD-3-Clause
//
// For tests in which one thread must meet another at a certain instruction of it: that one goes
// step by step (the processor's trap flag, so for x86-64 only), and stands still at the chosen
// step, in a signal handler, until the test lets it go on; or at each so many steps on its way.
#pragma once

#if defined(__x86_64__)

#include <signal.h>
#include <stdint.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <functional>

namespace rdmalloc_test::by_steps {

inline constexpr int64_t kTrapFlag = 0x100;

// One thread goes by steps at a time.
enum Where : int { kBefore, kStands, kBehind };
inline std::atomic<int> where{kBefore};
inline std::atomic<bool> may_go_on{false};
inline int steps_left;
inline std::atomic<int> steps_between{0};  // after a stand, to the next one; 0: there is none
// Called each 0.1 ms while it stands there; how often so far.
inline void (*while_it_stands)(int looks);

inline void on_trap(int, siginfo_t*, void* context) {
  auto& flags = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
  if (steps_left-- > 0) {
    flags |= kTrapFlag;
    return;
  }
  flags &= ~kTrapFlag;
  if (where != kBefore) return;
  where = kStands;
  for (int looks = 0; !may_go_on; looks++) {
    while_it_stands(looks);
    usleep(100);
  }
  if (steps_between == 0) {
    where = kBehind;
    return;
  }
  steps_left = steps_between;
  flags |= kTrapFlag;
  where = kBefore;
  may_go_on = false;
}

// Runs `body` on this thread, which stands still `steps` instructions later, or at its end where
// that comes before.
inline void go_by_steps(int steps, const std::function<void()>& body) {
  steps_left = steps;
  raise(SIGTRAP);
  body();
  steps_left = 0;
  raise(SIGTRAP);
}

// For the test, while the thread stands: lets it go on to its next stand. `where` is what is new.
inline void go_on() {
  may_go_on = true;
  while (may_go_on) {
  }
}

inline void prepare(void (*then)(int)) {
  where = kBefore;
  may_go_on = false;
  steps_between = 0;
  while_it_stands = then;
  struct sigaction action = {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, nullptr);
}

}  // namespace rdmalloc_test::by_steps

#endif
