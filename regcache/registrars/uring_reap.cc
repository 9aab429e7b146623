// The completions of a ring: tags of buffers that are out of the table are noted, and completions
// of the user's requests that turn up beside them are kept for the next reap.
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "regcache/registrars/closed.h"
#include "regcache/registrars/fault.h"
#include "regcache/registrars/keep_errno.h"
#include "regcache/registrars/uring.h"

namespace rdmalloc::registrars {
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

}  // namespace

void drain(rdmalloc_uring* uring) {
  if (uring->is_closed) return;
  io_uring_cqe* completion = nullptr;
  while (io_uring_peek_cqe(uring->ring, &completion) == 0 && completion != nullptr) {
    std::uint64_t slot = completion->user_data & ~kTagMask;
    if ((completion->user_data & kTagMask) == kTag && slot < uring->buffers)
      uring->is_removed[slot] = true;
    else if (!keep(uring, *completion))
      return;
    io_uring_cqe_seen(uring->ring, completion);
  }
}

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

}  // namespace rdmalloc::registrars

using namespace rdmalloc::registrars;

extern "C" RDMALLOC_API int rdmalloc_uring_reap(rdmalloc_uring* uring, io_uring_cqe* completions,
                                                unsigned most, bool wait) {
  KeepErrno keep;
  if (uring == nullptr || (completions == nullptr && most != 0)) return -EINVAL;
  for (;;) {
    pthread_mutex_lock(&uring->lock);
    drain(uring);
    bool is_closed = uring->is_closed;
    unsigned count = uring->kept_count < most ? uring->kept_count : most;
    for (unsigned i = 0; i < count; ++i) completions[i] = uring->kept[i];
    uring->kept_count -= count;
    for (unsigned i = 0; i < uring->kept_count; ++i) uring->kept[i] = uring->kept[i + count];
    pthread_mutex_unlock(&uring->lock);
    if (count == 0 && wait && is_closed) return why_closed(uring->domain);
    if (count != 0 || !wait || most == 0) return static_cast<int>(count);
    sleep_a_turn(uring);
  }
}
