// A ring, its table of buffers, and its completions, which registrations and the user share.
#pragma once

#include <liburing.h>
#include <pthread.h>
#include <rdmalloc/registrar_uring.h>

#include <cstdint>

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
  rdmalloc_domain* domain;  // whose registrar this is; set before the user has the ring
  bool is_closed;           // from a quiesce on, to a resume that succeeds
  unsigned sleepers;        // threads that look at the ring without the lock
};

namespace rdmalloc::registrars {

// Tags are what no user's pointer is: the upper 16 bits of a canonical user address are zero.
constexpr std::uint64_t kTag = std::uint64_t{0x7264} << 48;
constexpr std::uint64_t kTagMask = std::uint64_t{0xffff} << 48;
constexpr int kTurnMs = 10;  // how long a wait may miss what another thread took for it

// Empties the completion queue: tags are noted, the rest is kept. Under the lock. What can't be
// kept for want of memory stays in the queue.
void drain(rdmalloc_uring* uring);

// Sleeps until a completion comes, without taking it, a turn at most: another thread may have taken
// what we wait for between our look and our sleep. Under no lock.
void sleep_a_turn(rdmalloc_uring* uring);

}  // namespace rdmalloc::registrars
