// Foreign memory where a library's own watching is turned off by its user (tier T1, I9): what was
// turned off, and how to say that we watch in its place.
#pragma once

namespace rdmalloc {

// Whether something in this process can watch for us: interpose/foreign.cc answers when it is
// linked in, which it is in librdmalloc.so only. Takes the loader's lock.
bool can_watch_foreign();
void set_can_watch_foreign(bool (*ask)());

// How a library learns that rdmalloc watches in place of its hooks.
struct ForeignWatch {
  bool (*hooks_are_off)();  // by its user; read as the library reads it
  const char* announce_by;  // its function: void(int), on a program's thread, before the library's
                            // first transport (before MPI_Init, before ucp_init)
  int argument;
};
extern const ForeignWatch opal_watch;  // OMPI_MCA_memory leaves the patcher out
extern const ForeignWatch ucm_watch;   // UCX_MEM_MMAP_HOOK_MODE=none

}  // namespace rdmalloc
