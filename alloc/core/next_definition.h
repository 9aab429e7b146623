// What stands behind a function of ours that has the same name as one of libc's.
#pragma once

namespace rdmalloc {

// As dlsym(RTLD_NEXT, name), and never what is in this library. Takes the loader's lock. NULL: none
// is behind it.
void* next_definition(const char* name);

}  // namespace rdmalloc
