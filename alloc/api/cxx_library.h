// A C++ library that came after librdmalloc.so was bound: a program in C (Python) that loads
// extensions, of which dlsym() finds nothing by their names.
#pragma once

namespace rdmalloc {

// The function `name` of the first C++ library that is loaded, or nullptr. Takes the lock that
// loading a library holds for a moment, but not while constructors run; an exception's way up the
// stack takes the same one. For operator new without memory, with no lock held.
void* find_in_cxx_library(const char* name);

}  // namespace rdmalloc
