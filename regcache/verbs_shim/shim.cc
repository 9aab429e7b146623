// SPDX-License-Identifier: BSD-3-Clause
//
// librdmalloc-verbs-shim.so: preloaded together with librdmalloc.so, gives a program without a
// registration cache one. Its ibv_reg_mr() of memory that rdmalloc owns, with local rights alone,
// is served from our cache; everything else (foreign memory, remote rights (I13), on-demand paging,
// other addresses than its own) goes to libibverbs as it is. The handle that the program gets has
// its own address and length, and the keys of the registration beneath; it holds that registration
// until ibv_dereg_mr(), which leaves it cached. Purges then find it idle.
//
// Two rdmalloc domains at most for each protection domain, one that grants local writing and one
// that does not, so that no registration grants more than was asked for. They are closed before the
// protection domain is, and before its device.
#include <errno.h>
#include <pthread.h>
#include <rdmalloc/regcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "regcache/registrars/fault.h"
#include "regcache/verbs_shim/real.h"

namespace {

using rdmalloc::registrars::should_fail;
using rdmalloc_shim::kReal;

struct Shared {  // what a registrar is called with; lives as long as its domain
  ibv_pd* pd;
  int flags;
  // The device was closed under it: the kernel has ended its registrations by itself.
  std::atomic<bool> is_device_closed;
};

struct Handle {
  ibv_mr mr;  // what the program sees; first
  rdmalloc_reg* held;
  Handle* next_free;
};

// Bounded, and found by address alone: reading behind a struct of the provider's to tell its own
// from ours would not be safe. Backed where touched. When all are taken the program gets real ones.
constexpr std::size_t kMostHandles = 65536;
// rdmalloc has 64 domains for a process; the program may want some for itself.
constexpr std::size_t kMostDomains = 48;

struct Domain {
  Shared* shared;  // nullptr: free
  rdmalloc_domain* domain;
  bool is_closing;
};

struct State {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // of all below; never held over a registrar
  Domain domains[kMostDomains] = {};
  std::size_t handles_used = 0;
  Handle* free_handles = nullptr;
  // Statistics, relaxed.
  std::atomic<unsigned long> served{0}, passed_on{0}, tried_twice{0}, registered{0};
};
constinit State state;
constinit Handle handles[kMostHandles] = {};

class Guard {
 public:
  Guard() { pthread_mutex_lock(&state.lock); }
  ~Guard() { pthread_mutex_unlock(&state.lock); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};

Handle* handle_of(const ibv_mr* mr) {
  auto address = reinterpret_cast<std::uintptr_t>(mr);
  auto first = reinterpret_cast<std::uintptr_t>(handles);
  if (address - first >= sizeof handles) return nullptr;
  return reinterpret_cast<Handle*>(address);
}

Handle* take_handle() {
  Guard guard;
  if (Handle* taken = state.free_handles) {
    state.free_handles = taken->next_free;
    return taken;
  }
  return state.handles_used < kMostHandles ? &handles[state.handles_used++] : nullptr;
}

void give_back(Handle* handle) {
  Guard guard;
  handle->next_free = state.free_handles;
  state.free_handles = handle;
}

// libibverbs' ibv_reg_mr calls its own ibv_reg_mr_iova2 by name, which is ours: what we pass on
// must not come back to us as the program's wish.
thread_local bool is_passing_on = false;

template <typename Call>
ibv_mr* past_us(Call call) {
  bool was_passing_on = is_passing_on;
  is_passing_on = true;
  ibv_mr* mr = call();
  is_passing_on = was_passing_on;
  return mr;
}

// ---- the registrar beneath ----

int register_memory(void* context, void* address, std::size_t length, std::uint32_t,
                    rdmalloc_key* key) {
  auto* shared = static_cast<Shared*>(context);
  if (should_fail("verbs_register")) return -ENOMEM;
  errno = 0;
  ibv_mr* mr = past_us([&] { return kReal.reg_mr(shared->pd, address, length, shared->flags); });
  if (mr == nullptr) return errno != 0 ? -errno : -EIO;
  state.registered.fetch_add(1, std::memory_order_relaxed);
  *key = {mr->lkey, mr->rkey, mr, 0};
  return 0;
}

int deregister_memory(void* context, void*, std::size_t, const rdmalloc_key* key) {
  // Acquire: pairs with the release in close_domains().
  if (static_cast<Shared*>(context)->is_device_closed.load(std::memory_order_acquire)) return 0;
  if (should_fail("verbs_deregister")) return -EIO;
  return -kReal.dereg_mr(static_cast<ibv_mr*>(key->handle));
}

void close_context(void* context) {
  free(context);
}

rdmalloc_domain* open_domain(Shared* shared) {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "verbs-shim";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
              RDMALLOC_REGISTRAR_EXACT_ACCESS | RDMALLOC_REGISTRAR_PINS;
  ops.register_ = register_memory;
  ops.deregister = deregister_memory;
  ops.close = close_context;
  rdmalloc_domain_attr attr = {};
  attr.size = sizeof attr;
  attr.access = shared->flags != 0 ? RDMALLOC_ACCESS_LOCAL : RDMALLOC_ACCESS_LOCAL_READ;
  rdmalloc_domain* domain = nullptr;
  return rdmalloc_domain_open(&ops, shared, &attr, &domain) == 0 ? domain : nullptr;
}

// The place of the domain for these rights over a protection domain, or a free one; nullptr when
// all are taken. Under the lock.
Domain* place_of(ibv_pd* pd, int flags) {
  Domain* free_one = nullptr;
  for (Domain& one : state.domains) {
    if (one.shared == nullptr)
      free_one = free_one != nullptr ? free_one : &one;
    else if (!one.is_closing && one.shared->pd == pd && one.shared->flags == flags)
      return &one;
  }
  return free_one;
}

// That domain, opened at first use; nullptr when there can be none. Opened under no lock: rdmalloc
// may then close a domain that the program has abandoned, whose registrar calls us.
rdmalloc_domain* domain_of(ibv_pd* pd, int flags) {
  {
    Guard guard;
    Domain* place = place_of(pd, flags);
    if (place == nullptr || place->shared != nullptr)
      return place != nullptr ? place->domain : nullptr;
  }
  auto* shared = rdmalloc::registrars::allocate<Shared>();
  if (shared == nullptr) return nullptr;
  shared->pd = pd;
  shared->flags = flags;
  rdmalloc_domain* domain = open_domain(shared);
  if (domain == nullptr) {
    free(shared);
    return nullptr;
  }
  rdmalloc_domain* others = nullptr;
  {
    Guard guard;
    Domain* place = place_of(pd, flags);
    if (place != nullptr && place->shared == nullptr) {
      *place = {shared, domain, false};
      return domain;
    }
    if (place != nullptr) others = place->domain;
  }
  // Another thread was first, or took the last place.
  rdmalloc_domain_abandon(domain);
  return others;
}

// ---- what the program calls ----

// Memory of rdmalloc's, local rights alone.
bool is_for_us(const void* address, std::size_t length, unsigned access) {
  return (access & ~unsigned{IBV_ACCESS_LOCAL_WRITE}) == 0 && length != 0 && rdmalloc_owns(address);
}

// A cached registration in a handle of ours, or nullptr: then the real function shall try, and
// explain a failure in its own words.
ibv_mr* serve(ibv_pd* pd, void* address, std::size_t length, unsigned access) {
  rdmalloc_domain* domain = domain_of(pd, static_cast<int>(access));
  if (domain == nullptr) return nullptr;
  std::uint32_t rights = access != 0 ? RDMALLOC_ACCESS_LOCAL : RDMALLOC_ACCESS_LOCAL_READ;
  rdmalloc_reg* held = nullptr;
  if (rdmalloc_reg_get(domain, address, length, rights, &held) != 0) return nullptr;
  Handle* handle = take_handle();
  if (handle == nullptr) {
    rdmalloc_reg_put(held);
    return nullptr;
  }
  rdmalloc_key key;
  rdmalloc_reg_key_of(held, &key);
  handle->mr = *static_cast<ibv_mr*>(key.handle);
  handle->mr.addr = address;
  handle->mr.length = length;
  handle->held = held;
  state.served.fetch_add(1, std::memory_order_relaxed);
  return &handle->mr;
}

// Deregisters what no handle holds. Whether there was any.
bool give_up_idle() {
  std::int64_t given_up = 0;
  for (Domain& one : state.domains) {
    rdmalloc_domain* domain = nullptr;
    {
      Guard guard;
      if (one.shared != nullptr && !one.is_closing) domain = one.domain;
    }
    // One that is closed meanwhile answers -EINVAL.
    std::int64_t dropped = domain != nullptr ? rdmalloc_domain_flush(domain) : 0;
    if (dropped > 0) given_up += dropped;
  }
  return given_up != 0;
}

// By libibverbs. Where memory to pin or the device's table is used up (both ENOMEM), what the
// program has given back may have it still, idle in our cache: it is given up for a second try.
template <typename PassOn>
ibv_mr* try_twice(PassOn pass_on) {
  ibv_mr* mr = past_us(pass_on);
  if (mr != nullptr || errno != ENOMEM) return mr;
  bool may_succeed = give_up_idle();
  errno = ENOMEM;
  if (!may_succeed) return nullptr;
  state.tried_twice.fetch_add(1, std::memory_order_relaxed);
  return past_us(pass_on);
}

// What the program gets: from our cache where that may be (`pd` not null), else by `pass_on`.
template <typename PassOn>
ibv_mr* serve_or(ibv_pd* pd, void* address, std::size_t length, unsigned access, PassOn pass_on) {
  if (is_passing_on) return pass_on();
  if (pd != nullptr && is_for_us(address, length, access))
    if (ibv_mr* mr = serve(pd, address, length, access)) return mr;
  state.passed_on.fetch_add(1, std::memory_order_relaxed);
  return try_twice(pass_on);
}

// What becomes of a domain that can't be closed: a handle is held, or a checkpoint is at work.
enum class Else { kStays, kIsAbandoned, kIsOverWithItsDevice };

// Closes the rdmalloc domains that `is_wanted` picks. Those that are over with their device may
// have handles that the program never gave back: their registrations end with the device, and
// libibverbs may not be called for them again.
template <typename Wanted>
void close_domains(Wanted is_wanted, Else otherwise) {
  for (Domain& one : state.domains) {
    {
      Guard guard;
      if (one.shared == nullptr || one.is_closing || !is_wanted(*one.shared)) continue;
      one.is_closing = true;
    }
    bool is_gone = rdmalloc_domain_close(one.domain) == 0;
    if (!is_gone && otherwise == Else::kIsOverWithItsDevice) {
      rdmalloc_domain_flush(one.domain);
      // Release: pairs with the acquire in deregister_memory().
      one.shared->is_device_closed.store(true, std::memory_order_release);
    }
    if (!is_gone && otherwise != Else::kStays) {
      rdmalloc_domain_abandon(one.domain);
      is_gone = true;
    }
    Guard guard;
    if (is_gone) one = {};
    one.is_closing = false;  // in use: the real function says so too
  }
}

}  // namespace

extern "C" {

#define RDMALLOC_SHIM_API __attribute__((visibility("default")))

RDMALLOC_SHIM_API ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return serve_or(pd, address, length, static_cast<unsigned>(access),
                  [&] { return kReal.reg_mr(pd, address, length, access); });
}

// Both: registrations at another address than the memory's go to the real ones.
RDMALLOC_SHIM_API ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                          int access) {
  bool is_plain = iova == reinterpret_cast<std::uintptr_t>(address);
  return serve_or(is_plain ? pd : nullptr, address, length, static_cast<unsigned>(access),
                  [&] { return kReal.reg_mr_iova(pd, address, length, iova, access); });
}

RDMALLOC_SHIM_API ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                           unsigned access) {
  bool is_plain = iova == reinterpret_cast<std::uintptr_t>(address);
  return serve_or(is_plain ? pd : nullptr, address, length, access,
                  [&] { return kReal.reg_mr_iova2(pd, address, length, iova, access); });
}

RDMALLOC_SHIM_API int ibv_dereg_mr(ibv_mr* mr) {
  Handle* handle = handle_of(mr);
  if (handle == nullptr) return kReal.dereg_mr(mr);
  rdmalloc_reg_put(handle->held);
  give_back(handle);
  return 0;
}

// A handle of ours can't become a real one, nor be changed under its cache.
RDMALLOC_SHIM_API int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length,
                                   int access) {
  if (handle_of(mr) == nullptr) return kReal.rereg_mr(mr, flags, pd, address, length, access);
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;  // nothing has changed, the old registration stays
}

RDMALLOC_SHIM_API int ibv_dealloc_pd(ibv_pd* pd) {
  auto is_over_it = [pd](const Shared& shared) { return shared.pd == pd; };
  close_domains(is_over_it, Else::kStays);
  int error = kReal.dealloc_pd(pd);
  // Nothing is registered with it, or it would be in use; and it may not be looked at again.
  if (error == 0) close_domains(is_over_it, Else::kIsAbandoned);
  return error;
}

RDMALLOC_SHIM_API int ibv_close_device(ibv_context* context) {
  close_domains([context](const Shared& shared) { return shared.pd->context == context; },
                Else::kIsOverWithItsDevice);
  return kReal.close_device(context);
}

}  // extern "C"

namespace {

// The child's one thread may find the lock held by a thread of the parent, and the lists of handles
// in the midst of a change, which loses one handle at most. The parent's domains are not the
// child's.
void forget_in_child() {
  state.lock = PTHREAD_MUTEX_INITIALIZER;
  for (Domain& one : state.domains) one = {};
}

__attribute__((constructor)) void begin() {
  if (should_fail("fork_handler") || pthread_atfork(nullptr, nullptr, forget_in_child) != 0)
    dprintf(STDERR_FILENO,
            "rdmalloc: librdmalloc-verbs-shim.so: libc takes no fork handler; a child of fork must "
            "not register\n");
  void* probe = malloc(64);
  const char* log = getenv("RDMALLOC_LOG");  // NOLINT(concurrency-mt-unsafe): before main
  if (!rdmalloc_owns(probe) && (log == nullptr || strcmp(log, "quiet") != 0))
    dprintf(STDERR_FILENO,
            "rdmalloc: librdmalloc-verbs-shim.so caches nothing: malloc is not rdmalloc's; preload "
            "librdmalloc.so as well\n");
  free(probe);
}

__attribute__((destructor)) void end() {
  const char* wanted = getenv("RDMALLOC_STATS");  // NOLINT(concurrency-mt-unsafe): after main
  if (wanted == nullptr || strcmp(wanted, "1") != 0) return;
  dprintf(STDERR_FILENO,
          "rdmalloc verbs shim: %lu registrations served by %lu real ones, %lu passed on, %lu of "
          "them tried twice\n",
          state.served.load(std::memory_order_relaxed),
          state.registered.load(std::memory_order_relaxed),
          state.passed_on.load(std::memory_order_relaxed),
          state.tried_twice.load(std::memory_order_relaxed));
}

}  // namespace
