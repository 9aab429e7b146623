// Steps of a program that may fail: looked at when they do, and repeated.
#pragma once

#include <errno.h>
#include <rdmalloc/rdmalloc.h>
#include <rdmalloc/regcache.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "alloc/os/fault.h"
#include "tests/faults/held.h"

namespace faults {

namespace os = rdmalloc::os;

inline std::vector<rdmalloc_domain*> open_domains;
// What is merely kept for the next use is no matter of a step.
inline void drop_idle() {
  for (rdmalloc_domain* domain : open_domains) rdmalloc_domain_flush(domain);
}

inline void require_as_before(const Held& before, const char* what) {
  // Hangs where one is left. Looked at once only: whom the purge thread makes, to read files, is
  // called as the purge thread until it first runs, and then counts no more.
  rdmalloc_test::wait_for_threads(before.threads);
  drop_idle();
  Held now = held();
  std::size_t kept_kib = counter("stats.quarantined_bytes") / 1024;
  require(now.descriptors == before.descriptors, "%s: %d descriptors, before it %d", what,
          now.descriptors, before.descriptors);
  require(now.pinned_kib <= before.pinned_kib + kept_kib, "%s: %zu KiB pinned, before it %zu", what,
          now.pinned_kib, before.pinned_kib);
  kept_kib += now.forgotten_kib - before.forgotten_kib;
  require(now.locked_kib <= before.locked_kib + kept_kib, "%s: %zu KiB locked, before it %zu", what,
          now.locked_kib, before.locked_kib);
}

// `step` returns 0 or a negative errno. When it fails everything is as before, and it can be
// repeated.
template <class Step>
void attempt(const char* what, Step step) {
  std::string outer = where;
  where += std::string(", ") + what;
  drop_idle();
  Held before = held();
  std::uint64_t fired = os::faults_fired();
  int error = step();
  if (error != 0) {
    require(error < 0 && error > -4096, "returned %d", error);
    require(os::faults_fired() != fired, "failed (%d) without a fault", error);
    require_as_before(before, "after the failure");
    error = step();
    require(error == 0, "failed again: %d, %s", error, rdmalloc_strerror(error));
    if (error != 0) {
      std::printf("fired 0\n");
      std::exit(1);
    }
  }
  where = outer;
}

inline void* allocate(std::size_t bytes) {
  errno = 0;
  void* block = rdmalloc_malloc(bytes);
  if (block != nullptr) return block;
  require(errno == ENOMEM, "malloc(%zu) failed with errno %d", bytes, errno);
  block = rdmalloc_malloc(bytes);
  require(block != nullptr, "malloc(%zu) failed twice", bytes);
  return block;
}

}  // namespace faults
