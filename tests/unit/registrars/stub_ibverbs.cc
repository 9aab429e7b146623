// The few functions of libibverbs that the verbs shim stands in front of and that the verbs
// registrar calls, for tests of their own state: what is registered is only counted, and refused
// beyond a number, as by a device whose table is full. One device, which can be taken away.
#include <errno.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

// <infiniband/verbs.h> makes macros of these.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

namespace {

ibv_device the_device = {};
constexpr std::uint32_t kIsMadeHere = 1;  // ibv_pd::handle; the shim's tests have their own

}  // namespace

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
int ibv_dealloc_pd(ibv_pd* pd) {
  if (pd->handle == kIsMadeHere) free(pd);
  return 0;
}

// 0: opening the device works; else its errno, where ENODEV means that it is gone.
int stub_ibverbs_error = 0;

ibv_device** ibv_get_device_list(int* count) {
  *count = stub_ibverbs_error == ENODEV ? 0 : 1;
  auto** list = static_cast<ibv_device**>(calloc(2, sizeof(ibv_device*)));
  if (*count != 0) list[0] = &the_device;
  return list;
}
void ibv_free_device_list(ibv_device** list) {
  free(list);
}
const char* ibv_get_device_name(ibv_device*) {
  return "stub0";
}
ibv_context* ibv_open_device(ibv_device* device) {
  errno = stub_ibverbs_error;
  if (errno != 0) return nullptr;
  auto* context = static_cast<ibv_context*>(calloc(1, sizeof(ibv_context)));
  context->device = device;
  return context;
}
int ibv_close_device(ibv_context* context) {
  if (context->device == &the_device) free(context);  // else a test's own
  return 0;
}
int ibv_query_device(ibv_context*, ibv_device_attr* attr) {
  *attr = {};
  attr->phys_port_cnt = 1;
  attr->max_mr_size = ~std::uint64_t{0};
  attr->max_mr = 1 << 20;
  return 0;
}
int ibv_query_port(ibv_context*, uint8_t, _compat_ibv_port_attr* attr) {
  const ibv_port_state state = IBV_PORT_ACTIVE;  // the first field
  memcpy(attr, &state, sizeof state);
  return 0;
}
ibv_pd* ibv_alloc_pd(ibv_context* context) {
  auto* pd = static_cast<ibv_pd*>(calloc(1, sizeof(ibv_pd)));
  pd->context = context;
  pd->handle = kIsMadeHere;
  return pd;
}
}
