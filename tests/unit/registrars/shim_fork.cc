// Forks beside threads that register through the verbs shim: each child registers, too. Seen to
// hang in a child, at the 3rd to 40th fork, when the shim's lock was as the fork had found it. The
// test's own limit ends a hang, and shows where.
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#undef ibv_reg_mr

extern "C" unsigned long stub_ibverbs_registrations;

namespace {

constexpr std::size_t kBytes = 100000;
ibv_pd pd = {};

bool register_once(void* block) {
  ibv_mr* mr = ibv_reg_mr(&pd, block, kBytes, IBV_ACCESS_LOCAL_WRITE);
  return mr != nullptr && mr->lkey == 7 && mr->addr == block && ibv_dereg_mr(mr) == 0;
}

}  // namespace

int main() {
  std::atomic<bool> stops{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&stops] {
      void* block = malloc(kBytes);
      while (!stops)
        if (!register_once(block)) abort();
      free(block);
    });
  void* block = malloc(kBytes);
  int wrong = 0;
  for (int i = 0; i < 300 && wrong == 0; ++i) {
    pid_t child = fork();
    if (child == 0) {
      // The second time by a cache of the child's own. Fails where the child keeps its parent's
      // domains: each goes on to libibverbs.
      unsigned long before = stub_ibverbs_registrations;
      if (!register_once(block) || !register_once(block)) _exit(1);
      _exit(stub_ibverbs_registrations == before + 1 ? 0 : 2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    wrong = status;
    if (wrong != 0) fprintf(stderr, "the child of fork %d ended with status 0x%x\n", i, status);
  }
  stops = true;
  for (std::thread& thread : threads) thread.join();
  return wrong != 0;
}
