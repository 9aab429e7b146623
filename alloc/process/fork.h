// Being the child of a fork (I11).
//
// No handler runs before fork and no lock is taken for it: a page that the kernel wipes in the
// child (MADV_WIPEONFORK), or libc's child handler, tells, on the slow paths (core/fork.h), that we
// are one. A thread that was inside malloc at the fork left its lock held and the structure under
// it half changed, and will never come back: the child frees such locks and makes those structures
// anew from the span words. A lock that no thread held guards a structure that is whole.
//
// The child's memory is, for each thread of the parent, what that thread had stored up to some
// point of its program order: the kernel copies page tables while the others run, but a page's
// writer stops at its first store to a page that is already write-protected. That is all the
// rebuilding relies on.
#pragma once

#include <cstdint>

namespace rdmalloc {

// Sets up the page and the handler. `kernel_id`: the calling thread's, by gettid().
void fork_init(std::uint32_t kernel_id);

// Asks the kernel once more to wipe the page in children: a process that was restored from a
// checkpoint has lost that.
void fork_wipe_again();

}  // namespace rdmalloc
