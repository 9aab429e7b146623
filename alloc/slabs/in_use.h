// Checked builds: one bit for each small block in the program's hands, so that every double free
// and every free inside a small block is reported by the free() that makes it. Release builds see
// what is cheap to see: the same block twice in a row in one thread, and what comes back to a slab
// twice.
//
// The bit is set after a block has left its magazine and cleared before it enters one: a block that
// a fork child finds in a vanished thread's magazine has its bit clear.
#pragma once

namespace rdmalloc {

#if RDMALLOC_CHECKED
// The block is handed out. Any thread.
void in_use_begin(void* block, unsigned size_class);
// The block comes back. Reports and aborts when it is none, or is not in use. Any thread.
void in_use_end(void* block, unsigned size_class);
#else
inline void in_use_begin(void*, unsigned) {}
inline void in_use_end(void*, unsigned) {}
#endif

}  // namespace rdmalloc
