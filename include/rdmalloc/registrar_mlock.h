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

/** Opens a domain that locks what is registered. mlock(2) does not count, so such domains do, all
 *  of a process together: a page is unlocked when its last registration ends. mlock by others would
 *  unlock pages of theirs.
 *  Keys are 0. Remote rights are refused (-ENOTSUP). Beyond RLIMIT_MEMLOCK registering returns
 *  -ENOMEM, also when the limit is 0. `attr` may be NULL. Returns what rdmalloc_domain_open()
 *  returns, or -ENOMEM. */
RDMALLOC_API int rdmalloc_domain_open_mlock(const struct rdmalloc_domain_attr* attr,
                                            struct rdmalloc_domain** domain);

#ifdef __cplusplus
}
#endif
#endif
