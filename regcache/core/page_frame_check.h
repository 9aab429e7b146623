// Checked builds: is a registration that is about to be handed out still over the pages that it was
// made for? The kernel tells (/proc/self/pagemap). At a stale one the process ends, with the
// history of the page: from there on transfers would read and write pages that are not the
// program's any more.
//
// Compared are frames of pages whose registrar pins them (RDMALLOC_REGISTRAR_PINS), and no others.
// A page that is only mapped, or locked by mlock, may move to another frame at any time:
// compaction, migration between nodes, merging by KSM, a huge page made of small ones, swapping out
// and in; a registrar that does not pin follows that, or keeps no pages. A pinned page does none of
// it, for the kernel sees the pin. So of a pinned page
//
//   another frame              is stale: a call took the page away, and a touch made a new one
//   none, of anonymous memory  is stale: a call took it away
//   none, of a file or shared  says nothing: only the mapping went, and the page may be the same
//   "swapped"                  says nothing: an attempt to migrate it, which will fail
//
// Frames are read when register_ has returned, so that pages which were not there before, or were
// the zero page, are what the pin made of them. fork() copies pinned pages for the child, which has
// no registrations, and leaves the parent's frames alone; kernels before 5.12 may do it the other
// way round, and then the registration is stale indeed.
//
// To see frames takes CAP_SYS_ADMIN. Without it only pages that are gone are found, which is said
// once. Keys of such a domain always come the slow way (publish() in drop.cc), or a hit of the
// inline fast path would go unseen.
#pragma once

#include <cstddef>
#include <cstdint>

#include "alloc/for_regcache.h"

namespace rdmalloc::regcache {

struct Domain;
struct Registration;

#if RDMALLOC_CHECKED

// Arrays of frames, a word for each page, by powers of two; a handle is 32 bits, so that it fits
// into a spare word of the record. Zeroed memory is an empty store: what a fork child has.
class FrameStore {
 public:
  // 0: no memory.
  std::uint32_t take(std::size_t pages);
  void give(std::uint32_t handle, std::size_t pages);
  std::uint64_t* at(std::uint32_t handle) { return words_ + handle; }

 private:
  static constexpr std::size_t kWords = std::size_t{1} << 26;  // 256 GiB of pages, 512 MiB of ours
  static constexpr std::size_t kClasses = 27;

  Lock lock_;  // a leaf
  std::uint64_t* words_ = nullptr;
  std::size_t used_ = 0;
  std::uint32_t free_[kClasses] = {};  // the first word of a free array is the next one's handle
};

// Whether hits of the domain are compared.
bool page_frames_are_checked(const Domain& domain);
// Reads the frames of a registration that was just made.
void page_frames_registered(const Domain& domain, Registration* reg);
// Forgets them.
void page_frames_deregistered(Registration* reg);
// Compares those under [low, high); aborts at a stale one. The registration is held, or its
// domain's lock is.
void page_frames_check(const Domain& domain, const Registration* reg, std::uintptr_t low,
                       std::uintptr_t high);

#else

inline bool page_frames_are_checked(const Domain&) {
  return false;
}
inline void page_frames_registered(const Domain&, Registration*) {}
inline void page_frames_deregistered(Registration*) {}
inline void page_frames_check(const Domain&, const Registration*, std::uintptr_t, std::uintptr_t) {}

#endif

}  // namespace rdmalloc::regcache
