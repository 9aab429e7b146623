// SPDX-License-Identifier: BSD-3-Clause
//
// For mpi_pauses.py: one initialisation and finalisation of MPI, with purges at 1 kHz. Prints
// "purges BEFORE AFTER holds N".
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <rdmalloc/notifier.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

namespace {

std::atomic<bool> churn_ends{false};
void* churn(void*) {
  while (!churn_ends) {
    constexpr size_t kBytes = size_t{1} << 20;
    auto* block = static_cast<volatile char*>(malloc(kBytes));
    for (size_t i = 0; i < kBytes; i += 65536) block[i] = 1;
    free(const_cast<char*>(block));
    usleep(1000);
  }
  return nullptr;
}

uint64_t purges() {
  auto control = reinterpret_cast<decltype(&rdmalloc_ctl)>(dlsym(RTLD_DEFAULT, "rdmalloc_ctl"));
  uint64_t value = 0;
  size_t size = sizeof value;
  control("stats.purges", &value, &size, nullptr, 0);
  return value;
}

void wait_for_purges() {
  for (uint64_t begin = purges(); purges() < begin + 5;) usleep(200);
}

}  // namespace

int main() {
  if (dlsym(RTLD_DEFAULT, "rdmalloc_ctl") == nullptr) {
    printf("librdmalloc.so must be preloaded\n");
    return 2;
  }
  pthread_t thread;
  pthread_create(&thread, nullptr, churn, nullptr);
  wait_for_purges();
  uint64_t before = purges();
  MPI_Init(nullptr, nullptr);
  wait_for_purges();
  MPI_Finalize();
  wait_for_purges();
  uint64_t after = purges();
  churn_ends = true;
  pthread_join(thread, nullptr);
  rdmalloc_notifier_info info = {};
  info.size = sizeof info;
  auto state = reinterpret_cast<decltype(&rdmalloc_notifier_state)>(
      dlsym(RTLD_DEFAULT, "rdmalloc_notifier_state"));
  state(RDMALLOC_NOTIFIER_OPAL, &info);
  printf("purges %llu %llu holds %llu\n", static_cast<unsigned long long>(before),
         static_cast<unsigned long long>(after), static_cast<unsigned long long>(info.holds));
  return 0;
}
