// I10: everything that begins and ends, a thousand times, in orders that change, after failures
// too, with the registrars loaded and closed by dlopen each time; and free() after the end.
//
//   cycles_program LIBRDMALLOC_URING LIBRDMALLOC_MLOCK ROUNDS
//
// Afterwards the process holds what it held after the first rounds: descriptors, threads, mappings,
// pinned and locked pages. Seen to fail: with a ring left open by its domain. Prints "SKIP: …"
// where there is no io_uring.
#include <dlfcn.h>
#include <rdmalloc/registrar_mlock.h>
#include <rdmalloc/registrar_uring.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "tests/faults/held.h"
#include "tests/support/kernel_has.h"

namespace {

using faults::require;

constexpr std::size_t kBlock = 300000;
constexpr int kWarmUp = 30;

struct Cycle {
  int round = 0;
  void *uring_library = nullptr, *mlock_library = nullptr;
  rdmalloc_domain* domains[2] = {};
  rdmalloc_uring* uring = nullptr;
  rdmalloc_heap* heap = nullptr;
  rdmalloc_pool* pool = nullptr;
  char *block = nullptr, *in_heap = nullptr;
  rdmalloc_reg* regs[2] = {};

  bool is(int one, int of) const { return round % of == one; }
};

template <class Function>
Function* function(void* library, const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(library, name));
  require(found != nullptr, "%s is not there", name);
  return found;
}

int open_uring(Cycle& cycle) {
  return function<decltype(rdmalloc_domain_open_uring)>(
      cycle.uring_library, "rdmalloc_domain_open_uring")(nullptr, nullptr, &cycle.domains[0],
                                                         &cycle.uring);
}

// No descriptor is left for a ring.
void fail_to_open(Cycle& cycle) {
  rlimit before = {}, none = {};
  getrlimit(RLIMIT_NOFILE, &before);
  none.rlim_max = before.rlim_max;
  setrlimit(RLIMIT_NOFILE, &none);
  int error = open_uring(cycle);
  setrlimit(RLIMIT_NOFILE, &before);
  require(error == -EMFILE && cycle.domains[0] == nullptr, "a ring without a descriptor: %d",
          error);
}

void begin(Cycle& cycle, char** libraries) {
  for (int i = 0; i < cycle.round % 3; ++i) require(rdmalloc_init() == 0, "init");
  cycle.uring_library = dlopen(libraries[1], RTLD_NOW | RTLD_LOCAL);
  cycle.mlock_library = dlopen(libraries[2], RTLD_NOW | RTLD_LOCAL);
  if (!require(cycle.uring_library != nullptr && cycle.mlock_library != nullptr, "%s", dlerror()))
    exit(1);
  if (cycle.is(1, 4)) fail_to_open(cycle);
  require(open_uring(cycle) == 0, "a ring");
  require(function<decltype(rdmalloc_domain_open_mlock)>(
              cycle.mlock_library, "rdmalloc_domain_open_mlock")(nullptr, &cycle.domains[1]) == 0,
          "a domain that locks");
}

void work(Cycle& cycle) {
  cycle.block = static_cast<char*>(malloc(kBlock));
  for (int i = 0; i < 2; ++i)
    require(rdmalloc_reg_get(cycle.domains[i], cycle.block, kBlock, RDMALLOC_ACCESS_LOCAL,
                             &cycle.regs[i]) == 0,
            "a registration");
  rdmalloc_heap_attr attr = {};
  attr.size = sizeof attr;
  attr.budget_bytes = 2 << 20;
  attr.domains = cycle.domains;
  attr.domain_count = 2;
  require(rdmalloc_heap_create(&attr, &cycle.heap) == 0, "a heap");
  cycle.in_heap = static_cast<char*>(rdmalloc_heap_malloc(cycle.heap, 5000));
  require(cycle.in_heap != nullptr, "a block of the heap");
  rdmalloc_pool_attr buffers = {};
  buffers.size = sizeof buffers;
  buffers.small_count = 16;
  buffers.large_count = 2;
  require(rdmalloc_pool_create(cycle.domains, 2, &buffers, &cycle.pool) == 0, "a pool");
}

void finalise(Cycle& cycle) {
  for (int i = 0; i < cycle.round % 3; ++i) require(rdmalloc_fini() == 0, "fini");
  require(rdmalloc_fini() == -EALREADY, "one fini more than init");
}

// Finalises first, in the middle, or last.
void end(Cycle& cycle) {
  if (cycle.is(0, 5)) finalise(cycle);
  if (cycle.is(0, 2)) free(cycle.block);
  require(rdmalloc_domain_close(cycle.domains[0]) == -EBUSY, "closed with registrations in use");
  for (rdmalloc_reg* reg : cycle.regs) rdmalloc_reg_put(reg);
  if (cycle.is(1, 5)) finalise(cycle);
  if (cycle.is(0, 3)) require(rdmalloc_pool_destroy(cycle.pool) == 0, "the pool goes");
  require(rdmalloc_heap_destroy(cycle.heap) == 0, "the heap goes");
  if (!cycle.is(0, 3)) require(rdmalloc_pool_destroy(cycle.pool) == 0, "the pool goes");
  if (cycle.is(2, 5)) finalise(cycle);
  int first = cycle.round % 2;
  require(rdmalloc_domain_close(cycle.domains[first]) == 0, "a domain closes");
  if (cycle.is(3, 5)) finalise(cycle);
  require(rdmalloc_domain_close(cycle.domains[1 - first]) == 0, "the other one closes");
  if (cycle.is(4, 5)) finalise(cycle);
  require(dlclose(first == 0 ? cycle.uring_library : cycle.mlock_library) == 0, "dlclose");
  require(dlclose(first != 0 ? cycle.uring_library : cycle.mlock_library) == 0, "dlclose");
  if (!cycle.is(0, 2)) free(cycle.block);  // after the end
}

bool has_io_uring(char** libraries) {
  Cycle probe;
  probe.uring_library = dlopen(libraries[1], RTLD_NOW | RTLD_LOCAL);
  if (!require(probe.uring_library != nullptr, "%s", dlerror())) exit(1);
  if (int error = rdmalloc_test::io_uring_error()) {
    std::printf("SKIP: no io_uring here: %s\n", strerror(error));
    return false;
  }
  if (!require(open_uring(probe) == 0, "the probe opens")) exit(1);
  require(rdmalloc_domain_close(probe.domains[0]) == 0, "the probe closes");
  return true;
}

faults::Held settled() {
  rdmalloc_purge(0);
  rdmalloc_test::settled_thread_count();
  faults::Held now = faults::held();
  faults::count_mappings(&now);
  return now;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  if (!has_io_uring(argv)) return 77;
  int rounds = atoi(argv[3]);
  faults::Held early = {};
  for (int round = 0; round < rounds && faults::mistakes == 0; ++round) {
    faults::where = "round " + std::to_string(round);
    Cycle cycle;
    cycle.round = round;
    begin(cycle, argv);
    faults::visit_processors();
    work(cycle);
    end(cycle);
    if (round == kWarmUp) early = settled();
  }
  faults::where = "at the end";
  faults::Held late = settled();
  require(late.descriptors == early.descriptors, "%d descriptors, %d before", late.descriptors,
          early.descriptors);
  require(late.threads <= early.threads, "%d threads, %d before", late.threads, early.threads);
  require(late.pinned_kib == early.pinned_kib, "%zu KiB pinned", late.pinned_kib);
  require(late.locked_kib == early.locked_kib, "%zu KiB locked", late.locked_kib);
  require(faults::mapped_bytes(late) <= faults::mapped_bytes(early),
          "%zu bytes are mapped, %zu before", faults::mapped_bytes(late),
          faults::mapped_bytes(early));
  std::printf("%d rounds, %d mistakes\n", rounds, faults::mistakes);
  return faults::mistakes == 0 ? 0 : 1;
}
