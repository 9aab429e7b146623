/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: memory. The malloc family itself is declared by <stdlib.h> and <malloc.h>; this header
 * holds what those lack: ownership, page events, purging, settings and counters.
 *
 * Conventions of every rdmalloc header:
 *  - Functions that can fail return 0 or a negative errno value; none of them touches errno. Those
 *    that return a block return NULL and set errno, like malloc.
 *  - Public structs start with `size`, which the caller sets to sizeof the struct it was compiled
 *    with. A program and a library of different versions work together: fields that the program
 *    does not know have their default, and are not filled in; fields that the library does not know
 *    must be 0 (-E2BIG), and are filled in as 0. Flags that the library does not know are -EINVAL.
 *  - "Any thread" means: any thread at any time, also inside a callback of a fabric library that
 *    holds its own locks, unless the comment says otherwise. Not async-signal-safe, unless said.
 */
#ifndef RDMALLOC_RDMALLOC_H
#define RDMALLOC_RDMALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RDMALLOC_VERSION_MAJOR 0
#define RDMALLOC_VERSION_MINOR 2
#define RDMALLOC_VERSION_PATCH 0

#if defined(__GNUC__)
#define RDMALLOC_API __attribute__((visibility("default")))
#else
#define RDMALLOC_API
#endif

/* Of a function that looks at the address its Nth parameter holds, not at what lies there: else GCC
 * warns of fresh memory of malloc that is used before it is filled. (Inside, of definitions of ours
 * GCC 12 then warns at -O3 that the parameter is uninitialized itself.) */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11 && !defined(RDMALLOC_INSIDE)
#define RDMALLOC_ADDRESS_ONLY(parameter) __attribute__((access(none, parameter)))
#else
#define RDMALLOC_ADDRESS_ONLY(parameter)
#endif

/* ------------------------------------------------------------------ library */

/** The version as text, "0.2.0". Static storage. Any thread. */
RDMALLOC_API const char* rdmalloc_version(void);

/** One sentence for a value returned by this library (negative errno). Static storage, never NULL,
 *  any thread. */
RDMALLOC_API const char* rdmalloc_strerror(int error);

/** Starts the purge thread; counted. malloc needs no call of this. Without it the purge thread
 *  starts with the program's first thread of its own. A program that is linked statically, or
 *  against the prefixed library, makes its threads unseen by rdmalloc and has to call this; so has
 *  one that keeps registrations of its own where no fabric's library is loaded: from here on, as
 *  from the first thread on, the place of a freed buffer above 4 MiB is kept for buffers for a
 *  while, as that of a shorter one always is. Returns 0; -ENOMEM (no address space); or the error
 *  of pthread_create, negative, if the purge thread could not be created (until a later call can,
 *  only rdmalloc_purge() gives memory back). Any thread, not inside a callback. */
RDMALLOC_API int rdmalloc_init(void);

/** Undoes one rdmalloc_init(); the last call stops and joins the purge thread. malloc and free stay
 *  usable. Returns 0; or, with nothing changed, -EALREADY without a matching init, or -EDEADLK
 *  inside a page event. Any thread, not inside a callback of rdmalloc. */
RDMALLOC_API int rdmalloc_fini(void);

/* ------------------------------------------------------------------ ownership */

struct rdmalloc_heap;

/** What rdmalloc knows of the memory round an address. */
struct rdmalloc_range {
  size_t size;         /**< sizeof(struct rdmalloc_range), set by the caller */
  void* base;          /**< first byte of the span: a run of 64 KiB slices */
  size_t length;       /**< bytes of the span, a multiple of 64 KiB */
  size_t block_bytes;  /**< size of its blocks; == length for a span that is one large block */
  uint64_t generation; /**< changes each time the span's pages were given back to the kernel and
                            each time the span is made anew; never repeats for an address */
  uint32_t flags;      /**< RDMALLOC_RANGE_* */
  struct rdmalloc_heap* heap; /**< with RDMALLOC_RANGE_HEAP: the heap */
};
#define RDMALLOC_RANGE_SLAB 0x1u  /**< many blocks of equal size */
#define RDMALLOC_RANGE_LARGE 0x2u /**< one block */
#define RDMALLOC_RANGE_HEAP 0x4u  /**< belongs to a heap of the user */

/** Whether `ptr` points into memory that rdmalloc hands out (live, cached or free, whatever its
 *  offset in a block). Wait-free, any thread, also from a signal handler. */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(1) bool rdmalloc_owns(const void* ptr);

/** Fills `*range` for the span in use that holds `ptr` (any byte of it). `range->size` must be set.
 *  Returns 0; -EFAULT when the memory is not ours or its span is free; -EINVAL for a bad size.
 *  Lock-free, any thread. The answer stays true for as long as the caller keeps a block in the
 *  span alive. */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(1) int rdmalloc_range_of(const void* ptr,
                                                            struct rdmalloc_range* range);

/** Called for a range; a nonzero return value stops the walk. */
typedef int (*rdmalloc_range_fn)(const struct rdmalloc_range* range, void* arg);

/** Calls `fn` for every span now in use, by rising address, for an observer that is added late.
 *  The walk may or may not see spans made or freed meanwhile. No lock is held in `fn`, which may
 *  allocate and free. Returns 0 or what `fn` returned. Any thread. */
RDMALLOC_API int rdmalloc_range_foreach(rdmalloc_range_fn fn, void* arg);

/** Whether no span in use touches [base, base+length): all of it is free, or not ours. Lock-free,
 *  any thread. Ordered after the caller's earlier stores as by a seq_cst fence, and span allocation
 *  fences likewise between taking the span and returning it: of an observer that unpublishes
 *  something and then asks here, and a thread that allocates there and then looks the thing up, at
 *  least one sees the other. */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(1) bool rdmalloc_range_is_idle(const void* base, size_t length);

/** Whether no block in use touches [base, base+length): like rdmalloc_range_is_idle(), but true
 *  also for free blocks of slabs in use. A block in a thread's cache counts as in use; see
 *  rdmalloc_caches_flush(). Takes the slab's lock, with the same order towards allocation there.
 *  Any thread. */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(1) bool rdmalloc_range_is_free(const void* base, size_t length);

/** Gives the free blocks in the calling thread's cache, and those on their way between threads,
 *  back to their slabs. Any thread. */
RDMALLOC_API void rdmalloc_caches_flush(void);

/** The extent of addresses that owned memory can have, fixed from the first allocation on: tables
 *  indexed by (address - base) / RDMALLOC_SLICE_BYTES need length / RDMALLOC_SLICE_BYTES slots.
 *  Returns 0, or -ENOMEM when no address space could be reserved. Any thread. */
RDMALLOC_API int rdmalloc_arena_extent(uintptr_t* base, size_t* length);

#define RDMALLOC_SLICE_BYTES ((size_t)65536)
#define RDMALLOC_SLICE_SHIFT 16
#define RDMALLOC_CHUNK_BYTES ((size_t)2097152)

/* ------------------------------------------------------------------ heaps of the user */

struct rdmalloc_domain;

/** What a heap is made of. NULL instead of it, or 0 in a field, means the default. */
struct rdmalloc_heap_attr {
  size_t size;         /**< sizeof(struct rdmalloc_heap_attr) */
  size_t budget_bytes; /**< its spans never take more, whole slices of 64 KiB; default: no limit */
  /** With domains it is a registered heap (regcache.h, "registered heaps"): its memory, which
   *  budget_bytes must state, is taken, backed by pages and registered with each of them when it
   *  is made, and deregistered when it is destroyed; malloc in it calls no registrar. Default:
   *  none. The array is not needed afterwards. */
  struct rdmalloc_domain* const* domains;
  size_t domain_count; /**< of them */
  uint32_t access;     /**< RDMALLOC_ACCESS_*, of every byte of a registered heap; default
                            RDMALLOC_ACCESS_LOCAL */
  uint32_t flags;      /**< none yet: 0 */
  /** RDMALLOC_NODE(n): its pages come from NUMA node n only (mbind, MPOL_BIND). Its memory, which
   *  budget_bytes must state, is taken and backed when it is made, as a registered heap's, and
   *  stays. Default: from the node of the thread that touches them first. */
  uint32_t numa_node;
  /** RDMALLOC_PAGE_*: its pages are of that size. Its memory, which budget_bytes must state, is
   *  taken and backed when it is made, as above, and stays. Default: as malloc's; with domains or a
   *  NUMA node those that RDMALLOC_HUGE names, as far as the kernel's pool has them. */
  uint32_t page_size;
};
#define RDMALLOC_NODE(n) ((uint32_t)(n) + 1)

/** The kernel's small pages, and no transparent huge ones; they may be larger than 4 KiB. */
#define RDMALLOC_PAGE_4K ((uint32_t)4096)
/** Transparent huge pages, where the kernel has any: a wish, which no failure comes from. */
#define RDMALLOC_PAGE_THP ((uint32_t)1)
/** Pages of 2 MiB or 1 GiB of the kernel's pool of them (hugetlb): what an administrator has set
 *  aside in /sys/kernel/mm/hugepages. The budget is rounded up to whole ones. A child of fork that
 *  writes them takes copies from the pool; where it has none left, the parent keeps its pages and
 *  the child ends with SIGBUS, and where they are registered fork itself fails with ENOMEM. */
#define RDMALLOC_PAGE_2M ((uint32_t)1 << 21)
#define RDMALLOC_PAGE_1G ((uint32_t)1 << 30)

/** Makes a heap: an allocator with pages of its own. No block of another heap or of malloc's lies
 *  in them, and destroying the heap gives all of them back at once. free(), realloc(),
 *  malloc_usable_size(), operator delete and the same functions with the prefix work on its blocks
 *  as on any other, on any thread; realloc() keeps a block in its heap. Blocks are 64 bytes at
 *  least. Returns 0; -EINVAL (size of *attr, a budget below 64 KiB), -ENOSPC (4,095 heaps are
 *  there, fewer where address space is short), -ENOMEM. Any thread.
 *
 *  With a NUMA node: also -EINVAL (no budget, no such node), -EIO (pages of it are pinned
 *  elsewhere), -EPERM (a sandbox without mbind), -ENOMEM; a warning says what would help.
 *
 *  With a page size: also -EINVAL (no budget, another size), -ENOMEM (the kernel's pool has too few
 *  pages), -ENOTSUP (it has no such pool, or is older than 5.16), -EBUSY (purging is paused, or an
 *  observer refused), -EDEADLK inside a page event; a warning says what would help. The
 *  call exchanges its pages as a purge does: it calls observers on this thread and waits for a
 *  purge under way, here and in grow and destroy. Do not call inside a fabric's callback. With
 *  RDMALLOC_HUGE the same holds for a heap with a NUMA node or domains, except for the errors: it
 *  gets ordinary pages.
 *
 *  A registered heap: also -EINVAL (no budget, no open domain, one of them twice, unknown rights),
 *  -EACCES (remote rights, and a registrar that can't be exact), -EMFILE (64 registered heaps are
 *  there), -EMSGSIZE (more regions than a heap can have: the domains' `largest` is too low for the
 *  budget), -ENOMEM (no memory, a limit of a domain), -ENODEV (a domain is lost), -EAGAIN (a
 *  checkpoint is under way), -ECHILD, -EDEADLK inside a page event, or the registrar's error. After
 *  an error everything is undone, and a warning says what would help (not of -EAGAIN).
 *  Calls registrars: do not call inside a fabric's callback. */
RDMALLOC_API int rdmalloc_heap_create(const struct rdmalloc_heap_attr* attr,
                                      struct rdmalloc_heap** heap);

/** Adds `bytes`, rounded up to 2 MiB or to its page size, to a heap whose memory was taken when it
 *  was made. They are regions of their own, and the budget grows by as much. malloc never does this
 *  by itself. Returns 0, or an error as of create; -EINVAL for another heap, -EBUSY if another
 *  thread does the same. Calls registrars. */
RDMALLOC_API int rdmalloc_heap_grow(struct rdmalloc_heap* heap, size_t bytes);

/** Frees every block of the heap, those in use too, and the heap. From here on free() of such a
 * block is a double free, and the handle is refused for ever. The purge thread gives the pages back
 *  later, after it has asked observers, like those of other free memory. No other thread may be in
 *  a call for this heap; one that is gets EINVAL (checked builds abort). Returns 0, or -EINVAL if
 *  there is no such heap. Any thread, also inside the callback of a walk.
 *
 *  The call deregisters a registered heap first, on this thread. Transfers from and to it must have
 *  ended: rdmalloc can't know of them, and what a device does with a key that is gone is up to the
 *  fabric. Returns -EBUSY, with nothing changed, if rdmalloc_reg_get() holds a registration of its
 *  memory; -EAGAIN while a quiesce or a resume is at work; -EDEADLK inside a page event. Memory
 *  that a registrar could not deregister is never handed out again. */
RDMALLOC_API int rdmalloc_heap_destroy(struct rdmalloc_heap* heap);

/** rdmalloc_heap_destroy() for a caller that cannot try again, a destructor for example. Destroys
 *  the heap now, or leaves it to the library to destroy it as soon as that is possible: the library
 *  tries at each call that opens, closes, makes or destroys a domain, a registered heap or a pool,
 *  and at the end of a quiesce and of a resume, and calls registrars there. Returns 0 (destroyed),
 *  -EINPROGRESS (the library destroys it later: a registration is held, a checkpoint is under way,
 *  or this is a page event) or -EINVAL (no such heap). Any thread. */
RDMALLOC_API int rdmalloc_heap_abandon(struct rdmalloc_heap* heap);

/** malloc(), calloc(), aligned_alloc() and realloc() in the heap. NULL with errno ENOMEM: no
 *  memory, or the budget is used up; EINVAL: no such heap, an alignment that is no power of two, or
 *  `ptr` is not of this heap, and then nothing happened to it. A block that realloc moves is there
 *  twice for a moment, also in the budget. Any thread. */
RDMALLOC_API void* rdmalloc_heap_malloc(struct rdmalloc_heap* heap, size_t bytes);
RDMALLOC_API void* rdmalloc_heap_calloc(struct rdmalloc_heap* heap, size_t count, size_t bytes);
RDMALLOC_API void* rdmalloc_heap_aligned(struct rdmalloc_heap* heap, size_t alignment,
                                         size_t bytes);
RDMALLOC_API void* rdmalloc_heap_realloc(struct rdmalloc_heap* heap, void* ptr, size_t bytes);

/** free() that checks the heap: returns 0, or -EINVAL, with nothing freed, if there is no such heap
 *  or `ptr` is neither NULL nor in it. Any thread. */
RDMALLOC_API int rdmalloc_heap_free(struct rdmalloc_heap* heap, void* ptr);

/** Called for a block in use; a nonzero return value stops the walk. */
typedef int (*rdmalloc_heap_walk_fn)(void* block, size_t usable_bytes, void* arg);

/** Calls `fn` for each block of the heap in use, by rising address. No lock is held in `fn`, which
 *  may allocate and free anything, this block and others of the heap too; when it destroys the heap
 *  the walk ends with -EINVAL. Blocks allocated or freed meanwhile may or may not be seen, and the
 *  bytes of a block may be read only if no other thread can free it. Returns 0, what `fn`
 *  returned, or -EINVAL when there is no such heap. Any thread. */
RDMALLOC_API int rdmalloc_heap_walk(struct rdmalloc_heap* heap, rdmalloc_heap_walk_fn fn,
                                    void* arg);

/** Numbers of one heap; each by itself is true at some moment of the call. */
struct rdmalloc_heap_counters {
  size_t size;              /**< sizeof(struct rdmalloc_heap_counters) */
  uint64_t budget_bytes;    /**< whole slices */
  uint64_t span_bytes;      /**< its spans, free blocks included: what the budget is for */
  uint64_t most_span_bytes; /**< the most there ever were */
  uint64_t live_bytes;      /**< usable bytes of the blocks in use */
  uint64_t live_blocks;     /**< their number */
  uint64_t refusals;        /**< requests that found no budget or no memory */
  uint64_t large_bytes;     /**< of live_bytes: blocks that are spans, more than 32 KiB */
  uint64_t large_blocks;    /**< their number */
  uint64_t cached_bytes;    /**< free blocks kept at hand for the next malloc. What span_bytes has
                                 besides these and live_bytes is free in slabs */
  uint64_t region_bytes;    /**< of a heap whose memory was taken when it was made, as a registered
                                 one's: how much; span_bytes is the part of it that blocks have been
                                 cut from */
  uint64_t huge_bytes; /**< of region_bytes: on pages of 2 MiB or 1 GiB of the kernel's pools */
};
/** Fills *stats (set stats->size). 0, or -EINVAL. Any thread. */
RDMALLOC_API int rdmalloc_heap_stats(struct rdmalloc_heap* heap,
                                     struct rdmalloc_heap_counters* stats);

/* ------------------------------------------------------------------ page events */

/** Why a range is purged. */
enum rdmalloc_purge_reason {
  RDMALLOC_PURGE_DECAY = 1,    /**< free for longer than the decay time */
  RDMALLOC_PURGE_CEILING = 2,  /**< more dirty bytes than RDMALLOC_DIRTY_MAX */
  RDMALLOC_PURGE_REQUEST = 3,  /**< rdmalloc_purge() or malloc_trim(), or a heap with a page_size,
                                    which is made or was destroyed */
  RDMALLOC_PURGE_LIMIT = 4,    /**< RDMALLOC_LIMIT or a cgroup's limit is near */
  RDMALLOC_PURGE_PRESSURE = 5, /**< the kernel reports memory pressure */
};

/** Page events. Every function may be NULL. They are called on the purge thread, or on the thread
 *  inside rdmalloc_purge(), one at a time, never on a thread inside malloc or free, and with no
 *  lock of rdmalloc held: they may allocate, free and take locks of their own. They must return: no
 *  exception, longjmp() or pthread_exit() may leave them. What may wait for a purge returns
 *  -EDEADLK there, as each function says.
 *
 *  Ranges are whole pages: of free spans, or pages of a slab in use on which no block lies (there
 *  rdmalloc_range_is_idle() is false, for its neighbours may live). For a page the order is always
 *      reserve, use, (purge, purged, reuse)*
 *  and each is reported once. `use` and `reuse` are reported late (at the purge thread's next turn,
 *  at the latest before the next purge of that range), since malloc may call no observer (I1). */
struct rdmalloc_observer_ops {
  size_t size; /**< sizeof(struct rdmalloc_observer_ops) */
  /** Address space became ours; nothing in it is handed out yet. */
  void (*reserve)(void* arg, void* base, size_t length);
  /** Pages of the range were handed out for the first time. */
  void (*use)(void* arg, void* base, size_t length);
  /** The range is about to be given back to the kernel; no allocation can take it any more. Return
   *  0 when the observer refers to its pages no more, or a negative errno (usually -EBUSY) to
   *  refuse: the range stays as it is, and a later purge offers it again. */
  int (*purge)(void* arg, void* base, size_t length, enum rdmalloc_purge_reason reason);
  /** Ends each purge() that returned 0. `result` 0: the pages are gone, the range reads as zero.
   *  -ECANCELED: they stayed, another observer refused. Another negative errno is the kernel's, as
   *  of locked pages: some may be gone, and read as zero. Then no reuse follows, and parts of the
   *  range may be offered next. */
  void (*purged)(void* arg, void* base, size_t length, int result);
  /** Pages of a purged range were handed out again. */
  void (*reuse)(void* arg, void* base, size_t length);
};
struct rdmalloc_observer;

/** Adds an observer. Copies `*ops`; `arg` must outlive the observer. Spans that were in use before
 *  are not reported: call rdmalloc_range_foreach() afterwards. Starts the purge thread, which
 *  delivers the events. A child of fork has no observers, since what they observe is not there. An
 * event may call fork; the child ends the purge that it was forked in, and then exits with status 0
 *  when the function that the purge thread called returns, as after any thread that forks. Returns
 *  0, -EINVAL (size), -ENOSPC (more than 16 observers), -ENOMEM. Any thread. */
RDMALLOC_API int rdmalloc_observer_add(const struct rdmalloc_observer_ops* ops, void* arg,
                                       struct rdmalloc_observer** observer);

/** Removes an observer and waits until none of its functions runs; after that `arg` may be freed.
 *  Returns 0, -EINVAL (no observer), or -EDEADLK inside a page event. Waits for code of the user's:
 *  do not call inside a fabric's callback. */
RDMALLOC_API int rdmalloc_observer_remove(struct rdmalloc_observer* observer);

/* ------------------------------------------------------------------ purging */

/** Gives free memory back to the kernel, on this thread, until at most `keep_bytes` of free backed
 *  memory are left (0: all that can go, pages of slabs in use too). Flushes the calling thread's
 *  magazines first. Returns the number of bytes purged, or -EDEADLK inside a page event, -EBUSY
 *  while purging is paused. Calls observers, registrars and the kernel: the caller
 *  must hold no lock of a fabric. */
RDMALLOC_API int64_t rdmalloc_purge(size_t keep_bytes);

/** Stops all purging until the matching resume; pauses nest. Waits for a purge under way. Returns 0
 *  or -EDEADLK. Any thread outside page events and fabric callbacks. */
RDMALLOC_API int rdmalloc_purge_pause(void);
/** Ends one pause. Returns 0, or -EALREADY if there is none. Any thread. */
RDMALLOC_API int rdmalloc_purge_resume(void);

/* ------------------------------------------------------------------ checkpoints */

/** Brings the process into a state that a checkpoint can save (CRIU, docs/checkpoints.md). The call
 *  - waits, at most `timeout_ms` (negative: for ever), until no registration is held and no call
 *    that makes or unmakes a domain, a heap or a pool is under way,
 *  - deregisters everything,
 *  - closes what can't be dumped: rings and devices that registrars have opened, and the
 *  userfaultfd of RDMALLOC_FOREIGN=watch,
 *  - stops and joins every thread of rdmalloc.
 *  malloc and free go on, and wait for none of this. Until rdmalloc_resume() nothing is purged, and
 *  calls that would register return -EAGAIN (regcache.h, "checkpoints"). Ends uncounted keys and
 *  those of registered heaps and pools: the caller, or the domains' `event` functions, ensure that
 *  no thread uses one.
 *
 *  The call returns up to five seconds late if an io_uring has made threads of the kernel's, and
 *  waits 50 ms at least for a purge that is under way.
 *
 *  Calls nest: each needs its resume. A child of fork is not quiesced.
 *
 *  Returns 0; -ETIMEDOUT with nothing changed; -EBUSY: descriptors are open that can't be dumped, a
 *  ring or device of the program's own, named in a warning, or the kernel's threads of a ring that
 *  was closed do not end (in 15 seconds, with a warning); the error of a domain's `event` or
 *  its registrar's quiesce; -EDEADLK inside a page event or a callback of rdmalloc's; -ENOMEM.
 *  After an error everything is open again: with new keys after -EBUSY and an error of `event` at
 *  CLOSE or of a registrar, else with the same ones. Any thread that holds no fabric's lock and,
 *  for registrars without ANY_THREAD, may call them; two threads at once wait for each other. */
RDMALLOC_API int rdmalloc_quiesce(int timeout_ms);

/** Ends one quiesce. The last call opens everything again, in the same process or in one restored
 *  from a checkpoint: it opens domains at the same addresses with new keys, registers heaps and
 *  pools again, tells the kernel again what it forgot of rdmalloc's memory, and starts threads. A
 *  domain is lost (rdmalloc_domain_lost()) if its device is gone, or if it refuses what heaps and
 *  pools had registered; its memory stays usable. Returns 0; the first error of a domain that was
 * lost, with everything else open; -EALREADY if nothing is quiesced; -EDEADLK as above. Any thread,
 *  as above.
 */
RDMALLOC_API int rdmalloc_resume(void);

/* ------------------------------------------------------------------ settings and counters */

/** Reads and writes settings and counters by dotted name ("stats.dirty_bytes", "purge.decay_ms", …;
 *  docs/settings.md lists them). Values are uint64_t. `old` (with *old_size) receives the value
 *  before; `new_value` (with new_size) sets it; either may be NULL. Returns 0, -ENOENT (no such
 *  name), -EPERM (read only), -EINVAL (size or value out of range). Any thread. */
RDMALLOC_API int rdmalloc_ctl(const char* name, void* old_value, size_t* old_size,
                              const void* new_value, size_t new_size);

enum rdmalloc_stats_format {
  RDMALLOC_STATS_TEXT = 0,
  RDMALLOC_STATS_JSON = 1,
  RDMALLOC_STATS_PROMETHEUS = 2,
};
/** Writes all counters to `fd`, those of domains too (regcache.h). Allocates nothing. Returns 0,
 *  -EINVAL (format), or write(2)'s error. Any thread. */
RDMALLOC_API int rdmalloc_stats_print(int fd, enum rdmalloc_stats_format format);

/* ------------------------------------------------------------------ with the prefix
 * The same functions as the standard names, in every build; the only names in builds that override
 * nothing (sanitizers, valgrind, programs that keep their malloc). See malloc(3). */
RDMALLOC_API void* rdmalloc_malloc(size_t bytes);
RDMALLOC_API void* rdmalloc_calloc(size_t count, size_t bytes);
RDMALLOC_API void* rdmalloc_realloc(void* ptr, size_t bytes);
RDMALLOC_API void* rdmalloc_reallocarray(void* ptr, size_t count, size_t bytes);
RDMALLOC_API void rdmalloc_free(void* ptr);
RDMALLOC_API void rdmalloc_free_sized(void* ptr, size_t bytes);
RDMALLOC_API void rdmalloc_free_aligned_sized(void* ptr, size_t alignment, size_t bytes);
RDMALLOC_API int rdmalloc_posix_memalign(void** out, size_t alignment, size_t bytes);
RDMALLOC_API void* rdmalloc_aligned_alloc(size_t alignment, size_t bytes);
RDMALLOC_API void* rdmalloc_memalign(size_t alignment, size_t bytes);
RDMALLOC_API void* rdmalloc_valloc(size_t bytes);
RDMALLOC_API void* rdmalloc_pvalloc(size_t bytes);
RDMALLOC_API size_t rdmalloc_malloc_usable_size(void* ptr);
/** rdmalloc_purge(keep_bytes), and as safe; 1 when memory went back, 0 when none did or
 *  RDMALLOC_PURGE=off forbids it. */
RDMALLOC_API int rdmalloc_malloc_trim(size_t keep_bytes);

#ifdef __cplusplus
}
#endif
#endif
