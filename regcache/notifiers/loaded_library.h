// Finding functions of libraries that happen to be loaded. Nothing is linked, nothing is loaded.
#pragma once

namespace rdmalloc {

// The function `symbol` of the loaded library whose file name begins with `name` ("libucm.so"), or
// nullptr. Takes the loader's lock and allocates: on a program's thread, never during a purge.
void* symbol_of_loaded(const char* name, const char* symbol);
bool is_loaded(const char* name);
// Keeps a loaded library in memory whatever dlclose() says. False: it can't be kept.
bool keep_loaded(const char* name);

}  // namespace rdmalloc
