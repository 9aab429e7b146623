/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: registration with SPDK's memory map (spdk_mem_register). Library librdmalloc-spdk,
 * which links nothing of SPDK: its functions are found by name in the running program.
 */
#ifndef RDMALLOC_REGISTRAR_SPDK_H
#define RDMALLOC_REGISTRAR_SPDK_H

#include <rdmalloc/regcache.h>

#ifdef __cplusplus
extern "C" {
#endif

struct spdk_mem_map;

/** Where SPDK's functions are. A program that has SPDK in shared libraries, or exports the symbols
 *  of its own (-rdynamic), needs none of this; one that links SPDK statically names them here. */
struct rdmalloc_spdk_attr {
  size_t size; /**< sizeof(struct rdmalloc_spdk_attr) */
  /** spdk_mem_register, spdk_mem_unregister; NULL: found by name. */
  int (*mem_register)(void* addr, size_t length);
  int (*mem_unregister)(void* addr, size_t length);
  /** spdk_vtophys; NULL: found by name, and used if it knows SPDK's own memory (without PCI it
   *  knows none). */
  uint64_t (*vtophys)(const void* addr, uint64_t* length);
  /** A map of the program's (spdk_mem_map_alloc) that must have what is registered too, and what it
   *  answers for memory that it has not: its default translation. NULL: none. */
  const struct spdk_mem_map* map;
  uint64_t untranslated;
  /** spdk_mem_map_translate; NULL: found by name, if `map` is given. */
  uint64_t (*mem_map_translate)(const struct spdk_mem_map* map, uint64_t addr, uint64_t* length);
};

/** Opens a domain over SPDK's memory map, of which there is one in a process: after
 *  spdk_env_init(); close it before spdk_env_fini(). Both attributes may be NULL.
 *
 *  Registrations begin and end at 2 MiB, and each 2 MiB is a region of its own to SPDK, registered
 *  while any registration of such a domain is over it: blocks are neighbours in those 2 MiB, and
 *  SPDK takes back whole regions only. SPDK knows no rights, so remote ones are refused (-EACCES).
 *  Keys are 0: SPDK finds memory by its address.
 *
 *  SPDK from 25.09 on reports success although a map refused the memory, its IOMMU mapping for
 *  example. So each region is looked up after it was registered (vtophys, and `map`): one without a
 *  translation is unregistered again and counts as refused, with -ENOMEM, since a limit of pinned
 *  memory is the usual reason and eviction may help. Looked up again after it was unregistered:
 *  one that is still there is an error, and its pages are never given back.
 *
 *  With SPDK's NVMe over RDMA a buffer must lie in one region: set `largest` of the domain to
 *  2 MiB, and blocks that cross one are refused (-EMSGSIZE); pools lay no buffer across.
 *
 *  Memory that the program or SPDK registered itself is -EBUSY and stays as it is.
 *
 *  0; -ENOENT: SPDK's functions are not found; -EINVAL; -ENOMEM; or what rdmalloc_domain_open()
 *  returns. */
RDMALLOC_API int rdmalloc_domain_open_spdk(const struct rdmalloc_spdk_attr* attr,
                                           const struct rdmalloc_domain_attr* domain_attr,
                                           struct rdmalloc_domain** domain);

#ifdef __cplusplus
}
#endif
#endif
