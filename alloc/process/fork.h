// Being the child of a fork (I11).
//
// No handler runs before fork and no lock is taken for it: a page that the kernel wipes in the
// child (MADV_WIPEONFORK), or libc's child handler, tells, on the slow paths, that we are one. A
// thread that was inside malloc at the fork left its lock held and the structure under it half
// changed, and will never come back: the child frees such locks and makes those structures anew
// from the span words. A lock that nobody held guards a structure that is whole.
//
// The child's memory is, for each thread of the parent, what that thread had stored up to some
// point of its program order: the kernel copies page tables while the others run, but a page's
// writer stops at its first store to a page that is already write-protected. That is all the
// rebuilding relies on.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/core/order_for_fork.h"

namespace rdmalloc {

namespace detail {
// Points at a word that is 1 here and 0 in a fork child until it begins to recover.
extern std::atomic<std::uint32_t>* fork_word;
void fork_recover();
}  // namespace detail

// Sets up the page and the handler. `kernel_id`: the calling thread's, by gettid().
void fork_init(std::uint32_t kernel_id);

// Asks the kernel once more to wipe the page in children: a process that was restored from a
// checkpoint has lost that.
void fork_wipe_again();

// Whether the caller is the first thread of the process, as far as that is known without a system
// call: since the initialisation, or the recovery in a child.
bool is_known_first_thread();

// Whether the process that calls is the one whose memory this is, and not a child of vfork(), which
// has its parent's. After fork_check(); a system call.
bool memory_is_own();

// To be called at the head of every slow path that may touch shared structures, after foreign code
// was called in the midst of one, and before a wait: a signal handler may have forked since.
inline void fork_check() {
  std::atomic<std::uint32_t>* word = detail::fork_word;
  // Acquire: pairs with the release at the end of fork_recover() on another thread of the child.
  if (word != nullptr && word->load(std::memory_order_acquire) != 1) [[unlikely]]
    detail::fork_recover();
}

}  // namespace rdmalloc
