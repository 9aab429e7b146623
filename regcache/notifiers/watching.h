// Foreign memory where a library's own watching is turned off by its user (tier T1, I9): what was
// turned off, and how to say that we watch in its place.
#pragma once

namespace rdmalloc {

// Whether something in this process can watch for us: interpose/foreign.cc answers when it is
// linked in, which it is in librdmalloc.so only. Takes the loader's lock.
bool can_watch_foreign();
void set_can_watch_foreign(bool (*ask)());

// OMPI_MCA_memory leaves the patcher out; UCX_MEM_MMAP_HOOK_MODE=none. As the libraries read them.
bool opal_hooks_are_off();
bool ucx_hooks_are_off();

// Keeps the loaded library in memory from then on, since any thread may be about to call it, and
// tells it that rdmalloc watches. False when it has no such function. On a program's thread, before
// the library's first transport: before MPI_Init, before ucp_init.
bool opal_rely_on_us();
bool ucx_rely_on_us();

}  // namespace rdmalloc
