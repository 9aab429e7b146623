// SPDX-License-Identifier: BSD-3-Clause
//
// RDMALLOC_NOTIFY=explicit: of each purge a cache hears, by the call or through libc's madvise, in
// whatever way its library came. The argument says which way; each was seen to fail, by a purge of
// which nothing was heard or by a notifier that was not attached:
//
//   closing   while a dlclose() of something else lasts longer than purges are held
//   again     attached by AUTO after a detach, and after the next dlclose() of anything
//   runpath   loaded by a name that its caller's DT_RUNPATH leads to
//   rpath     likewise, to which DT_RPATH of the library leads that its caller was loaded for. Seen
//             to fail, since it was not found, when only the caller's own was looked at
//   renamed   from a file called libucm-1a2b3c4d.so.0, as wheels of Python carry it
//   child     in a child of fork, while a thread of its parent was inside the loader; a purge there
//             was seen to hang
//   child_first  likewise, and what the child asks first its parent never asked: to attach, and to
//             open a domain. Both were seen to hang (dl_iterate_phdr), and to find no library where
//             the child's walk found nothing
//   unknown   no library that is known, but a jump at the head of libc's madvise
#include <dlfcn.h>
#include <link.h>
#include <rdmalloc/notifier.h>
#include <rdmalloc/regcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "tests/notifiers/preloaded.h"
#include "tests/notifiers/stub_ucm.h"

namespace {

using rdmalloc_test::can_patch_madvise;
using rdmalloc_test::expect;
using rdmalloc_test::failures;
using rdmalloc_test::find;
using rdmalloc_test::open;

StubUcm* ucm = nullptr;
std::atomic<size_t> unknown_bytes{0};

int unknown_hook(void* address, size_t length, int advice) {
  if (advice == MADV_DONTNEED) unknown_bytes += length;
  return static_cast<int>(syscall(SYS_madvise, address, length, advice));
}

size_t heard() {
  return unknown_bytes + (ucm != nullptr ? ucm->hooked + ucm->called : 0);
}

// Whether something is heard of each byte of a purge.
bool is_heard() {
  static auto purge = find<decltype(&rdmalloc_purge)>("rdmalloc_purge");
  purge(0);
  constexpr size_t kBytes = 2u << 20u;
  auto* block = static_cast<char*>(malloc(kBytes));
  memset(block, 1, kBytes);
  __asm__ volatile("" : : "r"(block) : "memory");
  free(block);
  size_t before = heard();
  int64_t purged = purge(0);
  return purged > 0 && heard() - before >= static_cast<size_t>(purged);
}

bool is_attached() {
  return rdmalloc_test::state_of(RDMALLOC_NOTIFIER_UCX).is_attached != 0;
}

void open_ucm(void* library) {
  ucm = reinterpret_cast<StubUcm* (*)()>(dlsym(library, "stub_ucm_state"))();
}

void while_another_closes() {
  open_ucm(open(STUB_UCM));
  expect(is_attached() && is_heard(), "it is told");
  void* slow = open(SLOW_TO_CLOSE);
  std::atomic<bool> is_closed{false};
  std::thread closer([&] {
    dlclose(slow);
    is_closed = true;
  });
  int purges = 0, unheard = 0;
  for (; !is_closed; purges++) unheard += is_heard() ? 0 : 1;
  closer.join();
  if (unheard != 0) printf("%d of %d purges\n", unheard, purges);
  expect(unheard == 0, "it is told while another library closes");
}

void after_detach_and_attach() {
  open_ucm(open(STUB_UCM));
  auto detach = find<decltype(&rdmalloc_notifier_detach)>("rdmalloc_notifier_detach");
  auto attach = find<decltype(&rdmalloc_notifier_attach)>("rdmalloc_notifier_attach");
  expect(detach(RDMALLOC_NOTIFIER_UCX) == 0, "it can be detached");
  expect(is_heard(), "then libc's hooks hear of it");
  expect(attach(RDMALLOC_NOTIFIER_AUTO) == 0, "and attached");
  dlclose(open(UNMAPS_AT_END));
  expect(is_attached(), "it stays attached after a dlclose of something else");
  expect(is_heard(), "and told");
}

// Runs body in a child that is forked while another thread is inside dl_iterate_phdr(); its exit
// status. A child that hangs ends with the test, at its limit.
template <typename Body>
int in_child_of_a_walk(Body body) {
  std::atomic<bool> is_inside{false}, is_over{false};
  auto stay = [&] {
    is_inside = true;
    while (!is_over) usleep(1000);
  };
  std::thread walker([&] {
    dl_iterate_phdr(
        [](dl_phdr_info*, size_t, void* arg) {
          (*static_cast<decltype(stay)*>(arg))();
          return 1;
        },
        &stay);
  });
  while (!is_inside) usleep(1000);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body());
  }
  int status = -1;
  waitpid(child, &status, 0);
  is_over = true;
  walker.join();
  if (status != 0) printf("the child: status %#x\n", status);
  return status;
}

void in_a_child() {
  open_ucm(open(STUB_UCM));
  expect(is_attached() && is_heard(), "it is told");
  expect(in_child_of_a_walk([] { return is_heard() ? 0 : 1; }) == 0,
         "a purge of the child is heard too");
}

// The first errors are the steps' numbers.
int ask_first() {
  if (find<decltype(&rdmalloc_notifier_attach)>("rdmalloc_notifier_attach")(
          RDMALLOC_NOTIFIER_UCX) != 0)
    return 1;
  if (!is_attached()) return 2;
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "of a child";
  ops.flags = RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = [](void*, void*, size_t, uint32_t, rdmalloc_key*) { return 0; };
  ops.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
  rdmalloc_domain* domain = nullptr;
  if (find<decltype(&rdmalloc_domain_open)>("rdmalloc_domain_open")(&ops, nullptr, nullptr,
                                                                    &domain) != 0)
    return 3;
  return find<decltype(&rdmalloc_domain_close)>("rdmalloc_domain_close")(domain) == 0 ? 0 : 4;
}

void first_in_a_child() {
  open_ucm(open(STUB_UCM));
  expect(find<decltype(&rdmalloc_notifier_detach)>("rdmalloc_notifier_detach")(
             RDMALLOC_NOTIFIER_UCX) == 0,
         "it is detached before the fork");
  expect(in_child_of_a_walk(ask_first) == 0, "a child attaches it and opens a domain");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (!can_patch_madvise()) return 77;
  const std::string how = argv[1];
  if (how == "closing") {
    while_another_closes();
  } else if (how == "again") {
    after_detach_and_attach();
  } else if (how == "child") {
    in_a_child();
  } else if (how == "child_first") {
    first_in_a_child();
  } else if (how == "runpath" || how == "rpath") {
    void* has_opener = open(how == "rpath" ? RPATH_OF_OPENER : RUNPATH_OPENER);
    auto* opener = reinterpret_cast<void* (*)(const char*)>(dlsym(has_opener, "open_here"));
    void* library = opener("libucm.so.0");
    if (library == nullptr) return printf("%s\n", dlerror()), 1;
    open_ucm(library);
    expect(is_heard(), "it is told at once");
    dlclose(open(UNMAPS_AT_END));
    expect(is_attached() && is_heard(), "and by a call later");
  } else if (how == "renamed") {
    open_ucm(open(RENAMED_UCM));
    expect(is_attached(), "it is found by what it exports");
    expect(is_heard(), "and told");
  } else {
    expect(patch_madvise(unknown_hook), "libc's madvise is patched");
    expect(is_heard(), "who patches libc is told through it");
  }
  return failures != 0;
}
