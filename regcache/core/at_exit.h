// The end of a process that leaves domains open, or fabrics attached. exit() runs handlers, latest
// first, and then the destructors of libraries: a registrar, or a fabric that is told of a purge,
// must not be called by a thread of ours once its own has run.
//
// So a handler of ours holds all purging, and stops what our threads are about to deregister. It is
// registered anew where libraries were loaded since: it then comes before all that those have
// registered at their loading, and before anything older. Handlers that the program registers later
// run before it, with everything in order yet.
#pragma once

namespace rdmalloc {

// Registers the handler, where that has to be done again. On a program's thread, outside malloc:
// takes the loader's lock.
void hold_at_exit();
// Whether the handler has run.
bool exit_has_begun();

}  // namespace rdmalloc
