// RDMALLOC_CHECKPOINT=on: a thread that quiesces and resumes when `rdmalloc checkpoint` asks it to.
//
// Asked by a signal to that very thread, which waits for it and is the only one that has it blocked
// for that: no handler is installed, the program's own signals and masks are as they were, and the
// kernel lets only the same user (or root) send it. Answered by the thread's name, which any
// process may read:
//
//   rdmckpt          waits                        value of the signal:
//   rdmckpt:7:busy   works at request 7             31 .. 8   milliseconds to wait
//   rdmckpt:7:0      did it                          7        1: resume, 0: quiesce
//   rdmckpt:7:-110   could not, a negative errno     6 .. 0   number of the request
//
// Who asks takes another number than the thread's name has, which is the last answer.
//
// So there is no file and no socket, nothing that a checkpoint could stumble over. The thread
// itself stays in a quiesced process: CRIU takes it like any other, and in the restored one it
// waits to be asked for the resume. A child of fork has none.
#pragma once

namespace rdmalloc::regcache {

// Starts it, if the setting says so and it is not there. Not in malloc or free; a failure is told
// once and changes nothing else.
void control_begin();

}  // namespace rdmalloc::regcache
