// SPDX-License-Identifier: BSD-3-Clause
//
// RDMALLOC_NOTIFY=explicit beside closes that begin and end at chosen moments. The argument says
// which:
//
//   looked_at  a look at a library, which counts as a close, begins after a purge has asked whether
//              all can be notified, and ends before it asks again. Seen to fail, by a raw decommit
//              that UCX heard nothing of, when the purge did not note that it had skipped UCX
//   told       a dlclose of another library begins while UCX, whose hooks are off, is told that
//              rdmalloc watches foreign memory, and ends later (I9). Seen to fail: what was
//              unmapped was not reported, during both and ever after, when it was told first
//              and relied on afterwards
#include <errno.h>
#include <link.h>
#include <rdma/fabric.h>
#include <rdma/fi_ext.h>
#include <rdmalloc/notifier.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>
#include <thread>

#include "regcache/notifiers/closes.h"
#include "regcache/notifiers/notifiers.h"
#include "regcache/notifiers/watching.h"
#include "tests/notifiers/expect.h"
#include "tests/notifiers/stub_libfabric.h"
#include "tests/notifiers/stub_ucm.h"

namespace {

using rdmalloc_test::can_patch_madvise;
using rdmalloc_test::expect;
using rdmalloc_test::failures;
using rdmalloc_test::open;

StubUcm* open_ucm() {
  void* library = open(STUB_UCM);
  return reinterpret_cast<StubUcm* (*)()>(dlsym(library, "stub_ucm_state"))();
}

enum class Look { kNone, kWanted, kUnderWay, kOver } look = Look::kNone;

// In libfabric's notification, which comes after UCX's.
void end_look(const void*, size_t) {
  if (look != Look::kUnderWay) return;
  look = Look::kOver;
  rdmalloc::end_close(false);
}

void looked_at() {
  StubUcm* ucm = open_ucm();
  void* library = open(STUB_LIBFABRIC);
  auto* fabric = reinterpret_cast<stub_libfabric* (*)()>(dlsym(library, "stub_libfabric_state"))();
  fabric->notified = end_look;
  expect(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_AUTO) == 0, "UCX is attached");
  expect(fabric->monitor != nullptr, "and libfabric");
  if (failures != 0) return;
  fabric->monitor->export_ops->start(fabric->monitor);
  constexpr size_t kBytes = 2u << 20u;
  rdmalloc_purge(0);
  for (Look next : {Look::kNone, Look::kWanted}) {
    void* block = rdmalloc_malloc(kBytes);
    memset(block, 1, kBytes);
    rdmalloc_free(block);
    size_t called = ucm->called, hooked = ucm->hooked;
    look = next;
    int64_t purged = rdmalloc_purge(0);
    expect(purged > 0, "a purge");
    expect(ucm->called + ucm->hooked - called - hooked >= static_cast<size_t>(purged),
           "UCX hears of all of it");
    if (next == Look::kNone) expect(ucm->hooked == hooked, "the pages go by a raw call");
  }
  expect(look == Look::kOver, "a look began and ended during the purge");
}

StubUcm* teller = nullptr;

// As munmap() of librdmalloc.so does, on another thread.
bool is_unmapping_heard() {
  size_t before = teller->called;
  std::thread([] {
    if (rdmalloc::notifiers_watch_foreign()) rdmalloc::notifiers_notify_foreign(4096, 4096);
  }).join();
  return teller->called == before + 4096;
}

void told() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 1);
  rdmalloc::set_can_watch_foreign([] { return true; });
  teller = open_ucm();
  static int tells = 0;
  teller->at_external = [] {
    tells++;
    expect(is_unmapping_heard(), "from then on UCX hears of what is unmapped");
    rdmalloc::notifiers_close_begin(0);
    expect(is_unmapping_heard(), "while a dlclose is under way too");
  };
  expect(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_UCX) == 0, "UCX is attached");
  expect(is_unmapping_heard(), "after the attach too");
  rdmalloc::notifiers_close_end();
  expect(is_unmapping_heard(), "and after the dlclose");
  expect(tells == 1, "it is told once");
  expect(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_UCX) == -EALREADY, "it stays attached");
  expect(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_UCX) == -EBUSY, "and can't be detached");
  rdmalloc_notifier_info info = {};
  info.size = sizeof info;
  expect(rdmalloc_notifier_state(RDMALLOC_NOTIFIER_UCX, &info) == 0 && info.is_attached != 0 &&
             info.watches_foreign != 0,
         "the state says so");
}

}  // namespace

// Where a purge asks what is loaded; it has found no close under way by then.
extern "C" int dl_iterate_phdr(int (*visit)(dl_phdr_info*, size_t, void*), void* arg) {
  if (look == Look::kWanted) {
    look = Look::kUnderWay;
    rdmalloc::begin_letting_go(0);
  }
  static auto* next =
      reinterpret_cast<decltype(&dl_iterate_phdr)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
  return next(visit, arg);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  if (!can_patch_madvise()) return 77;
  if (strcmp(argv[1], "told") == 0)
    told();
  else
    looked_at();
  return failures != 0;
}
