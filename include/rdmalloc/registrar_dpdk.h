/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: registration with DPDK, as external memory that devices may reach. Library
 * librdmalloc-dpdk.
 */
#ifndef RDMALLOC_REGISTRAR_DPDK_H
#define RDMALLOC_REGISTRAR_DPDK_H

#include <rdmalloc/regcache.h>

#ifdef __cplusplus
extern "C" {
#endif

struct rte_device;

/** Opens a domain whose registrations are external memory of DPDK (rte_extmem_register), mapped for
 *  each of `devices` (rte_dev_dma_map), or for none: then the memory is only made known. After
 *  rte_eal_init(); the devices must stay until the domain is closed. Open one domain for a process.
 *
 *  DPDK must run with virtual addresses (`--iova-mode=va`): memory of ours has no fixed physical
 *  ones. A key's `lkey` is the IO address of the registration's first byte, which is that byte's
 *  address. A mapping grants a device reading and writing, and DPDK knows no remote rights: those
 *  are refused (-EACCES).
 *
 *  DPDK has room for RTE_MAX_MEMSEG_LISTS ranges (128 as packaged), its own memory among them, and
 *  ranges must not overlap: the driver for VFIO would take a second mapping of a page for the
 * first. So this is for few and large blocks: a pool (rdmalloc_pool_create), a heap's spans. Beyond
 *  the limit idle registrations are evicted, and then it is -ENOSPC. A block that can't be
 *  registered without overlapping a registration in use is -EEXIST until that one is put, or the
 *  block is freed that a key of it was given for; where the next block of that place has the same
 *  size, until a purge. Each rdmalloc_reg_key() takes a lock, except in a registered heap.
 *
 *  0; -ENOTSUP: DPDK runs with physical addresses; -EINVAL: DPDK is not initialised, or a device is
 *  NULL; -ENOMEM; or what rdmalloc_domain_open() returns. */
RDMALLOC_API int rdmalloc_domain_open_dpdk(struct rte_device* const* devices, size_t device_count,
                                           const struct rdmalloc_domain_attr* attr,
                                           struct rdmalloc_domain** domain);

#ifdef __cplusplus
}
#endif
#endif
