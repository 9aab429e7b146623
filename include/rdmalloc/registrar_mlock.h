/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: "registration" by mlock(2): no device, but real RLIMIT_MEMLOCK errors, and pages that
 * stay in memory while they are registered. Library librdmalloc-mlock.
 */
#ifndef RDMALLOC_REGISTRAR_MLOCK_H
#define RDMALLOC_REGISTRAR_MLOCK_H

#include <rdmalloc/regcache.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Opens a domain that locks what is registered. mlock(2) does not count, so the domain does: a
 * page is unlocked when its last registration in this domain ends. Two such domains over the same
 *  memory, or mlock by others, would unlock each other's pages: open one for a process.
 *  Keys are 0. Remote rights are refused (-ENOTSUP). Beyond RLIMIT_MEMLOCK registering returns
 *  -ENOMEM, or -EPERM when the limit is 0. `attr` may be NULL. Returns what rdmalloc_domain_open()
 *  returns, or -ENOMEM. */
RDMALLOC_API int rdmalloc_domain_open_mlock(const struct rdmalloc_domain_attr* attr,
                                            struct rdmalloc_domain** domain);

#ifdef __cplusplus
}
#endif
#endif
