// SPDX-License-Identifier: BSD-3-Clause
//
// What the preloaded library does by itself, for each RDMALLOC_NOTIFY (the argument says which):
// attaching at start-up and at dlopen, forgetting at dlclose, holding purges meanwhile.
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdmalloc/notifier.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "tests/notifiers/preloaded.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::expect;
using rdmalloc_test::failures;
using rdmalloc_test::find;
using rdmalloc_test::open_or_skip;
using rdmalloc_test::state_of;

void purge_something() {
  auto* block = static_cast<volatile char*>(malloc(8u << 20u));
  for (size_t i = 0; i < 8u << 20u; i += 4096) block[i] = 1;
  free(const_cast<char*>(block));
  expect(find<decltype(&rdmalloc_purge)>("rdmalloc_purge")(0) > 0,
         "rdmalloc_purge gives something back");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string mode = argv[1];
  const bool tells = mode == "auto" || mode == "explicit";
  fi_version();  // linked: loaded before main
  expect(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).is_attached == (mode == "explicit"),
         "libfabric's monitor is imported before main when asked for, and only then");
  expect(state_of(RDMALLOC_NOTIFIER_UCX).calls_libc == (mode == "auto" || mode == "hooks"),
         "decommits go through libc where hooks are to hear of them");
  expect(!state_of(RDMALLOC_NOTIFIER_UCX).is_attached, "UCX is not attached before it is loaded");
  for (int round = 0; round < 3; round++) {
    void* ucp = open_or_skip("libucp.so.0", "UCX");
    expect(state_of(RDMALLOC_NOTIFIER_UCX).is_attached == tells, "UCX is attached at its dlopen");
    uint64_t before = state_of(RDMALLOC_NOTIFIER_UCX).notified,
             counted = counter("stats.notified_ucx");
    purge_something();
    expect((counter("stats.notified_ucx") > counted) == tells, "and the statistics count it");
    expect((state_of(RDMALLOC_NOTIFIER_UCX).notified > before) == tells, "UCX is told of a purge");
    dlclose(ucp);
    purge_something();
  }
  return failures != 0;
}
