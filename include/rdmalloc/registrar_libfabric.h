/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: registration with libfabric (fi_mr_regattr). Library librdmalloc-libfabric.
 */
#ifndef RDMALLOC_REGISTRAR_LIBFABRIC_H
#define RDMALLOC_REGISTRAR_LIBFABRIC_H

#include <rdmalloc/regcache.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fid_domain;
struct fi_info;

/** Opens a domain over an open fid_domain and the fi_info it was opened with. Both, and the
 *  domain's endpoints, stay the caller's; `fabric_domain` must live until the domain is closed.
 *
 *  A key's `handle` is the struct fid_mr *, `lkey` its descriptor (fi_mr_desc, as an integer),
 *  `rkey` its fi_mr_key. Where the provider wants keys chosen (no FI_MR_PROV_KEY), they are counted
 *  from 1 << 20 on, or wrap below the provider's mr_key_size.
 *
 *  What a provider layered over another asks of that one is its own: ofi_rxm registers memory that
 *  is to be sent for remote reading as well, for its rendezvous; the key stays inside it.
 *
 *  With threading other than FI_THREAD_SAFE the registrar is called on the threads that call into
 *  the domain only, see rdmalloc_domain_open().
 *
 *  0; -EINVAL; -ENOTSUP: the provider binds registrations to endpoints (FI_MR_ENDPOINT), has raw
 *  keys (FI_MR_RAW), or keeps pages pinned after fi_close of an MR, as verbs and verbs;ofi_rxm do
 *  with libfabric's own cache on: found by registering, closing and reading VmPin, and said on
 *  standard error with the remedy, which is FI_MR_CACHE_MAX_COUNT=0 in the environment before the
 *  first fi_getinfo(). Or the error of registering the 64 KiB probe, such as -ENOMEM under a small
 *  RLIMIT_MEMLOCK; or of reading /proc/self/status for VmPin, such as -EMFILE, or -EIO where there
 *  is none in it; or what rdmalloc_domain_open() returns. */
RDMALLOC_API int rdmalloc_domain_open_libfabric(struct fid_domain* fabric_domain,
                                                const struct fi_info* info,
                                                const struct rdmalloc_domain_attr* attr,
                                                struct rdmalloc_domain** domain);

/** Gives the domain another fid_domain, opened with `info`: the user's new one, at
 *  RDMALLOC_DOMAIN_OPEN, after the user closed the one before, and its fabric, at
 *  RDMALLOC_DOMAIN_CLOSE. Ranges that fi_close() of an MR failed for are not in the way, and stay
 *  quarantined: the provider may still reach them, and fi_close() of the fid_domain fails then
 *  (-FI_EBUSY).
 *
 *  0; -EBUSY: something else is registered with the one before; -ENODEV: the domain is lost; close
 *  it and open another; -EINVAL; -ENOTSUP as at the opening, or because it is not FI_THREAD_SAFE,
 *  and the one that the domain was opened with is; or the error of registering the probe or of
 *  reading VmPin. After an error the domain has the one before. No other thread may be in
 *  a call for this domain. */
RDMALLOC_API int rdmalloc_libfabric_set_domain(struct rdmalloc_domain* domain,
                                               struct fid_domain* fabric_domain,
                                               const struct fi_info* info);

#ifdef __cplusplus
}
#endif
#endif
