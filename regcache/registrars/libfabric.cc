// libfabric as a registrar: one fid_mr for each registration.
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>
#include <rdmalloc/registrar_libfabric.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "regcache/registrars/fault.h"
#include "regcache/registrars/keep_errno.h"
#include "regcache/registrars/probe.h"
#include "regcache/registrars/replace.h"

namespace rdmalloc::registrars {
namespace {

// What is known of a fid_domain from the fi_info it was opened with.
struct Target {
  fid_domain* domain;
  std::uint64_t key_limit;
  bool chooses_keys;  // the provider does
  bool is_for_any_thread;
};

struct Fabric {
  Target target;
  std::atomic<std::uint64_t> next_key;
};

constexpr std::uint64_t kFirstKey = 1 << 20;  // below it: the program's own registrations
constexpr int kKeyTries = 64;

std::uint64_t access_of(std::uint32_t access) {
  std::uint64_t flags = 0;
  if (access & RDMALLOC_ACCESS_LOCAL_READ) flags |= FI_SEND | FI_WRITE;
  if (access & RDMALLOC_ACCESS_LOCAL_WRITE) flags |= FI_RECV | FI_READ;
  if (access & RDMALLOC_ACCESS_REMOTE_READ) flags |= FI_REMOTE_READ;
  if (access & RDMALLOC_ACCESS_REMOTE_WRITE) flags |= FI_REMOTE_WRITE;
  if (access & RDMALLOC_ACCESS_REMOTE_ATOMIC) flags |= FI_REMOTE_READ | FI_REMOTE_WRITE;
  return flags;
}

// libfabric's errors are errno values up to a point, and its own after that.
int errno_of(int error) {
  return -error < FI_ERRNO_OFFSET ? error : -EIO;
}

int fabric_register(void* context, void* addr, std::size_t length, std::uint32_t access,
                    rdmalloc_key* key) {
  auto* fabric = static_cast<Fabric*>(context);
  const Target& target = fabric->target;
  iovec range = {addr, length};
  fi_mr_attr attr = {};
  attr.mr_iov = &range;
  attr.iov_count = 1;
  attr.access = access_of(access);
  fid_mr* mr = nullptr;
  int error = -FI_ENOKEY;
  for (int i = 0; i < kKeyTries && error == -FI_ENOKEY; ++i) {
    if (!target.chooses_keys) {
      // Relaxed: only has to differ from call to call.
      std::uint64_t count = fabric->next_key.fetch_add(1, std::memory_order_relaxed);
      attr.requested_key = (kFirstKey + count) & target.key_limit;
    }
    error = should_fail("libfabric_register") ? -FI_ENOMEM
                                              : fi_mr_regattr(target.domain, &attr, 0, &mr);
  }
  if (error != 0) return errno_of(error);
  key->lkey = reinterpret_cast<std::uint64_t>(fi_mr_desc(mr));
  key->rkey = (access & RDMALLOC_ACCESS_REMOTE) != 0 ? fi_mr_key(mr) : 0;
  key->handle = mr;
  return 0;
}

int fabric_deregister(void*, void*, std::size_t, const rdmalloc_key* key) {
  if (should_fail("libfabric_deregister")) return -EIO;
  return errno_of(fi_close(&static_cast<fid_mr*>(key->handle)->fid));
}

void fabric_close(void* context) {
  free(context);
}

// Registers and closes one probe. 1: the kernel counts its pages no more; 0: it still does; or the
// provider's error, or why the kernel can't be asked. One that could not be closed is never freed:
// the provider may reach it still.
int try_probe(Fabric& fabric, void** probe, std::size_t bytes) {
  rdmalloc_key key = {};
  long before_kb = pinned_kb();
  if (before_kb < 0) return static_cast<int>(before_kb);
  if (int error = fabric_register(&fabric, *probe, bytes, RDMALLOC_ACCESS_LOCAL, &key))
    return error;
  if (int error = fabric_deregister(&fabric, *probe, bytes, &key)) {
    *probe = nullptr;
    return error;
  }
  long after_kb = pinned_kb();
  if (after_kb < 0) return static_cast<int>(after_kb);
  return after_kb - before_kb < static_cast<long>(bytes >> 11) ? 1 : 0;
}

// Whether closing an MR really ends it. A provider with a cache of its own keeps the pages pinned,
// and then we would decommit under a live registration; verbs' cache moreover grants every remote
// right, whatever was asked (libfabric 1.17 to 2.6, vrb_mr_cache_add_region, also for what its
// internal "no cache" flag keeps out of the cache), so that there is no way round it but turning it
// off. Asked of the provider itself instead of a list of names and settings: register, close, look
// at what the kernel counts. 0, -ENOTSUP, or why nothing can be registered.
int closes_at_once(Fabric& fabric) {
  constexpr std::size_t kProbeBytes = std::size_t{1} << 20, kSmallProbeBytes = std::size_t{1} << 16;
  return lets_memory_go(kSmallProbeBytes, kProbeBytes, [&fabric](void** probe) {
    int result = try_probe(fabric, probe, kProbeBytes);
    // RLIMIT_MEMLOCK, perhaps: a smaller one is the less certain and the better probe then.
    return result == -ENOMEM && *probe != nullptr ? try_probe(fabric, probe, kSmallProbeBytes)
                                                  : result;
  });
}

constexpr const char* kWhyNot =
    "libfabric's domain is not taken: memory stays pinned after fi_close() of its registration, in "
    "a cache of libfabric's own. Set FI_MR_CACHE_MAX_COUNT=0 in the environment before "
    "fi_getinfo().";

// Fills `fabric` for a fid_domain that registrations can be made with. 0, or why it is none.
int aim(Fabric& fabric, fid_domain* domain, const fi_info* info) {
  if (domain == nullptr || info == nullptr || info->domain_attr == nullptr) return -EINVAL;
  auto mode = static_cast<std::uint64_t>(info->domain_attr->mr_mode);
  if ((mode & (FI_MR_ENDPOINT | FI_MR_RAW)) != 0) return -ENOTSUP;
  std::size_t key_bytes = info->domain_attr->mr_key_size;
  fabric.target = {
      domain,
      key_bytes >= 8 || key_bytes == 0 ? UINT64_MAX : (std::uint64_t{1} << (8 * key_bytes)) - 1,
      (mode & FI_MR_PROV_KEY) != 0 || mode == FI_MR_BASIC,
      info->domain_attr->threading == FI_THREAD_SAFE,
  };
  int error = closes_at_once(fabric);
  if (error == -ENOTSUP) say(kWhyNot);
  return error;
}

}  // namespace
}  // namespace rdmalloc::registrars

using namespace rdmalloc::registrars;

extern "C" RDMALLOC_API int rdmalloc_domain_open_libfabric(fid_domain* fabric_domain,
                                                           const fi_info* info,
                                                           const rdmalloc_domain_attr* attr,
                                                           rdmalloc_domain** domain) {
  KeepErrno keep;
  auto* fabric = allocate<Fabric>();
  if (fabric == nullptr) return -ENOMEM;
  int error = aim(*fabric, fabric_domain, info);
  if (error == 0) {
    rdmalloc_registrar_ops ops = {};
    ops.size = sizeof ops;
    ops.name = "libfabric";
    ops.flags = RDMALLOC_REGISTRAR_SYNC_DEREG | RDMALLOC_REGISTRAR_EXACT_ACCESS;
    if (fabric->target.is_for_any_thread) ops.flags |= RDMALLOC_REGISTRAR_ANY_THREAD;
    ops.register_ = fabric_register;
    ops.deregister = fabric_deregister;
    ops.close = fabric_close;
    error = rdmalloc_domain_open(&ops, fabric, attr, domain);
  }
  if (error != 0) free(fabric);
  return error;
}

extern "C" RDMALLOC_API int rdmalloc_libfabric_set_domain(rdmalloc_domain* domain,
                                                          fid_domain* fabric_domain,
                                                          const fi_info* info) {
  KeepErrno keep;
  void* context = nullptr;
  if (int error = replaceable(domain, fabric_register, &context)) return error;
  auto* fabric = static_cast<Fabric*>(context);
  Fabric next = {};
  // Keys are counted on, so that the probes' and a new registration's differ from the old ones.
  next.next_key.store(fabric->next_key.load(std::memory_order_relaxed), std::memory_order_relaxed);
  if (int error = aim(next, fabric_domain, info)) return error;
  // The cache was told at the opening on which threads it may call us.
  if (fabric->target.is_for_any_thread && !next.target.is_for_any_thread) return -ENOTSUP;
  fabric->target = next.target;
  fabric->next_key.store(next.next_key.load(std::memory_order_relaxed), std::memory_order_relaxed);
  return 0;
}
