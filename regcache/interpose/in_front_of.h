// Standing in front of a function of libc by its symbol, so that libraries that patch libc's text
// still find libc's: the symbol has libc's version without being the default one (name@VERSION, not
// name@@VERSION). The loader binds what was linked against libc to it; dlsym(), by which patchers
// look for the text to write to, passes it by, wherever librdmalloc.so stands in the search order.
#pragma once

#include "alloc/for_regcache.h"

#if defined(__x86_64__)
#define RDMALLOC_LIBC_VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define RDMALLOC_LIBC_VERSION "GLIBC_2.17"
#else
#error "libc's first version on this machine is not known here; cmake/library.cmake has it too"
#endif

// Declares the definition that follows as one of `name` of libc. The version script of
// librdmalloc.so hides the long name.
#define RDMALLOC_IN_FRONT_OF(name)                                                \
  asm(".symver rdmalloc_in_front_of_" #name "," #name "@" RDMALLOC_LIBC_VERSION); \
  extern "C"                                                                      \
      __attribute__((visibility("default"), used)) decltype(::name) rdmalloc_in_front_of_##name
