/* SPDX-License-Identifier: BSD-3-Clause
 *
 * rdmalloc: the registration cache. Domains, registrations and keys; see rdmalloc.h for conventions
 * and docs/design.md for the protocol between the cache and the allocator's page events. More than
 * 600 lines, two thirds of them comments: the whole interface of the cache, but the registrars'.
 */
#ifndef RDMALLOC_REGCACHE_H
#define RDMALLOC_REGCACHE_H

#include <errno.h>
#include <rdmalloc/rdmalloc.h>
#include <sys/uio.h> /* struct iovec */

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ access */

/** Access rights of a registration, or-ed together. The values are ours; registrars translate. */
#define RDMALLOC_ACCESS_LOCAL_READ 0x01u    /**< the device may read it for the owner's sends */
#define RDMALLOC_ACCESS_LOCAL_WRITE 0x02u   /**< the device may write it for the owner's receives */
#define RDMALLOC_ACCESS_REMOTE_READ 0x04u   /**< peers may read it (RMA read target) */
#define RDMALLOC_ACCESS_REMOTE_WRITE 0x08u  /**< peers may write it (RMA write target) */
#define RDMALLOC_ACCESS_REMOTE_ATOMIC 0x10u /**< peers may run atomics on it */
#define RDMALLOC_ACCESS_LOCAL (RDMALLOC_ACCESS_LOCAL_READ | RDMALLOC_ACCESS_LOCAL_WRITE)
#define RDMALLOC_ACCESS_REMOTE \
  (RDMALLOC_ACCESS_REMOTE_READ | RDMALLOC_ACCESS_REMOTE_WRITE | RDMALLOC_ACCESS_REMOTE_ATOMIC)
/** Only look: reg_key and reg_get return -ENOENT instead of registering. */
#define RDMALLOC_NO_REGISTER 0x80000000u

/** What a fabric needs with each transfer. */
struct rdmalloc_key {
  uint64_t lkey;       /**< local key, or fixed-buffer index with io_uring */
  uint64_t rkey;       /**< key to send to a peer; 0 when registered without remote access */
  void* handle;        /**< the registrar's own: ibv_mr *, fid_mr *, ucp_mem_h, … or NULL */
  uint64_t generation; /**< never the same for two registrations of one domain */
};

/* ------------------------------------------------------------------ registrars */

struct rdmalloc_domain;

/** What a domain's user hears around a checkpoint (rdmalloc_quiesce), in this order. */
enum rdmalloc_domain_event {
  /** A quiesce begins. End transfers and put what is held: the quiesce waits for that. Gets still
   *  work, and what they return is to be put too; once each domain has heard this event, new
   *  registrations fail with -EAGAIN. */
  RDMALLOC_DOMAIN_PREPARE = 1,
  /** Nothing is registered any more. Close what a checkpoint can't save: queue pairs and completion
   *  queues, a protection domain, a ring. */
  RDMALLOC_DOMAIN_CLOSE = 2,
  /** The resume: open again what the registrar needs and give it that: a protection domain
   *  (rdmalloc_verbs_set_pd()), a fid_domain (rdmalloc_libfabric_set_domain()), a UCP context
   *  (rdmalloc_ucx_set_context()), a ring in the same place. */
  RDMALLOC_DOMAIN_OPEN = 3,
  /** The domain works, with new keys. Called after PREPARE alone when the quiesce has failed. */
  RDMALLOC_DOMAIN_RESUMED = 4,
  /** Instead of RESUMED: the domain is lost (rdmalloc_domain_lost), since PREPARE, or because it
   *  could not be opened again. If its registrar's device is there all the same (it has refused
   *  something with another error than -ENODEV), later quiesces pass it by and leave it open:
   *  destroy its heaps and pools and close it before the next checkpoint. */
  RDMALLOC_DOMAIN_LOST = 5,
};

/** What a registrar can do. */
#define RDMALLOC_REGISTRAR_ANY_THREAD 0x1u   /**< may be called from any thread, also two at once */
#define RDMALLOC_REGISTRAR_SYNC_DEREG 0x2u   /**< when deregister returns the pages are unpinned */
#define RDMALLOC_REGISTRAR_EXACT_ACCESS 0x4u /**< grants exactly the rights and the bytes asked */
#define RDMALLOC_REGISTRAR_REOPEN                                    \
  0x8u /**< a quiesce ends everything that was registered, also what \
            deregister could not undo: no range stays quarantined */
/** What is registered ends with the device: deregister is not called after its loss. */
#define RDMALLOC_REGISTRAR_DIES_WITH_DEVICE 0x10u
/** What is registered counts against RLIMIT_MEMLOCK: as pinned pages (VmPin: devices, io_urings),
 *  or as locked ones (VmLck: mlock). The cache then knows what the limit leaves: idle registrations
 *  of all such domains are evicted for it, and beyond it the registrar isn't asked. Of pinned pages
 *  a checked build compares the frames at each hit, since a pin keeps them from register_ to
 *  deregister, and aborts at a stale one. */
#define RDMALLOC_REGISTRAR_PINS 0x20u
#define RDMALLOC_REGISTRAR_LOCKS 0x40u
/** No two registrations may have a page in common: register_ answers -EEXIST. The cache notes which
 *  uncounted keys were given of a block as it is now, and drops none of these. So each
 *  rdmalloc_reg_key() takes a lock, except in a registered heap. Without this flag a key that was
 *  asked for after its block grew in place may end as soon as more of the block is registered. */
#define RDMALLOC_REGISTRAR_NO_OVERLAP 0x80u

/** What resume() returns where nothing is left of what was registered before the quiesce, also what
 *  deregister could not undo: no range stays quarantined. For a registrar without REOPEN, which
 *  learns only then that its device is another one. */
#define RDMALLOC_RESUMED_ANEW 0x10000

/** The code that registers with one kind of domain. Called with no lock of rdmalloc held, never on
 *  a thread inside malloc or free; may allocate and free. Each call must return, with the thread's
 *  cancellation off meanwhile: an exception, longjmp() or pthread_exit() that leaves one leaves the
 *  range as it is for ever: it can't be purged, nor its domain closed (-EBUSY, or no return). A
 *  child forked inside may only end or call exec: it must not return to the cache, which it finds
 *  empty. */
struct rdmalloc_registrar_ops {
  size_t size;      /**< sizeof(struct rdmalloc_registrar_ops) */
  const char* name; /**< for messages and statistics; static storage */
  uint32_t flags;   /**< RDMALLOC_REGISTRAR_* */
  /** Registers [addr, addr+length) with `access` and fills *key (lkey, rkey, handle). 0 or a
   *  negative errno; -ENOMEM and -ENOSPC make the cache evict idle ones and ask once more, and so
   *  does -EEXIST with those that overlap the range, for registrars that can't have both.
   *  -ENODEV, here and from deregister: the device is gone (rdmalloc_domain_lost).
   *  -ENOTRECOVERABLE: it failed half-way and could not be undone, so that the device may reach the
   *  range; it is quarantined, as after a deregister that fails. With every other error nothing may
   *  be left. */
  /* NOLINTNEXTLINE(readability-identifier-naming): "register" is a keyword. */
  int (*register_)(void* context, void* addr, size_t length, uint32_t access,
                   struct rdmalloc_key* key);
  /** Undoes one register_. Must not return before the pages are unpinned, if SYNC_DEREG is
   *  declared. 0, or a negative errno: the range is then quarantined (never purged, counted,
   *  reported). */
  int (*deregister)(void* context, void* addr, size_t length, const struct rdmalloc_key* key);
  /** May be NULL. Give up kernel objects for a checkpoint (rdmalloc_quiesce); everything is
   *  deregistered by then. 0, or a negative errno with nothing given up: the quiesce fails. */
  int (*quiesce)(void* context);
  /** May be NULL. Open again after quiesce. 0; RDMALLOC_RESUMED_ANEW; or an errno: the domain is
   *  lost. Its device counts as gone for -ENODEV only: after another one, also of register_ in a
   *  resume, deregister is called and what it can't undo is quarantined. */
  int (*resume)(void* context);
  /** May be NULL. Called once by domain_close, after the last deregister, perhaps between quiesce
   *  and resume. */
  void (*close)(void* context);
  size_t granularity; /**< registrations start and end at multiples of it, bytes, a power of two;
                           0: local ones at pages, remote ones at any byte (EXACT_ACCESS). Above
                           a page: foreign memory must fill it, and while the domain is open only
                           whole units of it are purged, in which nothing is in use */
  size_t largest;     /**< largest single registration, bytes; 0: no limit */
  uint32_t max_count; /**< most registrations at once; 0: no limit */
};

/** Settings of one domain; zero means the default everywhere. */
struct rdmalloc_domain_attr {
  size_t size;        /**< sizeof(struct rdmalloc_domain_attr) */
  uint32_t access;    /**< local rights that each cached registration gets; default
                           RDMALLOC_ACCESS_LOCAL. Remote rights are refused (-EINVAL, I13). */
  uint32_t flags;     /**< none yet: 0 */
  uint64_t max_bytes; /**< registered bytes at most; default RDMALLOC_REG_MAX_BYTES, else no limit.
                           Uncounted keys may take three quarters of it. */
  uint64_t max_count; /**< registrations at most; default RDMALLOC_REG_MAX_COUNT, else 2^25 in all
                           domains or the registrar's. Uncounted keys may take 3/4 of it. */
  size_t largest;     /**< largest single registration, bytes; default the registrar's */
  /** May be NULL. Called at checkpoints, on the thread that calls rdmalloc_quiesce() or
   *  rdmalloc_resume(), with no lock of rdmalloc held. May allocate, free and put, and in PREPARE
   *  and RESUMED get; quiescing and resuming fail there (-EDEADLK), and so do opening and closing
   *  of domains, heaps and pools (-EAGAIN). Forking: as for the registrar's functions. A negative
   *  errno from PREPARE or CLOSE makes the quiesce fail with it; from OPEN, the domain is lost. */
  int (*event)(struct rdmalloc_domain* domain, enum rdmalloc_domain_event event, void* arg);
  void* event_arg;
};

/** Opens a domain: one place that memory is registered with, through the registrar `ops`. Copies
 *  `*ops` and `*attr` (may be NULL); `context` is passed to the registrar and must live until the
 *  domain is closed. Starts the purge thread. Returns 0, -EINVAL, -ENOMEM, -EMFILE (64 domains),
 *  -ENOTSUP (a registrar without SYNC_DEREG), -EAGAIN (a checkpoint is under way), or -EDEADLK
 *  inside a page event. Must not be called by a registrar. If the registrar's granularity is above
 *  a page, the call waits for a purge that is under way, as rdmalloc_purge_pause() does, and must
 *  not be made inside a fabric's callback.
 *
 *  A registrar without ANY_THREAD is called by threads that call into the domain, never by the
 *  purge thread. A purge over its idle registrations is refused once; the next call that misses (or
 *  flush, or close) drops them, and the next purge succeeds.
 *
 *  A child of fork finds the parent's domains empty: calls return -ECHILD, a put of a registration
 *  of the parent does nothing, and close forgets the handle without calling the registrar. Open a
 *  new domain in the child. */
RDMALLOC_API int rdmalloc_domain_open(const struct rdmalloc_registrar_ops* ops, void* context,
                                      const struct rdmalloc_domain_attr* attr,
                                      struct rdmalloc_domain** domain);

/** Deregisters everything and closes the domain. Returns 0; -EBUSY, with nothing changed, if a
 *  counted registration is held (rdmalloc_reg_get() without its put) or being made, or a registered
 *  heap or a pool has the domain; -EAGAIN while a quiesce or a resume is at work; -EINVAL (not
 *  open); -EDEADLK inside a page event, inside deregister and inside the `done` of an invalidation,
 *  where rdmalloc_domain_abandon() works. Ends uncounted keys. Waits for a purge that is
 *  deregistering in this domain. A call into the domain on another thread either ends before the
 *  close or fails with -EINVAL. Do not use the handle afterwards: another domain may get it. */
RDMALLOC_API int rdmalloc_domain_close(struct rdmalloc_domain* domain);

/** rdmalloc_domain_close() for a caller that cannot try again, a destructor for example. Closes the
 *  domain now, or leaves it to the library to close it as soon as that is possible, as
 *  rdmalloc_heap_abandon() does with heaps. Until then puts and frees work as before, and the
 *  registrar still uses `context`. Returns 0 (closed), -EINPROGRESS (the library closes it later: a
 *  registration is held or being made, a checkpoint is under way, or this is a page event or a
 *  registrar's call) or -EINVAL (not open). Any thread. */
RDMALLOC_API int rdmalloc_domain_abandon(struct rdmalloc_domain* domain);

/** Deregisters every idle registration that is not sticky, and every sticky one whose range holds
 *  no live block any more, nor a free one that another thread keeps for its next malloc. Returns
 *  the number of registrations dropped, or a negative errno. */
RDMALLOC_API int64_t rdmalloc_domain_flush(struct rdmalloc_domain* domain);

/** Tells the cache that the domain's device is gone: a fatal event of the fabric, a hot unplug. A
 *  registrar does the same by returning -ENODEV. The cache warns once. From then on
 *  - every get, key, flush and prefault of the domain fails with -ENODEV,
 *  - its registrations are dropped, held ones at their last put; the cache ignores what deregister
 *    returns for them, and does not call it if the registrar has DIES_WITH_DEVICE,
 *  - it keeps no page from being purged, not even under a held registration: the caller ensures
 *    that the device reaches memory no more.
 *  Other domains go on. This one stays open, for puts and counters, until it is closed. Between
 *  rdmalloc_quiesce() and rdmalloc_resume(), and in CLOSE and OPEN, it is lost at once too: the
 *  resume does not open it again, warns, returns -ENODEV and calls `event` with LOST. Returns 0,
 *  -EALREADY (lost before), -EINVAL, -ECHILD, or -EDEADLK inside a page event. Any thread that may
 *  call the registrar. */
RDMALLOC_API int rdmalloc_domain_lost(struct rdmalloc_domain* domain);

/** What the domain's registrar has as its context, for a library that adds calls of its own to a
 *  registrar: 0 and *context, or -EINVAL when there is no such domain or its registrar has not
 *  exactly this `register_`. Any thread. */
RDMALLOC_API int rdmalloc_domain_context(struct rdmalloc_domain* domain,
                                         const struct rdmalloc_registrar_ops* ops, void** context);

/** Counters of one domain: registrations == deregistrations + lost_drops + live_count. */
struct rdmalloc_domain_counters {
  size_t size;
  uint64_t hits;              /**< reg_get without the registrar (reg_key's are not counted) */
  uint64_t misses;            /**< calls that had to register */
  uint64_t registrations;     /**< calls of register_ that succeeded, or could not be undone */
  uint64_t deregistrations;   /**< successful calls of deregister */
  uint64_t evictions;         /**< idle registrations dropped for a limit or a refusal */
  uint64_t refusals;          /**< register_ calls that failed, retries included */
  uint64_t purge_drops;       /**< registrations dropped because their pages were purged */
  uint64_t purge_refusals;    /**< purges refused: a registration in use, sticky or quarantined */
  uint64_t foreign;           /**< registrations of foreign memory */
  uint64_t quarantined;       /**< could not be ended, or neither made nor undone */
  uint64_t live_count;        /**< registrations now; those that failed to end, too */
  uint64_t live_bytes;        /**< their bytes */
  uint64_t sticky_count;      /**< of these: sticky, by uncounted keys */
  uint64_t sticky_bytes;      /**< bytes of the sticky ones */
  uint64_t in_use;            /**< registrations held by reg_get */
  uint64_t register_ns_worst; /**< longest call of register_, ns */
  uint64_t register_ns_total; /**< all calls of register_, ns */
  uint64_t prefaulted;        /**< registrations found or made by rdmalloc_reg_prefault */
  uint64_t is_lost;           /**< 1: its device is gone, or a resume could not open it */
  uint64_t lost_drops;        /**< registrations that ended with it, without a deregistration */
  uint64_t register_ns_mean;  /**< of all calls of register_, ns */
  uint64_t
      memlock_refusals; /**< registrations that RLIMIT_MEMLOCK left no room for; not asked for */
  uint64_t
      memlock_limit_bytes; /**< RLIMIT_MEMLOCK; UINT64_MAX: none, CAP_IPC_LOCK, or not counted */
  uint64_t memlock_left_bytes; /**< what it leaves now */
  uint64_t purge_requests; /**< times the purge thread was asked to give everything free back, since
                                the registrar had no memory even after an eviction */
  uint64_t resumes;        /**< times it was opened again after a checkpoint */
  uint64_t flush_drops;    /**< registrations dropped by rdmalloc_domain_flush */
};
/** Fills *stats (set stats->size). 0, -EINVAL, -ECHILD. Takes time in proportion to the number of
 *  registrations, since hits and holders are counted in each; the others go on meanwhile, so `hits`
 *  and `in_use` are of the moments at which their parts were looked at, `in_use` at most
 *  `live_count`. Any thread. */
RDMALLOC_API int rdmalloc_domain_stats(struct rdmalloc_domain* domain,
                                       struct rdmalloc_domain_counters* stats);

/* ------------------------------------------------------------------ registrations */

struct rdmalloc_reg;

/* What the inline fast path reads. The layout is part of the ABI; treat every field as private. */
struct rdmalloc_reg_head {
  uintptr_t base;
  uint64_t extent; /* length << 16 | index of the domain << 8 | rights */
  struct rdmalloc_key key;
};
struct rdmalloc_domain_head {
  uintptr_t arena_base;
  size_t arena_length;
  const uint32_t* sticky; /* for each slice: 0, or what registration's key reg_key may give out */
  uintptr_t records;      /* registration number n lies at records + 64 * n */
};

/** The slow half of rdmalloc_reg_key; call that. */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(2) int rdmalloc_reg_key_slow(struct rdmalloc_domain* domain,
                                                                const void* addr, size_t length,
                                                                uint32_t access,
                                                                struct rdmalloc_key* key);

/** Gives the key of owned memory [addr, addr+length). The key is uncounted: it stays right until
 *  the block is freed or reallocated (in place too) or the domain is closed. The first call for a
 *  span registers it and makes the registration sticky: it is not evicted, and its pages are not
 * purged while a block in its range is live. Remote rights on ordinary blocks are refused (-EACCES,
 *  I13): use reg_get, or a heap made for it.
 *
 *  Returns 0, or an error with *key all zero: -EFAULT (not owned, or not in one span in use),
 *  -EACCES, -EINVAL (length or access is 0), -ENOENT (RDMALLOC_NO_REGISTER, and not registered),
 *  -ENOMEM (the limits' share for such keys, or the registrar; reg_get may still work), -EMSGSIZE
 *  (more than one registration may hold), -EAGAIN (a state that passes: an invalidation at the same
 *  time, a checkpoint under way, or memory that is being purged), -ECHILD (the domain of a parent
 *  process), or the registrar's error, such as -EEXIST where no two registrations may overlap and
 *  another thread is making or ending one. A purge beside a live block never makes the call fail.
 *  Any thread. A hit takes no lock and is wait-free, but with RDMALLOC_REGISTRAR_NO_OVERLAP. A miss
 *  calls the registrar: do not call inside a callback of its fabric, unless RDMALLOC_NO_REGISTER is
 *  given. */
RDMALLOC_ADDRESS_ONLY(2)
static inline int rdmalloc_reg_key(struct rdmalloc_domain* domain, const void* addr, size_t length,
                                   uint32_t access, struct rdmalloc_key* key) {
  const struct rdmalloc_domain_head* head = (const struct rdmalloc_domain_head*)domain;
  if (__builtin_expect(
          domain != NULL && key != NULL && (uintptr_t)addr - head->arena_base < head->arena_length,
          1)) {
    uintptr_t offset = (uintptr_t)addr - head->arena_base;
    const uint32_t* slot = &head->sticky[offset >> RDMALLOC_SLICE_SHIFT];
    /* Acquire pairs with the release store that publishes a registration in its slots. */
    uintptr_t number = __atomic_load_n(slot, __ATOMIC_ACQUIRE), at = head->records + (number << 6);
    if (__builtin_expect(number != 0, 1)) {
      const struct rdmalloc_reg_head* reg = (const struct rdmalloc_reg_head*)at;
      /* Acquire: a domain that ends beside us empties the slot before its record may become
       * another's: a reader of that one's fields finds the slot changed. Pairs with the release in
       * fill_in() and store_key(). (After an invalidation the same record may be in the slot again:
       * its caller ensures that no thread asks meanwhile.) */
      uintptr_t inside = (uintptr_t)addr - __atomic_load_n(&reg->base, __ATOMIC_ACQUIRE);
      uint64_t extent = __atomic_load_n(&reg->extent, __ATOMIC_ACQUIRE), reg_length = extent >> 16;
      uint32_t rights = RDMALLOC_NO_REGISTER | (uint8_t)extent;
      if (__builtin_expect(inside < reg_length && length - 1 < reg_length - inside &&
                               (access & ~rights) == 0 && (access << 1) != 0,
                           1)) {
        key->lkey = __atomic_load_n(&reg->key.lkey, __ATOMIC_ACQUIRE);
        key->rkey = __atomic_load_n(&reg->key.rkey, __ATOMIC_ACQUIRE);
        key->handle = __atomic_load_n(&reg->key.handle, __ATOMIC_ACQUIRE);
        key->generation = __atomic_load_n(&reg->key.generation, __ATOMIC_ACQUIRE);
        if (__builtin_expect(__atomic_load_n(slot, __ATOMIC_RELAXED) == number, 1)) return 0;
      }
    }
  }
  struct rdmalloc_key made; /* not *key: what has no address may stay in registers */
  int error = rdmalloc_reg_key_slow(domain, addr, length, access, key == NULL ? NULL : &made);
  if (key != NULL) *key = made;
  return error;
}

/** Gets a counted registration over [addr, addr+length): its pages and keys stay until the put.
 *  - Owned memory, local access: served from the cache, which registers the whole span, or a piece
 *    of a span that is longer than one registration may be.
 *  - Remote access: the cache registers exactly the bytes asked and deregisters them at the put, so
 *    that a peer's key ends there (I13). -EACCES if the registrar can't be exact (no EXACT_ACCESS),
 *    or if its granularity would expose a neighbour.
 *  - Foreign memory: the cache registers the pages asked and deregisters them at the put (I6),
 *    unless the memory is adopted (rdmalloc_adopt()) or refused (-EPERM, RDMALLOC_FOREIGN). -EINVAL
 *    if the registrar's granularity would take in what lies beside it.
 *  Returns 0 and sets *reg, or an errno as reg_key does, -EINVAL for NULL as well. Any thread. A
 *  miss calls the registrar, as for reg_key. */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(2) int rdmalloc_reg_get(struct rdmalloc_domain* domain,
                                                           const void* addr, size_t length,
                                                           uint32_t access,
                                                           struct rdmalloc_reg** reg);
/** Ends one get. Ignores NULL. Any thread. Calls the registrar if the put ends a registration: of
 *  foreign memory, with remote access, or one that was invalidated while it was held. A put of any
 *  other local registration of owned memory never calls it. */
RDMALLOC_API void rdmalloc_reg_put(struct rdmalloc_reg* reg);

/** First byte, length (bytes) and keys of a registration that the caller holds. */
static inline void* rdmalloc_reg_addr(const struct rdmalloc_reg* reg) {
  return (void*)((const struct rdmalloc_reg_head*)reg)->base;
}
static inline size_t rdmalloc_reg_length(const struct rdmalloc_reg* reg) {
  return (size_t)(((const struct rdmalloc_reg_head*)reg)->extent >> 16);
}
static inline void rdmalloc_reg_key_of(const struct rdmalloc_reg* reg, struct rdmalloc_key* key) {
  *key = ((const struct rdmalloc_reg_head*)reg)->key;
}

/** Invalidates the registrations over [addr, addr+length) in `domain` (NULL: in all domains). A
 *  later get does not find them; each is deregistered after its last put. Ends uncounted keys: the
 *  caller ensures that no thread uses one. Registered heaps keep theirs, those being made as well,
 *  which a later get finds. Calls `done(arg)` (may be NULL) once, when the last of
 *  them is gone, on this thread or on the thread that drops it; a registration that the registrar
 *  could not undo counts as gone. With NULL a registrar without ANY_THREAD is not called: what is
 *  idle there, and `done` with it, waits for a call into its domain, such as this one by its name.
 *  Returns the number of registrations invalidated; -EINVAL, -ECHILD, -ENODEV (the domain is lost:
 *  what is held there ends with its last put) or -EDEADLK with nothing done: inside a page event,
 *  but for a range within what is being purged, where nothing is registered once the cache has
 *  agreed;
 *  or -ENOMEM: invalidated, but `done` will not be called (a thousand completions are outstanding
 *  and the kernel gives no page for more). */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(2) int64_t
    rdmalloc_invalidate(struct rdmalloc_domain* domain, const void* addr, size_t length,
                        void (*done)(void* arg), void* arg);

/* ------------------------------------------------------------------ much memory at once */

/** Progress of a call of rdmalloc_reg_prefault(). */
struct rdmalloc_prefault_progress {
  size_t size;            /**< sizeof(struct rdmalloc_prefault_progress), as the library has it */
  uint64_t bytes;         /**< of the pages of all ranges */
  uint64_t backed_bytes;  /**< of these: backed by now, or foreign and left to the registrars */
  uint64_t registrations; /**< to be had, in all domains */
  uint64_t registered;    /**< of these: had by now */
  uint32_t threads;       /**< at work, the calling one among them */
};
/** Called with the progress; a nonzero return value cancels the call. */
typedef int (*rdmalloc_prefault_fn)(const struct rdmalloc_prefault_progress* progress, void* arg);

/** Backs the pages of all ranges and registers them with every domain, in parallel. Each range is
 *  the caller's: live blocks or parts of them, or adopted memory; no byte twice. `threads` threads
 *  do the work, the calling one among them; 0: as many as the caller's affinity allows. The bytes
 *  stay as they are. All pages come first: to register a page that is not there costs a hundred
 *  times as much.
 *
 *  The call registers what rdmalloc_reg_get() of the same memory with the domain's local rights
 *  would register, so the next rdmalloc_reg_get() or rdmalloc_reg_key() there is a hit. The call
 *  holds all registrations until it returns. Afterwards they are idle in the cache and evicted like
 *  any other, least recently used first. One thread registers one block, unless the domain limits
 *  the length of a registration (rdmalloc_domain_attr.largest): with a limit of 1 GiB, for example,
 *  several threads register the pieces of a block. Pages come from the NUMA node of the thread that
 *  backs them; the threads have the caller's affinity and memory policy. A registrar without
 *  ANY_THREAD is called on the calling thread only.
 *
 *  The call refuses first what can't fit (-ENOMEM, with a warning that tells both numbers): pages
 *  beyond the memory of the machine or the cgroup, bytes or registrations beyond a domain's limits.
 *
 *  `progress` (may be NULL) is called on the calling thread only, with no lock of rdmalloc held:
 *  once before any work, once after all of it, and in between. It may allocate, and call into the
 *  cache.
 *
 *  Returns 0; -ECANCELED by `progress`; -ENOMEM; -EPERM (foreign memory that is not adopted:
 *  the cache would keep nothing); -EFAULT (neither in one block nor foreign); -EMSGSIZE; -EINVAL
 *  (no domain, more than 64, an empty range); -ECHILD, also in a child forked inside `progress`;
 *  -EDEADLK inside a page event or a decommit; -EAGAIN (a state that passes, as for
 *  rdmalloc_reg_key()), or the first error of a registrar, with a warning. After an error the cache
 *  keeps what was registered until then, and the next call goes on from there. Calls registrars, as
 *  a miss of rdmalloc_reg_get() does, and waits for a purge of pages between small blocks: no page
 *  event may wait for it. If threads can't be created, fewer do the work. */
RDMALLOC_API int rdmalloc_reg_prefault(struct rdmalloc_domain* const* domains, size_t domain_count,
                                       const struct iovec* ranges, size_t range_count,
                                       unsigned threads, rdmalloc_prefault_fn progress, void* arg);

/* ------------------------------------------------------------------ checkpoints
 *
 * rdmalloc_quiesce() and rdmalloc_resume() are in rdmalloc.h. Between the two nothing is
 * registered, and calls that would register, or open or create something to register with, return
 * -EAGAIN; puts, stats, invalidate, closing and destroying work, on any number of threads. While
 * the quiesce or the resume itself is at work, closing and destroying return -EAGAIN too. */

/** What quiesce and resume did in this process. */
struct rdmalloc_quiesce_counters {
  size_t size;
  uint64_t is_quiesced;  /**< how many resumes are due */
  uint64_t quiesces;     /**< that stopped everything */
  uint64_t resumes;      /**< that opened everything again */
  uint64_t timeouts;     /**< quiesces that gave up waiting */
  uint64_t refusals;     /**< quiesces that failed for another reason */
  uint64_t deregistered; /**< registrations that ended for them */
  uint64_t reregistered; /**< of heaps and pools, made again by resumes */
  uint64_t lost_domains; /**< domains that could not be opened again */
};
/** Fills *stats (set stats->size). 0, -EINVAL. Any thread. */
RDMALLOC_API int rdmalloc_quiesce_stats(struct rdmalloc_quiesce_counters* stats);

/* ------------------------------------------------------------------ foreign memory */

/** Vouches for foreign memory: the caller ensures that its pages stay (no munmap, mmap over it,
 *  mremap, madvise or truncation of its file) until rdmalloc_disown() has returned 0. From now on
 *  reg_get with local access caches its registrations, page by page as asked, like those of owned
 *  memory; a hit takes no lock. Remote ones still end at their put (I13). Adopted ranges may touch
 *  and overlap; the cache joins them. RDMALLOC_FOREIGN says what happens to other foreign memory:
 *  `per-use`, the default; `adopted`: reg_get refuses it (-EPERM). Returns 0,
 *  -EINVAL (length 0), -EFAULT (touches owned memory), -ENOMEM, or
 *  -EDEADLK inside a page event. A child of fork has adopted nothing. Any thread. May start the
 *  purge thread: do not call inside a fabric's callback. */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(1) int rdmalloc_adopt(const void* addr, size_t length);

/** Ends the adoption of the range, which may be a part of what was adopted, or more. Deregisters
 *  idle registrations before it returns, and held ones at their last put. Returns 0: none is left,
 * the pages may go. -EBUSY: some are held, or (a registrar without ANY_THREAD) wait for a call into
 *  their domain; they are gone when rdmalloc_invalidate() over the range calls `done`. -ENOENT:
 *  nothing of the range was adopted. -ENOMEM, with nothing changed: an adopted range has to be cut
 *  in two, and there is no memory to note that. -EINVAL, -EDEADLK. Calls registrars. */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(1) int rdmalloc_disown(const void* addr, size_t length);

/** Counters of RDMALLOC_FOREIGN=watch. From the opening of the first domain to the closing of the
 *  last, userfaultfd tells the cache when pages of registered foreign memory go, so reg_get with
 *  local access caches that memory without rdmalloc_adopt(). Private anonymous memory only. Memory
 *  that can't be watched, or that a get asks for while a mapping changes, is registered for each
 *  use. */
struct rdmalloc_watch_counters {
  size_t size;
  uint64_t is_on;     /**< 1: watching */
  int64_t error;      /**< why not: a negative errno. 0: it could, but no domain is open or the
                           setting is another */
  uint64_t watched;   /**< registrations that are watched now */
  uint64_t events;    /**< unmappings, moves and removals that the kernel reported */
  uint64_t stale;     /**< registrations that ended by them */
  uint64_t unsettled; /**< gets that met a change under way, and registered for one use */
  uint64_t refusals;  /**< ranges that could not be watched */
  uint64_t
      retired; /**< ranges under madvise(DONTNEED, FREE, REMOVE): for each use until unmapped */
};
/** Fills *stats (set stats->size). 0, -EINVAL. Any thread. */
RDMALLOC_API int rdmalloc_watch_stats(struct rdmalloc_watch_counters* stats);

/* ------------------------------------------------------------------ registered heaps
 *
 * A heap with domains (struct rdmalloc_heap_attr) is made of regions: runs of addresses with one
 * registration in each of its domains, made and backed by pages when the heap is made, and held
 * until it is destroyed. So malloc, realloc and free in it call no registrar, and every block has
 * its keys from the start:
 *
 *   - rdmalloc_reg_key() and rdmalloc_reg_get() find them, with all the rights that the heap was
 *     made with, remote ones too. These are the heap's: a peer that got one may use all of the
 *     region until the heap is destroyed. No other block lies in it (I13).
 *   - rdmalloc_heap_key() gives them by the domain's place in the heap's list.
 *   - A heap no longer than one registration may be has one region, and its keys, asked for once,
 *     are those of every block.
 *
 * A domain does not close before its heaps: -EBUSY. Nothing of the heap is evicted, purged or
 * invalidated (rdmalloc_invalidate() passes it by); its memory stays backed until the heap's end,
 * freed blocks too. malloc fails with ENOMEM when no region has room, never by registering more:
 * rdmalloc_heap_grow() does that. A block lies in one region, so the longest is as long as the
 * longest region. In a child of fork the heap is there, with its bytes, and works; it has no
 * registrations, and asking for keys returns -ECHILD. */

/** One region of a registered heap. */
struct rdmalloc_heap_region_info {
  size_t size;         /**< sizeof(struct rdmalloc_heap_region_info), set by the caller */
  void* base;          /**< a multiple of 2 MiB, or of a domain's larger granularity */
  size_t length;       /**< bytes, likewise */
  size_t domain_count; /**< of the heap */
  const struct rdmalloc_key* keys; /**< keys[i]: with the heap's i-th domain, of every byte of the
                                        region; good until the heap is destroyed or quiesced,
                                        which leaves zeroes until the resume */
};

/** Fills *info for the index-th region of the heap, counted from 0. Returns 0, -ENOENT past the
 *  last one, -EINVAL (no registered heap, a bad size), -ECHILD. Any thread; calls no registrar,
 *  takes no lock. */
RDMALLOC_API int rdmalloc_heap_region(struct rdmalloc_heap* heap, size_t index,
                                      struct rdmalloc_heap_region_info* info);

/** The key of [addr, addr+length), any bytes in one of the heap's blocks, with the domain_index-th
 *  domain of its list. Returns 0, -EFAULT (not inside one region of this heap), -EINVAL (no
 *  registered heap, no such domain, length 0), -ENODEV (that domain is lost), -EAGAIN (between a
 *  quiesce and its resume), -ECHILD. Any thread; calls no registrar, takes no lock. */
RDMALLOC_API RDMALLOC_ADDRESS_ONLY(3) int rdmalloc_heap_key(struct rdmalloc_heap* heap,
                                                            size_t domain_index, const void* addr,
                                                            size_t length,
                                                            struct rdmalloc_key* key);

/* ------------------------------------------------------------------ pools of registered buffers */

struct rdmalloc_pool;

/** One buffer of a pool; always the same for the same bytes. Read it, don't write it. */
struct rdmalloc_buffer {
  void* addr;    /**< begins at a page */
  size_t length; /**< what the pool was made with, rounded up to pages */
  const struct rdmalloc_key*
      keys;             /**< keys[i]: with the pool's i-th domain; good while it is out */
  uint64_t reserved[5]; /**< private */
};

#define RDMALLOC_POOL_NONE UINT32_MAX /**< a count: no buffers of this size */

/** What a pool is made of; NULL instead of it, or 0 in a field, means the default. */
struct rdmalloc_pool_attr {
  size_t size;          /**< sizeof(struct rdmalloc_pool_attr) */
  size_t small_bytes;   /**< of a small buffer, rounded up to pages; default 8 KiB */
  size_t large_bytes;   /**< of a large one, at least as much; default 132 KiB */
  uint32_t small_count; /**< default 8192 */
  uint32_t large_count; /**< default 1024 */
  uint32_t access;      /**< of each buffer; default RDMALLOC_ACCESS_LOCAL. With remote rights each
                             buffer is registered by itself, so that its key opens no other (I13) */
  uint32_t flags;       /**< none yet: 0 */
  size_t budget_bytes;  /**< the buffers never take more; default: no limit */
};

/** How many buffers of `attr`'s sizes would fit now, in the proportion it asks for: within its
 *  budget, RDMALLOC_LIMIT, RDMALLOC_ARENA, and what the limits of every domain leave. Fills
 *  *small_count and *large_count; both are what was asked for when all fit. 0, or an error that
 *  fewer buffers would not cure: -EINVAL (a domain named twice, too), -ECHILD, -ENODEV (a domain is
 *  lost), -EAGAIN (a checkpoint is under way), -EMSGSIZE (a buffer is longer than one registration
 *  may be), -EACCES (remote rights, and a registrar that is not exact for a buffer). Any thread. */
RDMALLOC_API int rdmalloc_pool_fit(struct rdmalloc_domain* const* domains, size_t domain_count,
                                   const struct rdmalloc_pool_attr* attr, uint32_t* small_count,
                                   uint32_t* large_count);

/** Makes a pool of buffers that are backed by memory and registered with each of `domains` (1 to
 *  64) until the pool is destroyed; a domain does not close before. What can't fit is refused, with
 *  nothing left behind and a warning that says how many would fit; so is what makes no sense.
 *  Returns 0, -ENOMEM (does not fit, or a registrar refused), -EMFILE (there are 60 pools), -EAGAIN
 *  (no key of pthread_key_create() is left, too), the errors of rdmalloc_pool_fit(), or the
 *  registrar's. Calls registrars, as a miss of rdmalloc_reg_get(). */
RDMALLOC_API int rdmalloc_pool_create(struct rdmalloc_domain* const* domains, size_t domain_count,
                                      const struct rdmalloc_pool_attr* attr,
                                      struct rdmalloc_pool** pool);

/** Gets a buffer of at least `bytes`: a small one if that is enough. It comes from the cache of
 * this thread, from the pool, or from the caches of other threads, so every free buffer can be had.
 *  Returns 0 and sets *buffer; -EAGAIN when all of that size are out (counted), -EMSGSIZE (longer
 *  than a large one), -EINVAL, -ECHILD. Any thread; calls no registrar and no callback. */
RDMALLOC_API int rdmalloc_pool_get(struct rdmalloc_pool* pool, size_t bytes,
                                   struct rdmalloc_buffer** buffer);

/** Gives a buffer back, on any thread. If waiters wait for its size, the one that has waited
 *  longest gets it, and its callback runs on this thread before the call returns: put where that is
 *  safe. Returns 0; -ECHILD; or -EINVAL, with nothing changed, for an address that is no buffer of
 *  this pool, or is not out (put twice). */
RDMALLOC_API int rdmalloc_pool_put(struct rdmalloc_pool* pool, struct rdmalloc_buffer* buffer);

/** A waiter for a buffer. The caller's memory, the caller's again when `ready` is called or
 *  rdmalloc_pool_cancel() has returned 0. */
struct rdmalloc_pool_waiter {
  /** Called once, with the buffer, which the waiter then has to put. Runs inside
   *  rdmalloc_pool_put(), on the thread that puts the buffer, under no lock of rdmalloc; that
   *  thread may hold locks of the program's. May get, put, wait, cancel and register. The callbacks
   *  for buffers that it puts run after it has returned, not inside it, however many there are. An
   *  exception, longjmp() or the end of the thread may leave it: the put has happened then, and
   *  those callbacks have run. Any other jump out of it is an error. */
  void (*ready)(struct rdmalloc_pool_waiter* waiter, struct rdmalloc_buffer* buffer);
  void* arg;                         /**< the caller's */
  struct rdmalloc_pool_waiter* next; /**< private */
  struct rdmalloc_buffer* buffer;    /**< private */
};

/** Gets a buffer, or waits for one in a queue. Returns 0 with *buffer set, and never calls `ready`;
 *  or -EINPROGRESS, and `ready` will be called, perhaps before this returns. The waiters for one
 *  size are served in the order of their calls. -EALREADY, with nothing changed: this waiter waits
 *  already, in any pool. Other errors as for get. Any thread. */
RDMALLOC_API int rdmalloc_pool_wait(struct rdmalloc_pool* pool, size_t bytes,
                                    struct rdmalloc_pool_waiter* waiter,
                                    struct rdmalloc_buffer** buffer);

/** Takes a waiter out of the queue. Returns 0: `ready` will not be called. -ENOENT: it does not
 *  wait; `ready` was called or is about to be. -EINVAL, -ECHILD. Any thread. Takes time in
 *  proportion to the queue. */
RDMALLOC_API int rdmalloc_pool_cancel(struct rdmalloc_pool* pool,
                                      struct rdmalloc_pool_waiter* waiter);

/** Counters of the buffers of one size. */
struct rdmalloc_pool_side {
  uint64_t bytes;     /**< of one buffer */
  uint64_t count;     /**< buffers: == in_use + cached + free */
  uint64_t in_use;    /**< out now */
  uint64_t cached;    /**< in caches of threads */
  uint64_t free;      /**< the others */
  uint64_t gets;      /**< buffers handed out, to waiters too */
  uint64_t exhausted; /**< calls of get and wait that found all of them out */
  uint64_t waiting;   /**< waiters now */
};
/** Counters of a pool. */
struct rdmalloc_pool_counters {
  size_t size;
  struct rdmalloc_pool_side small, large;
  uint64_t memory_bytes;  /**< of all buffers */
  uint64_t registrations; /**< held, in all its domains */
};
/** Fills *stats (set stats->size). 0, -EINVAL, -ECHILD. Any thread. */
RDMALLOC_API int rdmalloc_pool_stats(struct rdmalloc_pool* pool,
                                     struct rdmalloc_pool_counters* stats);

/** Deregisters the buffers and frees them. Returns 0, -EINVAL, -EAGAIN while a quiesce or a resume
 *  is at work, or -EBUSY, with nothing changed, if a buffer is out. (Waiters exist only while
 *  buffers are out.) No other thread may be in a call for this pool; threads that used it need not
 *  have ended. Calls registrars.
 *
 *  A child of fork has the bytes of its parent's buffers, and addr and length of each, but no
 *  registrations (the keys read as zero) and no pool: every call returns -ECHILD, except destroy,
 *  which frees the child's copy of the memory without calling a registrar and returns 0. */
RDMALLOC_API int rdmalloc_pool_destroy(struct rdmalloc_pool* pool);

#ifdef __cplusplus
}
#endif
#endif
