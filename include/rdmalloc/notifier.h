/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: notifiers, the code that tells other libraries' registration caches that memory of ours
 * is about to lose its pages. A preloaded librdmalloc needs none of these calls; docs/notifiers.md
 * says what happens by itself, and what RDMALLOC_NOTIFY changes.
 */
#ifndef RDMALLOC_NOTIFIER_H
#define RDMALLOC_NOTIFIER_H

#include <rdmalloc/rdmalloc.h>

#ifdef __cplusplus
extern "C" {
#endif

enum rdmalloc_notifier {
  RDMALLOC_NOTIFIER_AUTO = 0,      /**< all of those below that fit this process */
  RDMALLOC_NOTIFIER_OPAL = 1,      /**< Open MPI: opal_mem_hooks_release_hook() */
  RDMALLOC_NOTIFIER_UCX = 2,       /**< UCX: ucm_vm_munmap() */
  RDMALLOC_NOTIFIER_LIBFABRIC = 3, /**< libfabric: an imported memory monitor */
};

/** Attaches to a library that is loaded in this process. rdmalloc tells OPAL and UCX beside their
 *  own hooks, which stay on for foreign memory. libfabric takes one monitor for a process, in place
 *  of its own: rdmalloc's refuses every registration of foreign memory, so that libfabric uses such
 *  a registration once and does not cache it. Attach before the first domain is opened. AUTO leaves
 *  libfabric to Open MPI if that is loaded, since Open MPI imports a monitor of its own. Returns 0;
 *  -ENOENT (not loaded), -EALREADY, -EBUSY (libfabric has an active monitor, or one that another
 *  library imported), -ENOTSUP (libfabric before 1.14, or built without its headers), -ENOMEM (the
 *  library can't be kept in memory), -EAGAIN (a dlclose() is under way, on this thread or another;
 *  RDMALLOC_NOTIFY=auto and explicit attach at its end, auto without libfabric: ask again.
 *  libfabric: also where another call attaches or detaches it), -EINVAL. Any thread that holds no
 *  fabric's lock; not inside a page event. */
RDMALLOC_API int rdmalloc_notifier_attach(enum rdmalloc_notifier which);

/** Undoes attach, and returns once no notification of the library runs. Purges go on; in tier T0
 *  they still go through libc's madvise. Returns 0; -EBUSY, with the library attached as before, if
 *  a domain uses libfabric's monitor (close the domains first), if libfabric does not give it up
 *  (try again), or if OPAL or UCX rely on rdmalloc for foreign memory (below); -ENOENT (not
 *  attached); -EINVAL; -EDEADLK inside a page event. */
RDMALLOC_API int rdmalloc_notifier_detach(enum rdmalloc_notifier which);

/** What one notifier does. */
struct rdmalloc_notifier_info {
  size_t size;          /**< sizeof(struct rdmalloc_notifier_info) */
  uint32_t is_attached; /**< notified before each purge */
  uint32_t is_started;  /**< libfabric: it has a domain that caches; others: same as attached */
  int32_t error;        /**< what the last attach returned */
  uint32_t calls_libc;  /**< decommits also go through libc's madvise (tier T0) */
  uint32_t is_madvise_patched; /**< a library's jump stands at the head of libc's madvise */
  uint64_t notified;           /**< ranges that it was notified of */
  uint64_t refused;            /**< libfabric: registrations of foreign memory refused */
  const char* explanation;     /**< one sentence, static storage */
  /** RDMALLOC_NOTIFY=explicit, preloaded or linked as a shared library before libc, and the
   *  library's own hooks turned off by its user (OMPI_MCA_memory=^patcher,
   *  UCX_MEM_MMAP_HOOK_MODE=none): it relies on rdmalloc, which stands in front of munmap and its
   *  relatives, for foreign memory too */
  uint32_t watches_foreign;
  uint64_t foreign_notified; /**< unmappings of foreign memory that were reported; of the process */
  uint64_t holds;    /**< times purging was held since a library came, went or patched libc; of the
                          process */
  uint64_t attaches; /**< times it was attached, by itself too: again after each dlclose() */
};
/** Fills *state (set state->size) for one notifier; AUTO is -EINVAL. Any thread. */
RDMALLOC_API int rdmalloc_notifier_state(enum rdmalloc_notifier which,
                                         struct rdmalloc_notifier_info* state);

#ifdef __cplusplus
}
#endif
#endif
