// A domain that the program has abandoned ends while the verbs shim opens one: its registrar gives
// its protection domain back, and registers, by way of the shim. Seen to hang when the shim held
// its lock meanwhile, and to fail when it did not look once more afterwards: it had two domains for
// one protection domain. The test's own limit ends a hang, and shows where.
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdmalloc/regcache.h>
#include <stdio.h>
#include <stdlib.h>

#undef ibv_reg_mr

extern "C" unsigned long stub_ibverbs_registrations;

namespace {

constexpr std::size_t kBytes = 100000;
ibv_pd of_program = {}, of_shim = {};
void* block = nullptr;
int closes = 0;

void check(bool is_right, int line) {
  if (is_right) return;
  fprintf(stderr, "%s:%d is not so\n", __FILE__, line);
  exit(1);
}

bool register_once() {
  ibv_mr* mr = ibv_reg_mr(&of_shim, block, kBytes, IBV_ACCESS_LOCAL_WRITE);
  return mr != nullptr && mr->lkey == 7 && mr->addr == block && ibv_dereg_mr(mr) == 0;
}

void close_own(void*) {
  closes += ibv_dealloc_pd(&of_program) == 0 && register_once();
}

}  // namespace

int main() {
  block = malloc(kBytes);
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "own";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = [](void*, void*, size_t, uint32_t, rdmalloc_key*) { return 0; };
  ops.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
  ops.close = close_own;
  rdmalloc_domain* domain = nullptr;
  check(rdmalloc_domain_open(&ops, nullptr, nullptr, &domain) == 0, __LINE__);
  rdmalloc_reg* held = nullptr;
  check(rdmalloc_reg_get(domain, block, kBytes, RDMALLOC_ACCESS_LOCAL, &held) == 0, __LINE__);
  check(rdmalloc_domain_abandon(domain) == -EINPROGRESS, __LINE__);
  rdmalloc_reg_put(held);
  check(closes == 0, __LINE__);
  check(register_once(), __LINE__);
  check(closes == 1, __LINE__);
  check(stub_ibverbs_registrations == 1, __LINE__);
  check(ibv_dealloc_pd(&of_shim) == 0, __LINE__);
  check(register_once() && stub_ibverbs_registrations == 2, __LINE__);
  free(block);
  return 0;
}
