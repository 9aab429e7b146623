// SPDX-License-Identifier: BSD-3-Clause
//
// For mpi_pauses.py: one initialisation and finalisation of MPI, with purges at 1 kHz. Prints
// "purges BEFORE AFTER holds N".
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>

#include "tests/notifiers/preloaded.h"

int main() {
  using rdmalloc_test::Churn;
  if (dlsym(RTLD_DEFAULT, "rdmalloc_ctl") == nullptr) {
    printf("librdmalloc.so must be preloaded\n");
    return 2;
  }
  Churn churn;
  Churn::wait_for_purges(5);
  uint64_t before = Churn::purges();
  MPI_Init(nullptr, nullptr);
  Churn::wait_for_purges(5);
  MPI_Finalize();
  Churn::wait_for_purges(5);
  printf("purges %llu %llu holds %llu\n", static_cast<unsigned long long>(before),
         static_cast<unsigned long long>(Churn::purges()),
         static_cast<unsigned long long>(rdmalloc_test::state_of(RDMALLOC_NOTIFIER_OPAL).holds));
  return 0;
}
