/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: registration with UCX (ucp_mem_map). Library librdmalloc-ucx.
 */
#ifndef RDMALLOC_REGISTRAR_UCX_H
#define RDMALLOC_REGISTRAR_UCX_H

#include <rdmalloc/regcache.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ucp_context;

/** A remote key as UCX packs it: what a peer gives to ucp_ep_rkey_unpack(). */
struct rdmalloc_ucx_rkey {
  const void* packed;
  size_t length; /**< bytes of it */
};

/** The packed remote key of a registration with remote access, good until its put; NULL of one
 *  without. Any thread. */
static inline const struct rdmalloc_ucx_rkey* rdmalloc_ucx_rkey_of(const struct rdmalloc_key* key) {
  return (const struct rdmalloc_ucx_rkey*)(uintptr_t)key->rkey;
}

/** Opens a domain over a UCP context, which stays the caller's and must live until the domain is
 *  closed. A key's `handle` is the ucp_mem_h, for ucp_request_param_t's memh; `lkey` is 0; `rkey`
 *  is read by rdmalloc_ucx_rkey_of().
 *
 *  UCX asks the device for remote reading and writing (before 1.15 for atomics too) with every
 *  registration, whatever is wanted of it. So remote access must name both
 *  RDMALLOC_ACCESS_REMOTE_READ and _WRITE (else -EACCES), and is exact then. Of a local
 *  registration no key leaves the process, but the device would honour one that was guessed.
 *
 *  A context that was not made with mt_workers_shared is called on the threads that call into the
 *  domain only, see rdmalloc_domain_open().
 *
 *  0; -EINVAL; -ENOTSUP: UCX keeps a cache of its own under ucp_mem_map(), so that memory stays
 *  registered after ucp_mem_unmap(), or more is registered than was asked. Found by trying, and
 *  said on standard error with the remedy: UCX_RCACHE_ENABLE=n, and before UCX 1.16
 *  UCX_IB_REG_METHODS=direct, in the environment before ucp_config_read(). Or the error of
 *  registering 128 KiB, such as -ENOMEM under a small RLIMIT_MEMLOCK; or of reading
 *  /proc/self/status for VmPin, such as -EMFILE, or -EIO where there is none in it; or what
 *  rdmalloc_domain_open() returns. */
RDMALLOC_API int rdmalloc_domain_open_ucx(struct ucp_context* ucp,
                                          const struct rdmalloc_domain_attr* attr,
                                          struct rdmalloc_domain** domain);

/** Gives the domain another context: the user's new one, at RDMALLOC_DOMAIN_OPEN, after the user
 *  cleaned up the one before at RDMALLOC_DOMAIN_CLOSE. Ranges that could not be unmapped are not in
 *  the way, and stay quarantined. 0; -EBUSY: something else is registered with the one before;
 *  -ENODEV: the domain is lost; close it and open another; -EINVAL; -ENOTSUP as at the opening, or
 *  because it is without mt_workers_shared, and the one that the domain was opened with is not; or
 *  the error of registering 128 KiB or of reading VmPin. After an error the domain has the one
 *  before. No other thread may be in a call for this domain.
 */
RDMALLOC_API int rdmalloc_ucx_set_context(struct rdmalloc_domain* domain, struct ucp_context* ucp);

#ifdef __cplusplus
}
#endif
#endif
