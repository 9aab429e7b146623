// A domain that the program has abandoned ends while the verbs shim opens one: its registrar gives
// its protection domain back, and registers, by way of the shim. Seen to hang when the shim held
// its lock meanwhile, and to fail when it did not look once more afterwards: it had two domains for
// one protection domain. The test's own limit ends a hang, and shows where.
#include <errno.h>

#include "tests/unit/registrars/shim_program.h"

namespace {

ibv_pd of_program = {}, of_shim = {};
void* block = nullptr;
int closes = 0;

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
  rdmalloc_registrar_ops ops = own_registrar();
  ops.close = close_own;
  rdmalloc_domain* domain = nullptr;
  check(rdmalloc_domain_open(&ops, nullptr, nullptr, &domain) == 0);
  rdmalloc_reg* held = nullptr;
  check(rdmalloc_reg_get(domain, block, kBytes, RDMALLOC_ACCESS_LOCAL, &held) == 0);
  check(rdmalloc_domain_abandon(domain) == -EINPROGRESS);
  rdmalloc_reg_put(held);
  check(closes == 0);
  check(register_once());
  check(closes == 1);
  check(stub_ibverbs_registrations == 1);
  check(ibv_dealloc_pd(&of_shim) == 0);
  check(register_once() && stub_ibverbs_registrations == 2);
  free(block);
  return 0;
}
