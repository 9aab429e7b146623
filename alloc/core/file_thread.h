// Files, read where the program does not notice.
//
// An open() takes the lowest free descriptor, for as long as the file is read. Between a close(0)
// and the open() of another thread, which counts on getting 0, that is the program's: so the purge
// thread opens no file itself. It has a thread for that whose table of descriptors is its own, and
// empty (close_range, CLOSE_RANGE_UNSHARE). That one is there while
// there is free memory to watch over, and only the purge thread uses it.
#pragma once

namespace rdmalloc {

// Runs `work` on it, and returns once that is done. A negative errno where there can be no such
// thread: nothing was done. Foreign code has no business in `work`: the program's descriptors are
// not there.
int file_thread_run(void (*work)(void* arg), void* arg);
// Ends it, if it is there, and waits for that.
void file_thread_stop();
// In the child of a fork, where it is not.
void file_thread_after_fork();

}  // namespace rdmalloc
