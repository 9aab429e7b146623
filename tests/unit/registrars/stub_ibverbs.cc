// The few functions of libibverbs that the shim stands in front of, for a test of its own state:
// what is registered is only counted, and refused beyond a number, as by a device whose table is
// full.
#include <errno.h>
#include <infiniband/verbs.h>

#include <cstdlib>

// <infiniband/verbs.h> makes macros of these.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

extern "C" {

// What came as far as here.
unsigned long stub_ibverbs_registrations = 0;
// There at once, and at most.
unsigned long stub_ibverbs_count = 0;
unsigned long stub_ibverbs_most = ~0ul;

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int) {
  __atomic_fetch_add(&stub_ibverbs_registrations, 1, __ATOMIC_RELAXED);
  if (__atomic_add_fetch(&stub_ibverbs_count, 1, __ATOMIC_RELAXED) > stub_ibverbs_most) {
    __atomic_fetch_sub(&stub_ibverbs_count, 1, __ATOMIC_RELAXED);
    errno = ENOMEM;
    return nullptr;
  }
  auto* mr = static_cast<ibv_mr*>(calloc(1, sizeof(ibv_mr)));
  mr->pd = pd;
  mr->addr = address;
  mr->length = length;
  mr->lkey = 7;
  return mr;
}
int ibv_dereg_mr(ibv_mr* mr) {
  __atomic_fetch_sub(&stub_ibverbs_count, 1, __ATOMIC_RELAXED);
  free(mr);
  return 0;
}
int ibv_dealloc_pd(ibv_pd*) {
  return 0;
}
int ibv_close_device(ibv_context*) {
  return 0;
}
}
