/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: the registrar for verbs (librdmalloc-verbs, links libibverbs). A key's lkey and rkey
 * are those of ibv_reg_mr(), its handle is the struct ibv_mr *.
 */
#ifndef RDMALLOC_REGISTRAR_VERBS_H
#define RDMALLOC_REGISTRAR_VERBS_H

#include <infiniband/verbs.h>
#include <rdmalloc/regcache.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Opens a domain over a protection domain of the user's, which must outlive it. `*attr` may be
 *  NULL. Returns 0, -EINVAL (no pd), -EIO (the device can't be asked), or rdmalloc_domain_open()'s
 *  errors. The device's limits (max_mr, max_mr_size) become the domain's. */
RDMALLOC_API int rdmalloc_domain_open_verbs(struct ibv_pd* pd,
                                            const struct rdmalloc_domain_attr* attr,
                                            struct rdmalloc_domain** domain);

/** The same over a protection domain that is made here, on the device named `device` ("rxe0",
 *  "mlx5_0"; NULL: the first with an active port) and closed with the rdmalloc domain. `port` 0:
 *  any port of it must be active; else that one. `*pd` receives the protection domain, for the
 *  user's queue pairs; its context field is the open device. Returns 0, -ENODEV (no such device),
 *  -ENETDOWN (the port is not active), -EINVAL (no such port), the error of opening the device or
 *  of making the protection domain, or as above. */
RDMALLOC_API int rdmalloc_domain_open_verbs_device(const char* device, unsigned port,
                                                   const struct rdmalloc_domain_attr* attr,
                                                   struct ibv_pd** pd,
                                                   struct rdmalloc_domain** domain);

/** The protection domain that the domain has now: of one opened by its device, rdmalloc_resume()
 *  makes another, which RDMALLOC_DOMAIN_RESUMED is the time to ask for. 0; -EAGAIN while it is
 *  quiesced; -ENODEV: the domain is lost, and a resume makes none; -EINVAL: no domain over verbs.
 *  Any thread. */
RDMALLOC_API int rdmalloc_verbs_pd(struct rdmalloc_domain* domain, struct ibv_pd** pd);

/** Gives a domain over the user's protection domain another: the user's new one, at
 *  RDMALLOC_DOMAIN_OPEN, after the user closed the one before, and its device, at
 *  RDMALLOC_DOMAIN_CLOSE. Ranges that ibv_dereg_mr() failed for are not in the way, and stay
 *  quarantined; rdmalloc_domain_open_verbs_device() closes the device itself, and ends them with
 *  it. 0; -EBUSY: something else is registered with the one before; -ENODEV: the domain is lost;
 *  close it and open another; -EINVAL. No other thread may be in a call for this domain. */
RDMALLOC_API int rdmalloc_verbs_set_pd(struct rdmalloc_domain* domain, struct ibv_pd* pd);

#ifdef __cplusplus
}
#endif
#endif
