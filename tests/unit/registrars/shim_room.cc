// What the verbs shim passes on meets a device that is full of what the shim keeps idle: without
// the shim the program's next registration would have had room. Seen to fail when the shim passed
// on once only, and when it counted every refusal as a second try.
#include <errno.h>
#include <string.h>

#include "tests/unit/registrars/shim_program.h"

namespace {

constexpr int kRemote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
ibv_pd pd = {};

ibv_mr* local(void* block) {
  return ibv_reg_mr(&pd, block, kBytes, IBV_ACCESS_LOCAL_WRITE);
}

// At its exit the shim says what it did for such a program.
int run_counted(const char* program) {
  setenv("RDMALLOC_STATS", "1", 1);
  char line[4096];
  snprintf(line, sizeof line, "%s counted 2>&1", program);
  FILE* output = popen(line, "r");
  check(output != nullptr);
  bool is_said = false;
  while (fgets(line, sizeof line, output) != nullptr) {
    fputs(line, stderr);
    is_said |= strstr(line,
                      "verbs shim: 4 registrations served by 4 real ones, 4 passed on, 2 of them "
                      "tried twice") != nullptr;
  }
  check(pclose(output) == 0);
  check(is_said);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return run_counted(argv[0]);
  // Far from each other: one registration each.
  void* blocks[3];
  for (void*& block : blocks) block = malloc(40 * kBytes);
  stub_ibverbs_most = 3;
  for (void* block : blocks) {
    ibv_mr* mr = local(block);
    check(mr != nullptr && ibv_dereg_mr(mr) == 0);
  }
  check(stub_ibverbs_count == 3);

  // Remote rights are not for us, nor is memory of libc's.
  static char foreign[kBytes];
  ibv_mr* remote = ibv_reg_mr(&pd, blocks[0], kBytes, kRemote);
  check(remote != nullptr && stub_ibverbs_count == 1);
  ibv_mr* of_foreign = ibv_reg_mr(&pd, foreign, kBytes, IBV_ACCESS_LOCAL_WRITE);
  check(of_foreign != nullptr && stub_ibverbs_count == 2);

  // What the program holds stays, and the error is the device's own, of one try.
  ibv_mr* held = local(blocks[1]);
  check(held != nullptr && stub_ibverbs_count == 3);
  unsigned long before = stub_ibverbs_registrations;
  errno = 0;
  check(ibv_reg_mr(&pd, blocks[2], kBytes, kRemote) == nullptr && errno == ENOMEM);
  check(stub_ibverbs_registrations == before + 1 && stub_ibverbs_count == 3);
  check(ibv_dereg_mr(held) == 0);
  check(ibv_reg_mr(&pd, blocks[2], kBytes, kRemote) != nullptr);
  for (void* block : blocks) free(block);
  return 0;
}
