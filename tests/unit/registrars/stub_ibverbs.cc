// The few functions of libibverbs that the shim stands in front of, for a test of its own state:
// what is registered is only counted.
#include <infiniband/verbs.h>

#include <cstdlib>

// <infiniband/verbs.h> makes macros of these.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

extern "C" {

// What came as far as here.
unsigned long stub_ibverbs_registrations = 0;

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int) {
  __atomic_fetch_add(&stub_ibverbs_registrations, 1, __ATOMIC_RELAXED);
  auto* mr = static_cast<ibv_mr*>(calloc(1, sizeof(ibv_mr)));
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->lkey = 7;
  return mr;
}
int ibv_dereg_mr(ibv_mr* mr) {
  free(mr);
  return 0;
}
int ibv_dealloc_pd(ibv_pd*) {
  return 0;
}
}
