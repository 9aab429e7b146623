// Fixed buffers of an io_uring: real kernel pins, on any Linux machine.
//
// The table is sparse: a registration fills one slot, with a tag; its end empties the slot, and the
// kernel posts a completion with the tag once the last request on the buffer is done and its pages
// are unpinned. Deregistering waits for that. Completions of the user's requests that turn up
// meanwhile are kept for the next reap.
#include <errno.h>
#include <liburing.h>
#include <pthread.h>
#include <rdmalloc/registrar_uring.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "regcache/registrars/fault.h"

namespace {

using rdmalloc::registrars::allocate;
using rdmalloc::registrars::should_fail;

// Tags are what no user's pointer is: the upper 16 bits of a canonical user address are zero.
constexpr std::uint64_t kTag = std::uint64_t{0x7264} << 48;
constexpr std::uint64_t kTagMask = std::uint64_t{0xffff} << 48;
constexpr int kTurnMs = 10;        // how long a wait may miss what another thread took for it
constexpr int kPatienceMs = 5000;  // for requests on a buffer that was put before they were done

}  // namespace

struct rdmalloc_uring {
  io_uring* ring;
  io_uring own;
  pthread_mutex_t lock;  // of everything below and of the completion queue's head
  unsigned buffers;
  unsigned free_count;
  unsigned* free_slots;  // a stack of free_count
  bool* is_removed;      // [slot]: its tag has come
  io_uring_cqe* kept;    // completions of the user's that a removal came across
  unsigned kept_count;
  unsigned kept_room;
  unsigned entries;
  bool is_closed;     // between quiesce and resume
  unsigned sleepers;  // threads that look at the ring without the lock
};

namespace {

bool keep(rdmalloc_uring* uring, const io_uring_cqe& completion) {
  if (uring->kept_count == uring->kept_room) {
    unsigned room = uring->kept_room == 0 ? 64 : 2 * uring->kept_room;
    void* grown = should_fail("registrar_memory")
                      ? nullptr
                      : realloc(uring->kept, room * sizeof(io_uring_cqe));
    if (grown == nullptr) return false;
    uring->kept = static_cast<io_uring_cqe*>(grown);
    uring->kept_room = room;
  }
  uring->kept[uring->kept_count++] = completion;
  return true;
}

// Empties the completion queue: tags are noted, the rest is kept. Under the lock. What can't be
// kept for want of memory stays in the queue.
void drain(rdmalloc_uring* uring) {
  if (uring->is_closed) return;
  io_uring_cqe* completion = nullptr;
  while (io_uring_peek_cqe(uring->ring, &completion) == 0 && completion != nullptr) {
    if ((completion->user_data & kTagMask) == kTag)
      uring->is_removed[completion->user_data & ~kTagMask] = true;
    else if (!keep(uring, *completion))
      return;
    io_uring_cqe_seen(uring->ring, completion);
  }
}

// Sleeps until a completion comes, without taking it, a turn at most: another thread may have taken
// what we wait for between our look and our sleep.
void sleep_a_turn(rdmalloc_uring* uring) {
  pthread_mutex_lock(&uring->lock);
  bool is_closed = uring->is_closed;
  if (!is_closed) ++uring->sleepers;
  pthread_mutex_unlock(&uring->lock);
  if (is_closed) return;
  io_uring_cqe* completion = nullptr;
  __kernel_timespec turn = {0, kTurnMs * 1000000LL};
  // Takes nothing off the queue, and with EXT_ARG (checked at open) submits nothing either.
  int error = should_fail("uring_wait")
                  ? -ENOMEM
                  : io_uring_wait_cqes(uring->ring, &completion, 1, &turn, nullptr);
  // What can't be waited for can be looked for, after a while all the same.
  if (error != 0 && error != -ETIME) usleep(1000);
  pthread_mutex_lock(&uring->lock);
  --uring->sleepers;
  pthread_mutex_unlock(&uring->lock);
}

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

// A ring of the user's is his to close, in his event(), and its table of buffers goes with it: it
// may not be there any more.
int uring_quiesce(void* context) {
  auto* uring = static_cast<rdmalloc_uring*>(context);
  pthread_mutex_lock(&uring->lock);
  // What is done waits for rdmalloc_uring_reap(), also after a restore.
  if (is_own(uring)) drain(uring);
  uring->is_closed = true;
  // Nobody begins any more, and a turn is short.
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
  // The user has not closed it: the table is there.
  if (error == -EBUSY && !is_own(uring)) error = 0;
  if (error == 0) {
    free_all_slots(uring);
    uring->is_closed = false;
  }
  pthread_mutex_unlock(&uring->lock);
  return error;
}

}  // namespace

extern "C" RDMALLOC_API int rdmalloc_domain_open_uring(const rdmalloc_uring_attr* attr,
                                                       const rdmalloc_domain_attr* domain_attr,
                                                       rdmalloc_domain** domain,
                                                       rdmalloc_uring** out) {
  rdmalloc_uring_attr defaults = {};
  defaults.size = sizeof defaults;
  if (attr == nullptr) attr = &defaults;
  if (attr->size < sizeof *attr || domain == nullptr || out == nullptr) return -EINVAL;
  if (attr->buffers > RDMALLOC_URING_MOST_BUFFERS) return -EINVAL;
  if (attr->ring != nullptr && (attr->ring->flags & IORING_SETUP_SINGLE_ISSUER) != 0)
    return -ENOTSUP;
  auto* uring = allocate<rdmalloc_uring>();
  if (uring == nullptr) return -ENOMEM;
  pthread_mutex_init(&uring->lock, nullptr);
  uring->buffers = attr->buffers != 0 ? attr->buffers : RDMALLOC_URING_MOST_BUFFERS;
  uring->entries = attr->entries != 0 ? attr->entries : 256;
  uring->free_slots = allocate<unsigned>(uring->buffers);
  uring->is_removed = allocate<bool>(uring->buffers);
  int error = uring->free_slots != nullptr && uring->is_removed != nullptr
                  ? set_up(uring, attr->ring, uring->entries)
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
              RDMALLOC_REGISTRAR_EXACT_ACCESS | RDMALLOC_REGISTRAR_PINS | RDMALLOC_REGISTRAR_REOPEN;
  ops.register_ = uring_register;
  ops.deregister = uring_deregister;
  ops.quiesce = uring_quiesce;
  ops.resume = uring_resume;
  ops.close = uring_close;
  ops.largest = RDMALLOC_URING_LARGEST;
  ops.max_count = uring->buffers;
  error = rdmalloc_domain_open(&ops, uring, domain_attr, domain);
  if (error == 0)
    *out = uring;
  else
    uring_close(uring);
  return error;
}

extern "C" RDMALLOC_API io_uring* rdmalloc_uring_ring(rdmalloc_uring* uring) {
  return uring->ring;
}

extern "C" RDMALLOC_API int rdmalloc_uring_reap(rdmalloc_uring* uring, io_uring_cqe* completions,
                                                unsigned most, bool wait) {
  for (;;) {
    pthread_mutex_lock(&uring->lock);
    drain(uring);
    bool is_closed = uring->is_closed;
    unsigned count = uring->kept_count < most ? uring->kept_count : most;
    for (unsigned i = 0; i < count; ++i) completions[i] = uring->kept[i];
    uring->kept_count -= count;
    for (unsigned i = 0; i < uring->kept_count; ++i) uring->kept[i] = uring->kept[i + count];
    pthread_mutex_unlock(&uring->lock);
    if (count == 0 && wait && is_closed) return -EAGAIN;
    if (count != 0 || !wait || most == 0) return static_cast<int>(count);
    sleep_a_turn(uring);
  }
}
