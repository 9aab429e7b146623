// SPDX-License-Identifier: BSD-3-Clause
//
// For mpi_components.py: Open MPI's components, as files of their own, are loaded and closed again
// and again by the tools' interface; then MPI is initialised, and broadcasts to itself. Prints for
// each cycle
//   cycle N loaded C left L attaches A attached B live_bytes V mappings M fds F
// and at the end "notified T".
#include <dlfcn.h>
#include <mpi.h>
#include <rdmalloc/notifier.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lab/programs/process_state.h"

namespace {

rdmalloc_notifier_info opal_state() {
  rdmalloc_notifier_info info = {};
  info.size = sizeof info;
  auto* state = reinterpret_cast<decltype(&rdmalloc_notifier_state)>(
      dlsym(RTLD_DEFAULT, "rdmalloc_notifier_state"));
  if (state != nullptr) state(RDMALLOC_NOTIFIER_OPAL, &info);
  return info;
}

void cycle(int number) {
  uint64_t attaches = opal_state().attaches;
  int provided = 0;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
  size_t loaded = lab::mappings().components;
  MPI_T_finalize();
  lab::Mappings after = lab::mappings();
  rdmalloc_notifier_info state = opal_state();
  printf(
      "cycle %d loaded %zu left %zu attaches %llu attached %u live_bytes %zu mappings %d fds %d\n",
      number, loaded, after.components, static_cast<unsigned long long>(state.attaches - attaches),
      state.is_attached, lab::live_bytes(), after.count, lab::open_files());
}

}  // namespace

int main(int argc, char** argv) {
  int cycles = argc == 2 ? atoi(argv[1]) : 0;
  for (int number = 1; number <= cycles; number++) cycle(number);
  auto* purge = reinterpret_cast<decltype(&rdmalloc_purge)>(dlsym(RTLD_DEFAULT, "rdmalloc_purge"));
  MPI_Init(nullptr, nullptr);
  void* buffer = malloc(size_t{1} << 20);
  MPI_Bcast(buffer, 1 << 20, MPI_BYTE, 0, MPI_COMM_WORLD);
  free(buffer);
  uint64_t notified = opal_state().notified;
  if (purge != nullptr) purge(0);
  printf("notified %llu\n", static_cast<unsigned long long>(opal_state().notified - notified));
  MPI_Finalize();
  return 0;
}
