// Registers with a verbs protection domain. ibv_reg_mr pins at once and ibv_dereg_mr unpins before
// it returns; both may be called from any thread and grant exactly what is asked, which is all that
// the cache wants to know. No MADV_DONTFORK is set: kernels from 5.12 on copy pinned pages at fork,
// and on older ones ibv_fork_init() is the program's own to call.
#include <errno.h>
#include <rdmalloc/registrar_verbs.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <cstdint>

#include "regcache/registrars/closed.h"
#include "regcache/registrars/fault.h"
#include "regcache/registrars/keep_errno.h"
#include "regcache/registrars/replace.h"

namespace rdmalloc::registrars {
namespace {

struct Context {
  ibv_pd* pd;               // nullptr while quiesced, if it is ours; others read it meanwhile
  ibv_context* own_device;  // opened here, with the pd
  bool is_own;              // not the user's
  unsigned port;
  char device[64];  // by its name it is opened again
};

int flags_of(std::uint32_t access) {
  int flags = 0;
  if ((access & RDMALLOC_ACCESS_LOCAL_WRITE) != 0) flags |= IBV_ACCESS_LOCAL_WRITE;
  if ((access & RDMALLOC_ACCESS_REMOTE_READ) != 0) flags |= IBV_ACCESS_REMOTE_READ;
  // Verbs refuses remote writing without local writing. That widens no peer's rights.
  if ((access & RDMALLOC_ACCESS_REMOTE_WRITE) != 0)
    flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
  if ((access & RDMALLOC_ACCESS_REMOTE_ATOMIC) != 0)
    flags |= IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE;
  return flags;
}

int register_memory(void* context, void* addr, size_t length, uint32_t access,
                    struct rdmalloc_key* key) {
  errno = 0;
  if (should_fail("verbs_register")) return -ENOMEM;
  ibv_mr* registration =
      ibv_reg_mr(static_cast<Context*>(context)->pd, addr, length, flags_of(access));
  if (registration == nullptr) return errno != 0 ? -errno : -EIO;
  key->lkey = registration->lkey;
  key->rkey = (access & RDMALLOC_ACCESS_REMOTE) != 0 ? registration->rkey : 0;
  key->handle = registration;
  return 0;
}

int deregister_memory(void*, void*, size_t, const struct rdmalloc_key* key) {
  if (should_fail("verbs_deregister")) return -EIO;
  return -ibv_dereg_mr(static_cast<ibv_mr*>(key->handle));  // a positive errno, or 0
}

void close_context(void* context) {
  auto* closing = static_cast<Context*>(context);
  if (closing->own_device != nullptr) {
    ibv_dealloc_pd(closing->pd);
    ibv_close_device(closing->own_device);
  }
  free(closing);
}

int open_device(const char* name, unsigned port, ibv_context** device, ibv_pd** pd);

// Ours only: the user closes what the user opened.
int quiesce(void* context) {
  auto* closing = static_cast<Context*>(context);
  if (!closing->is_own) return 0;
  // EBUSY: the user has queue pairs or completion channels over it.
  if (int error = ibv_dealloc_pd(closing->pd)) return -error;
  std::atomic_ref(closing->pd).store(nullptr, std::memory_order_relaxed);
  ibv_close_device(closing->own_device);
  closing->own_device = nullptr;
  return 0;
}

int resume(void* context) {
  auto* opening = static_cast<Context*>(context);
  if (!opening->is_own) return 0;
  ibv_pd* made = nullptr;
  if (int error = open_device(opening->device, opening->port, &opening->own_device, &made))
    return error;
  // Release: pairs with the acquire in rdmalloc_verbs_pd(), for what libibverbs has written.
  std::atomic_ref(opening->pd).store(made, std::memory_order_release);
  return 0;
}

rdmalloc_registrar_ops operations_for(const ibv_device_attr& device) {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "verbs";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
              RDMALLOC_REGISTRAR_EXACT_ACCESS | RDMALLOC_REGISTRAR_PINS;
  ops.register_ = register_memory;
  ops.deregister = deregister_memory;
  ops.quiesce = quiesce;
  ops.resume = resume;
  ops.close = close_context;
  ops.largest = device.max_mr_size;
  ops.max_count = device.max_mr > 0 ? static_cast<std::uint32_t>(device.max_mr) : 0;
  return ops;
}

// Takes over the pd and the device, when that is ours, also when it fails.
int open_domain(ibv_pd* pd, ibv_context* own_device, unsigned port,
                const rdmalloc_domain_attr* attr, rdmalloc_domain** domain) {
  auto* context = allocate<Context>();
  if (context == nullptr) {
    if (own_device != nullptr) {
      ibv_dealloc_pd(pd);
      ibv_close_device(own_device);
    }
    return -ENOMEM;
  }
  *context = {pd, own_device, own_device != nullptr, port, {}};
  strncpy(context->device, ibv_get_device_name(pd->context->device), sizeof context->device - 1);
  ibv_device_attr device = {};
  int error = !should_fail("verbs_query") && ibv_query_device(pd->context, &device) == 0 ? 0 : -EIO;
  if (error == 0) {
    rdmalloc_registrar_ops ops = operations_for(device);
    // A protection domain of the user's may outlive a quiesce, and with it what it could not undo.
    if (context->is_own) ops.flags |= RDMALLOC_REGISTRAR_REOPEN;
    error = rdmalloc_domain_open(&ops, context, attr, domain);
  }
  if (error != 0) close_context(context);
  return error;
}

// 0 when `port` (0: any) of the device is active.
int check_port(ibv_context* device, unsigned port) {
  ibv_device_attr attributes = {};
  if (should_fail("verbs_query") || ibv_query_device(device, &attributes) != 0) return -EIO;
  if (port > attributes.phys_port_cnt) return -EINVAL;
  for (unsigned one = 1; one <= attributes.phys_port_cnt; one++) {
    ibv_port_attr state = {};
    if (port != 0 && one != port) continue;
    if (should_fail("verbs_query")) continue;
    if (ibv_query_port(device, static_cast<std::uint8_t>(one), &state) == 0 &&
        state.state == IBV_PORT_ACTIVE)
      return 0;
  }
  return -ENETDOWN;
}

// The device named `name`, or the first that will do. -ENODEV, or why the last would not.
int find_device(const char* name, unsigned port, ibv_context** device) {
  int count = 0;
  if (should_fail("verbs_device")) return -ENODEV;
  ibv_device** list = ibv_get_device_list(&count);
  int error = -ENODEV;
  for (int i = 0; list != nullptr && i < count; i++) {
    if (name != nullptr && strcmp(ibv_get_device_name(list[i]), name) != 0) continue;
    errno = 0;
    *device = should_fail("verbs_device") ? nullptr : ibv_open_device(list[i]);
    if (*device == nullptr) {
      error = errno != 0 ? -errno : -EIO;
      continue;
    }
    error = check_port(*device, port);
    if (error == 0) break;
    ibv_close_device(*device);
    *device = nullptr;
  }
  if (list != nullptr) ibv_free_device_list(list);
  return error;
}

// The same, with a protection domain over it. Both, or neither.
int open_device(const char* name, unsigned port, ibv_context** device, ibv_pd** pd) {
  if (int error = find_device(name, port, device)) return error;
  errno = 0;
  *pd = should_fail("verbs_pd") ? nullptr : ibv_alloc_pd(*device);
  if (*pd != nullptr) return 0;
  int error = errno != 0 ? -errno : -EIO;
  ibv_close_device(*device);
  *device = nullptr;
  return error;
}

}  // namespace
}  // namespace rdmalloc::registrars

using namespace rdmalloc::registrars;

extern "C" int rdmalloc_domain_open_verbs(struct ibv_pd* pd,
                                          const struct rdmalloc_domain_attr* attr,
                                          struct rdmalloc_domain** domain) {
  KeepErrno keep;
  if (pd == nullptr || domain == nullptr) return -EINVAL;
  return open_domain(pd, nullptr, 0, attr, domain);
}

extern "C" int rdmalloc_domain_open_verbs_device(const char* device, unsigned port,
                                                 const struct rdmalloc_domain_attr* attr,
                                                 struct ibv_pd** pd,
                                                 struct rdmalloc_domain** domain) {
  KeepErrno keep;
  if (pd == nullptr || domain == nullptr) return -EINVAL;
  ibv_context* opened = nullptr;
  ibv_pd* made = nullptr;
  if (int error = open_device(device, port, &opened, &made)) return error;
  int error = open_domain(made, opened, port, attr, domain);
  if (error == 0) *pd = made;
  return error;
}

extern "C" int rdmalloc_verbs_pd(struct rdmalloc_domain* domain, struct ibv_pd** pd) {
  rdmalloc_registrar_ops ops = {};
  ops.register_ = register_memory;
  void* context = nullptr;
  if (pd == nullptr || rdmalloc_domain_context(domain, &ops, &context) != 0) return -EINVAL;
  // Acquire: pairs with the release in resume() and rdmalloc_verbs_set_pd().
  *pd = std::atomic_ref(static_cast<Context*>(context)->pd).load(std::memory_order_acquire);
  return *pd != nullptr ? 0 : why_closed(domain);
}

extern "C" int rdmalloc_verbs_set_pd(struct rdmalloc_domain* domain, struct ibv_pd* pd) {
  void* context = nullptr;
  int error = pd != nullptr ? replaceable(domain, register_memory, &context) : -EINVAL;
  if (context == nullptr) return error;
  auto* of_domain = static_cast<Context*>(context);
  if (of_domain->is_own) return -EINVAL;
  // Release: as in resume().
  if (error == 0) std::atomic_ref(of_domain->pd).store(pd, std::memory_order_release);
  return error;
}
