// UCX as a registrar: one ucp_mem_h for each registration.
#include <errno.h>
#include <rdmalloc/registrar_ucx.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>

#include "regcache/registrars/fault.h"
#include "regcache/registrars/keep_errno.h"
#include "regcache/registrars/probe.h"
#include "regcache/registrars/replace.h"

namespace rdmalloc::registrars {
namespace {

struct Context {
  ucp_context_h ucp;  // the user's
  bool is_for_any_thread;
};

constexpr std::uint32_t kRemote = RDMALLOC_ACCESS_REMOTE_READ | RDMALLOC_ACCESS_REMOTE_WRITE;

int errno_of(ucs_status_t status) {
  switch (status) {
    case UCS_OK:
      return 0;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    // What becomes of every error of ibv_reg_mr, most of which are limits: eviction may help.
    case UCS_ERR_IO_ERROR:
      return -ENOMEM;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
      return -EINVAL;
    case UCS_ERR_UNSUPPORTED:
      return -ENOTSUP;
    default:
      return -EIO;
  }
}

bool is_exactly(ucp_mem_h memory, const void* addr, std::size_t length) {
  ucp_mem_attr_t attr = {};
  attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
  return !should_fail("ucx_query") && ucp_mem_query(memory, &attr) == UCS_OK &&
         attr.address == addr && attr.length == length;
}

// The packed remote key, or nullptr with *status set.
rdmalloc_ucx_rkey* pack(ucp_context_h ucp, ucp_mem_h memory, ucs_status_t* status) {
  auto* rkey = allocate<rdmalloc_ucx_rkey>();
  *status = UCS_ERR_NO_MEMORY;
  if (rkey == nullptr) return nullptr;
  void* packed = nullptr;
  if (!should_fail("ucx_pack")) *status = ucp_rkey_pack(ucp, memory, &packed, &rkey->length);
  if (*status != UCS_OK) {
    free(rkey);
    return nullptr;
  }
  rkey->packed = packed;
  return rkey;
}

int unmap(ucp_context_h ucp, ucp_mem_h memory) {
  return should_fail("ucx_deregister") ? -EIO : errno_of(ucp_mem_unmap(ucp, memory));
}

// After `error`: what is registered goes, or the cache must know that it can't.
int undo(ucp_context_h ucp, ucp_mem_h memory, int error) {
  return unmap(ucp, memory) == 0 ? error : -ENOTRECOVERABLE;
}

int ucx_register(void* context, void* addr, std::size_t length, std::uint32_t access,
                 rdmalloc_key* key) {
  ucp_context_h ucp = static_cast<Context*>(context)->ucp;
  bool is_remote = (access & RDMALLOC_ACCESS_REMOTE) != 0;
  // An atomic is a read and a write: a peer that may do those gains nothing by it.
  if (is_remote && (access & kRemote) != kRemote) return -EACCES;
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = addr;
  params.length = length;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  ucp_mem_h memory = nullptr;
  if (should_fail("ucx_register")) return -ENOMEM;
  ucs_status_t status = ucp_mem_map(ucp, &params, &memory);
  if (status != UCS_OK) return errno_of(status);
  if (!is_exactly(memory, addr, length)) return undo(ucp, memory, -EACCES);
  if (is_remote) {
    key->rkey = reinterpret_cast<std::uintptr_t>(pack(ucp, memory, &status));
    if (status != UCS_OK) return undo(ucp, memory, errno_of(status));
  }
  key->handle = memory;
  return 0;
}

int ucx_deregister(void* context, void*, std::size_t, const rdmalloc_key* key) {
  if (const rdmalloc_ucx_rkey* rkey = rdmalloc_ucx_rkey_of(key)) {
    ucp_rkey_buffer_release(const_cast<void*>(rkey->packed));
    free(const_cast<rdmalloc_ucx_rkey*>(rkey));
  }
  return unmap(static_cast<Context*>(context)->ucp, static_cast<ucp_mem_h>(key->handle));
}

void ucx_close(void* context) {
  free(context);
}

// Registers two ranges of `bytes` that overlap by half, and ends one after the other. 1: each was
// registered by itself, and the kernel counts its pages no more; 0: it still does, or UCX joined
// the two; or UCX's error, or why the kernel can't be asked. A probe that could not be unmapped is
// never freed: UCX may reach it still.
int try_probe(Context& context, void** memory, std::size_t bytes) {
  char* probe = static_cast<char*>(*memory);
  long piece_kb = static_cast<long>(bytes >> 10), before_kb = pinned_kb();
  if (before_kb < 0) return static_cast<int>(before_kb);
  rdmalloc_key first = {}, second = {};
  int error = ucx_register(&context, probe, bytes, RDMALLOC_ACCESS_LOCAL, &first);
  if (error == -ENOTRECOVERABLE) *memory = nullptr;
  if (error != 0) return error == -EACCES ? 0 : error;
  error = ucx_register(&context, probe + bytes / 2, bytes, RDMALLOC_ACCESS_LOCAL, &second);
  bool is_apart = error == 0;
  int failed = ucx_deregister(&context, probe, bytes, &first);
  // One that was joined with the other would hold half as much again.
  long of_one_kb = pinned_kb();
  is_apart = is_apart && of_one_kb - before_kb <= piece_kb + piece_kb / 4;
  if (second.handle != nullptr)
    if (int of_second = ucx_deregister(&context, probe + bytes / 2, bytes, &second))
      failed = of_second;
  if (failed != 0 || error == -ENOTRECOVERABLE) {
    *memory = nullptr;
    return failed != 0 ? failed : error;
  }
  if (error != 0) return error == -EACCES ? 0 : error;
  long after_kb = of_one_kb < 0 ? of_one_kb : pinned_kb();
  if (after_kb < 0) return static_cast<int>(after_kb);
  return is_apart && after_kb - before_kb <= piece_kb / 4 ? 1 : 0;
}

// Whether ucp_mem_unmap() really ends a registration. UCP keeps a cache over all devices ("try" by
// default), whose regions grow together where they overlap; the verbs transport of UCX before 1.16
// keeps another below it, where pages stay pinned after the last use. 0, -ENOTSUP, or why nothing
// can be registered.
int unmaps_at_once(Context& context) {
  constexpr std::size_t kProbeBytes = std::size_t{1} << 16;
  return lets_memory_go(kProbeBytes, 2 * kProbeBytes, [&context](void** probe) {
    return try_probe(context, probe, kProbeBytes);
  });
}

constexpr const char* kWhyNot =
    "UCX's context is not taken for a domain: ucp_mem_map() goes through a cache of UCX's own. Set "
    "UCX_RCACHE_ENABLE=n, and before UCX 1.16 UCX_IB_REG_METHODS=direct, in the environment before "
    "ucp_config_read().";

bool is_for_any_thread(ucp_context_h ucp) {
  ucp_context_attr_t attr = {};
  attr.field_mask = UCP_ATTR_FIELD_THREAD_MODE;
  return !should_fail("ucx_query") && ucp_context_query(ucp, &attr) == UCS_OK &&
         attr.thread_mode == UCS_THREAD_MODE_MULTI;
}

// Fills `context` for a UCP context that registrations can be made with. 0, or why it is none.
int aim(Context& context, ucp_context_h ucp) {
  if (ucp == nullptr) return -EINVAL;
  context = {ucp, is_for_any_thread(ucp)};
  int error = unmaps_at_once(context);
  if (error == -ENOTSUP) say(kWhyNot);
  return error;
}

}  // namespace
}  // namespace rdmalloc::registrars

using namespace rdmalloc::registrars;

extern "C" RDMALLOC_API int rdmalloc_domain_open_ucx(ucp_context* ucp,
                                                     const rdmalloc_domain_attr* attr,
                                                     rdmalloc_domain** domain) {
  KeepErrno keep;
  auto* context = allocate<Context>();
  if (context == nullptr) return -ENOMEM;
  int error = aim(*context, ucp);
  if (error == 0) {
    rdmalloc_registrar_ops ops = {};
    ops.size = sizeof ops;
    ops.name = "ucx";
    ops.flags = RDMALLOC_REGISTRAR_SYNC_DEREG | RDMALLOC_REGISTRAR_EXACT_ACCESS;
    if (context->is_for_any_thread) ops.flags |= RDMALLOC_REGISTRAR_ANY_THREAD;
    ops.register_ = ucx_register;
    ops.deregister = ucx_deregister;
    ops.close = ucx_close;
    error = rdmalloc_domain_open(&ops, context, attr, domain);
  }
  if (error != 0) free(context);
  return error;
}

extern "C" RDMALLOC_API int rdmalloc_ucx_set_context(rdmalloc_domain* domain, ucp_context* ucp) {
  KeepErrno keep;
  void* replaced = nullptr;
  if (int error = replaceable(domain, ucx_register, &replaced)) return error;
  auto* context = static_cast<Context*>(replaced);
  Context next = {};
  if (int error = aim(next, ucp)) return error;
  // The cache was told at the opening on which threads it may call us.
  if (context->is_for_any_thread && !next.is_for_any_thread) return -ENOTSUP;
  *context = next;
  return 0;
}
