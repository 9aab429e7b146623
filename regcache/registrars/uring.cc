// Fixed buffers of an io_uring: real kernel pins, on any Linux machine.
//
// The table is sparse: a registration fills one slot, with a tag; its end empties the slot, and the
// kernel posts a completion with the tag once the last request on the buffer is done and its pages
// are unpinned. Deregistering waits for that (uring_reap.cc).
#include "regcache/registrars/uring.h"

#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <rdmalloc/registrar_uring.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "alloc/core/sized_struct.h"
#include "regcache/registrars/fault.h"
#include "regcache/registrars/keep_errno.h"

namespace rdmalloc::registrars {
namespace {

// Other threads can't register with such a ring; or its completions are longer than a struct
// io_uring_cqe, all of them or some (IORING_SETUP_CQE_MIXED, which older headers lack).
constexpr unsigned kUnusable = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_CQE32 | 1u << 18;
constexpr int kPatienceMs = 5000;  // for requests on a buffer that was put before they were done

std::int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * std::int64_t{1000} + now.tv_nsec / 1000000;
}

int update_slot(rdmalloc_uring* uring, unsigned slot, void* addr, std::size_t length,
                std::uint64_t tag) {
  if (should_fail(addr != nullptr ? "uring_register" : "uring_remove")) return -ENOMEM;
  iovec buffer = {addr, length};
  __u64 tags[1] = {tag};
  int result = io_uring_register_buffers_update_tag(uring->ring, slot, &buffer, tags, 1);
  return result == 1 ? 0 : (result < 0 ? result : -EIO);
}

int uring_register(void* context, void* addr, std::size_t length, std::uint32_t access,
                   rdmalloc_key* key) {
  auto* uring = static_cast<rdmalloc_uring*>(context);
  if ((access & RDMALLOC_ACCESS_REMOTE) != 0) return -ENOTSUP;  // a ring has no peers
  pthread_mutex_lock(&uring->lock);
  bool has_slot = uring->free_count != 0;
  unsigned slot = has_slot ? uring->free_slots[--uring->free_count] : 0;
  if (has_slot) uring->is_removed[slot] = false;
  pthread_mutex_unlock(&uring->lock);
  if (!has_slot) return -ENOSPC;
  int error = update_slot(uring, slot, addr, length, kTag | slot);
  if (error == 0) {
    key->lkey = slot;
    return 0;
  }
  pthread_mutex_lock(&uring->lock);
  uring->free_slots[uring->free_count++] = slot;
  pthread_mutex_unlock(&uring->lock);
  return error;
}

int uring_deregister(void* context, void*, std::size_t, const rdmalloc_key* key) {
  auto* uring = static_cast<rdmalloc_uring*>(context);
  auto slot = static_cast<unsigned>(key->lkey);
  if (int error = update_slot(uring, slot, nullptr, 0, 0)) return error;
  // By the clock: signals cut turns short.
  for (std::int64_t end_ms = now_ms() + kPatienceMs; now_ms() <= end_ms;) {
    pthread_mutex_lock(&uring->lock);
    drain(uring);
    bool is_removed = uring->is_removed[slot];
    if (is_removed) uring->free_slots[uring->free_count++] = slot;
    pthread_mutex_unlock(&uring->lock);
    if (is_removed) return 0;
    sleep_a_turn(uring);
  }
  return -ETIMEDOUT;
}

void free_uring(rdmalloc_uring* uring) {
  pthread_mutex_destroy(&uring->lock);
  free(uring->free_slots);
  free(uring->is_removed);
  free(uring->kept);
  free(uring);
}

bool is_own(const rdmalloc_uring* uring) {
  return uring->ring == &uring->own;
}

void uring_close(void* context) {
  auto* uring = static_cast<rdmalloc_uring*>(context);
  if (!uring->is_closed) {
    io_uring_unregister_buffers(uring->ring);
    if (is_own(uring)) io_uring_queue_exit(&uring->own);
  }
  free_uring(uring);
}

// Every slot is free: nothing is registered, and a slot that could not be emptied went with its
// ring.
void free_all_slots(rdmalloc_uring* uring) {
  uring->free_count = 0;
  for (unsigned slot = uring->buffers; slot-- > 0;) uring->free_slots[uring->free_count++] = slot;
}

// The ring and its table. 0 with both there, or nothing.
int set_up(rdmalloc_uring* uring, io_uring* given, unsigned entries) {
  uring->ring = given != nullptr ? given : &uring->own;
  if (given == nullptr) {
    if (should_fail("uring_setup")) return -ENOMEM;
    if (int error = io_uring_queue_init(entries, &uring->own, 0)) return error;
  }
  int error = -EINVAL;
  if ((uring->ring->features & IORING_FEAT_EXT_ARG) != 0)
    error = should_fail("uring_table")
                ? -ENOMEM
                : io_uring_register_buffers_sparse(uring->ring, uring->buffers);
  if (error != 0 && given == nullptr) io_uring_queue_exit(&uring->own);
  return error == -EINVAL ? -ENOTSUP : error;
}

// The user closes a ring of the user's, in event(), and its table of buffers goes with it: it may
// not be there any more.
int uring_quiesce(void* context) {
  auto* uring = static_cast<rdmalloc_uring*>(context);
  pthread_mutex_lock(&uring->lock);
  // What is done waits for rdmalloc_uring_reap(), also after a restore.
  if (is_own(uring)) drain(uring);
  uring->is_closed = true;
  // No thread begins any more, and a turn is short.
  while (uring->sleepers != 0) {
    pthread_mutex_unlock(&uring->lock);
    usleep(kTurnMs * 100);
    pthread_mutex_lock(&uring->lock);
  }
  if (is_own(uring)) io_uring_queue_exit(&uring->own);
  pthread_mutex_unlock(&uring->lock);
  return 0;
}

int uring_resume(void* context) {
  auto* uring = static_cast<rdmalloc_uring*>(context);
  pthread_mutex_lock(&uring->lock);
  int error = set_up(uring, is_own(uring) ? nullptr : uring->ring, uring->entries);
  // The user has not closed it: the table is there, with the slots that could not be emptied.
  bool is_as_before = error == -EBUSY && !is_own(uring);
  if (is_as_before) error = 0;
  if (error == 0) {
    if (!is_as_before) {
      free_all_slots(uring);
      error = RDMALLOC_RESUMED_ANEW;
    }
    uring->is_closed = false;
  }
  pthread_mutex_unlock(&uring->lock);
  return error;
}

}  // namespace
}  // namespace rdmalloc::registrars

using namespace rdmalloc::registrars;

extern "C" RDMALLOC_API int rdmalloc_domain_open_uring(const rdmalloc_uring_attr* given,
                                                       const rdmalloc_domain_attr* domain_attr,
                                                       rdmalloc_domain** domain,
                                                       rdmalloc_uring** out) {
  KeepErrno keep;
  rdmalloc_uring_attr attr = {};
  if (int error = given != nullptr ? rdmalloc::read_struct(given, &attr) : 0) return error;
  if (domain == nullptr || out == nullptr) return -EINVAL;
  if (attr.buffers > RDMALLOC_URING_MOST_BUFFERS) return -EINVAL;
  if (attr.ring != nullptr && (attr.ring->flags & kUnusable) != 0) return -ENOTSUP;
  auto* uring = allocate<rdmalloc_uring>();
  if (uring == nullptr) return -ENOMEM;
  pthread_mutex_init(&uring->lock, nullptr);
  uring->buffers = attr.buffers != 0 ? attr.buffers : RDMALLOC_URING_MOST_BUFFERS;
  uring->entries = attr.entries != 0 ? attr.entries : 256;
  uring->free_slots = allocate<unsigned>(uring->buffers);
  uring->is_removed = allocate<bool>(uring->buffers);
  int error = uring->free_slots != nullptr && uring->is_removed != nullptr
                  ? set_up(uring, attr.ring, uring->entries)
                  : -ENOMEM;
  if (error != 0) {
    free_uring(uring);
    return error;
  }
  free_all_slots(uring);
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "io_uring";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
              RDMALLOC_REGISTRAR_EXACT_ACCESS | RDMALLOC_REGISTRAR_PINS;
  // A ring of the user's may outlive a quiesce, and with it what could not be removed: the resume
  // tells.
  if (is_own(uring)) ops.flags |= RDMALLOC_REGISTRAR_REOPEN;
  ops.register_ = uring_register;
  ops.deregister = uring_deregister;
  ops.quiesce = uring_quiesce;
  ops.resume = uring_resume;
  ops.close = uring_close;
  ops.largest = RDMALLOC_URING_LARGEST;
  ops.max_count = uring->buffers;
  error = rdmalloc_domain_open(&ops, uring, domain_attr, domain);
  if (error != 0) {
    uring_close(uring);
    return error;
  }
  uring->domain = *domain;
  *out = uring;
  return 0;
}

extern "C" RDMALLOC_API io_uring* rdmalloc_uring_ring(rdmalloc_uring* uring) {
  return uring != nullptr ? uring->ring : nullptr;
}
