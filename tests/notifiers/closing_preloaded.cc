// SPDX-License-Identifier: BSD-3-Clause
//
// A library that is notified by a call is unloaded, with the settings as they are by default: no
// purge may call what is no longer there. The argument says what happens meanwhile:
//
//   nested     its destructor closes another library
//   threads    other threads open and close libraries and purge
//   child      a child of fork closes it, while a thread of its parent was inside its function and
//              another in the midst of a dlclose()
//   handler    a fork handler that was there first makes a thread that closes it in the child
//   looked_at  another thread looks at the libfabric that alone holds it, and that is closed then
//   inside     a purge is in its function: a detach waits for that, a dlclose does for a while only
//   detached   the user detaches it while other threads look again what is loaded
//   passing    rdmalloc does not see the dlclose(): it is linked statically
//
// Seen to fail: nested, passing and, in one run of seven, threads by a purge that crashed, when
// each end of a dlclose() looked what is loaded and nothing was kept; looked_at by such a purge
// too, when the look let go of libfabric outside the count of closes; detached, in 14 of 20,000
// rounds, when a detach was noted after it was done; child by a library that was kept and by an
// attach that was refused, when a child had its parent's counts; handler by such an attach, when
// the child's were stored over what that thread had counted.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rdmalloc/notifier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "regcache/notifiers/notifiers.h"
#include "tests/notifiers/closing_library.h"
#include "tests/notifiers/expect.h"

namespace {

using rdmalloc_test::expect;
using rdmalloc_test::failures;
using rdmalloc_test::open;

#ifdef PREFIXED
decltype(&rdmalloc_purge) purge = rdmalloc_purge;
decltype(&rdmalloc_notifier_attach) attach = rdmalloc_notifier_attach;
decltype(&rdmalloc_notifier_detach) detach = rdmalloc_notifier_detach;
decltype(&rdmalloc_notifier_state) state = rdmalloc_notifier_state;
#define malloc rdmalloc_malloc
#define free rdmalloc_free
#else
using rdmalloc_test::find;
auto purge = find<decltype(&rdmalloc_purge)>("rdmalloc_purge");
auto attach = find<decltype(&rdmalloc_notifier_attach)>("rdmalloc_notifier_attach");
auto detach = find<decltype(&rdmalloc_notifier_detach)>("rdmalloc_notifier_detach");
auto state = find<decltype(&rdmalloc_notifier_state)>("rdmalloc_notifier_state");
#endif

void purge_something() {
  constexpr size_t kBytes = 2u << 20u;
  void* block = malloc(kBytes);
  memset(block, 1, kBytes);
  __asm__ volatile("" : : "r"(block) : "memory");
  free(block);
  purge(0);
}

bool is_attached() {
  rdmalloc_notifier_info info = {};
  info.size = sizeof info;
  return state(RDMALLOC_NOTIFIER_UCX, &info) == 0 && info.is_attached != 0;
}

bool is_there() {
  void* library = dlopen(CLOSING_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}
ClosingLibrary* state_of(void* library) {
  return reinterpret_cast<ClosingLibrary* (*)()>(dlsym(library, "closing_library_state"))();
}

void nested() {
  for (int round = 0; round < 3; round++) {
    void* library = open(CLOSING_LIBRARY);
    expect(is_attached(), "it is attached");
    ClosingLibrary* closing = state_of(library);
    closing->to_close = open(UNMAPS_AT_END);
    purge_something();
    expect(closing->calls > 0, "and called");
    dlclose(library);
    expect(!is_there(), "it can be unloaded");
    expect(!is_attached(), "and is then not attached");
    purge_something();
  }
}

// A purge that is in the library until `closing` lets it go.
std::thread purge_inside(ClosingLibrary* closing) {
  closing->stays_inside = true;
  closing->is_inside = false;
  std::thread inside(purge_something);
  while (!closing->is_inside) usleep(1000);
  return inside;
}

void inside() {
  void* library = open(CLOSING_LIBRARY);
  ClosingLibrary* closing = state_of(library);
  std::thread purger = purge_inside(closing);
  std::atomic<bool> has_let_go{false};
  std::thread opener([&] {
    usleep(20000);
    has_let_go = true;
    closing->stays_inside = false;
  });
  expect(detach(RDMALLOC_NOTIFIER_UCX) == 0, "it is detached");
  expect(has_let_go, "once no purge is in it");
  opener.join();
  purger.join();
  expect(attach(RDMALLOC_NOTIFIER_UCX) == 0, "and attached again");
  rdmalloc_notifier_info info = {};
  info.size = sizeof info;
  expect(state(RDMALLOC_NOTIFIER_UCX, &info) == 0 && info.attaches == 2, "which is counted");
  purger = purge_inside(closing);
  dlclose(library);
  expect(is_there(), "it is kept while a purge is in it");
  if (failures != 0) fflush(stdout), _exit(1);
  closing->stays_inside = false;
  purger.join();
}

void among_threads() {
  std::atomic<bool> is_over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; i++)
    threads.emplace_back([] {
      for (int round = 0; round < 400; round++) {
        void* library = open(CLOSING_LIBRARY);
        if (round % 3 == 0) attach(RDMALLOC_NOTIFIER_UCX);
        dlclose(library);
      }
    });
  threads.emplace_back([] {
    for (int round = 0; round < 400; round++) dlclose(open(UNMAPS_AT_END));
  });
  std::thread purger([&] {
    while (!is_over) purge_something();
  });
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  purger.join();
  // Where a thread that looked held it as another closed it, it stays, and is called.
  expect(is_attached() == is_there(), "it is attached if it is there");
  void* library = open(CLOSING_LIBRARY);
  expect(is_attached(), "once more it is attached");
  purge_something();
  expect(state_of(library)->calls > 0, "and called");
}

// Before anything is attached. The fork may come too early, and then proves nothing.
void in_a_child_of_a_first_close() {
  void* slow = open(SLOW_TO_CLOSE);
  std::thread closer([&] { dlclose(slow); });
  usleep(100000);
  pid_t child = fork();
  if (child == 0) {
    open(CLOSING_LIBRARY);
    _exit(is_attached() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  expect(status == 0, "the child attaches what it opens");
  closer.join();
}

void in_a_child() {
  in_a_child_of_a_first_close();
  void* library = open(CLOSING_LIBRARY);
  ClosingLibrary* closing = state_of(library);
  closing->stays_inside = true;
  std::thread inside(purge_something);
  while (!closing->is_inside) usleep(1000);
  pid_t child = fork();
  if (child == 0) {
    dlclose(library);
    if (is_there()) printf("it is kept in the child\n"), _exit(1);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  expect(status == 0, "the child unloads what only a thread of its parent is in");
  closing->stays_inside = false;
  inside.join();

  // The library outlives the begin of this dlclose, which forgets it, and does not end before it
  // was seen to. Seen to hang where it did: stopped for 0.7 s just then, this thread saw it
  // attached again.
  void* slow = open(SLOW_TO_CLOSE);
  auto* stays = static_cast<std::atomic<bool>*>(dlsym(slow, "slow_to_close_stays"));
  *stays = true;
  std::thread closer([&] { dlclose(slow); });
  while (is_attached()) usleep(1000);
  child = fork();
  if (child == 0) {
    int error = attach(RDMALLOC_NOTIFIER_UCX);
    if (error != 0) printf("an attach in the child: %d\n", error);
    _exit(error == 0 ? 0 : 1);
  }
  status = -1;
  waitpid(child, &status, 0);
  expect(status == 0, "the child attaches what a thread of its parent forgot for a while");
  *stays = false;
  closer.join();
  expect(is_attached(), "and so does the parent, later");
}

// A thread of the child's stays inside a dlclose() from before rdmalloc's fork handler to after it.
bool closes_in_children = false;
std::atomic<bool> is_inside{false}, may_end{false};
std::thread closer_in_child;

void close_in_child() {
  if (!closes_in_children) return;
  closer_in_child = std::thread([] {
    void* library = open(CLOSING_LIBRARY);
    state_of(library)->at_end = [] {
      is_inside = true;
      while (!may_end) usleep(1000);
    };
    dlclose(library);
  });
  while (!is_inside) usleep(1000);
}

void handler() {
  pthread_atfork(nullptr, nullptr, close_in_child);
  dlclose(open(CLOSING_LIBRARY));
  closes_in_children = true;
  pid_t child = fork();
  if (child == 0) {
    may_end = true;
    closer_in_child.join();
    open(CLOSING_LIBRARY);
    expect(is_attached(), "the child attaches what it opens");
    _exit(failures != 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  expect(status == 0, "the child has counted its closes");
}

void* fabric;

void looked_at() {
  fabric = open(FABRIC_OVER_UCM);
  expect(is_attached(), "it is attached");
  ClosingLibrary* closing = state_of(fabric);
  closing->at_look = [] { std::thread([] { dlclose(fabric); }).join(); };
  void* another = open(UNMAPS_AT_END);  // and the libraries are looked at
  expect(!is_there() || closing->at_look == nullptr, "libfabric was looked at");
  expect(is_attached() == is_there(), "it is attached if it is there");
  purge_something();
  dlclose(another);
}

#ifdef PREFIXED
void detached() {
  open(CLOSING_LIBRARY);
  std::atomic<bool> is_over{false};
  std::atomic<unsigned> looks[2] = {};
  std::vector<std::thread> threads;
  for (std::atomic<unsigned>& mine : looks)
    threads.emplace_back([&] {
      for (; !is_over; mine++) rdmalloc::notifiers_rescan();
    });
  for (int round = 0; round < 20000 && failures == 0; round++) {
    while (attach(RDMALLOC_NOTIFIER_UCX) == -EAGAIN) {
    }
    expect(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_UCX) == 0, "it is detached");
    if (!is_attached()) continue;
    // Perhaps for the rest of a look that had begun before.
    for (std::atomic<unsigned>& one : looks)
      for (unsigned seen = one; one == seen;) std::this_thread::yield();
    expect(!is_attached(), "and stays so");
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
}
#endif

void passing() {
  void* library = open(CLOSING_LIBRARY);
  expect(attach(RDMALLOC_NOTIFIER_UCX) == 0, "it is attached");
  dlclose(library);
  purge_something();
  expect(is_attached() && is_there(), "it stays");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string how = argv[1];
  if (how == "nested") {
    nested();
  } else if (how == "inside") {
    inside();
  } else if (how == "threads") {
    among_threads();
  } else if (how == "child") {
    in_a_child();
  } else if (how == "handler") {
    handler();
  } else if (how == "looked_at") {
    looked_at();
#ifdef PREFIXED
  } else if (how == "detached") {
    detached();
#endif
  } else {
    passing();
  }
  return failures != 0;
}
