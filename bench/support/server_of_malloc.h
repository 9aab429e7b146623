// Which object serves malloc in this process.
#pragma once

#include <dlfcn.h>

#include <cstdio>

namespace rdmalloc::bench {

// By dlsym, since &malloc may be a stub of the executable. A preload that failed only prints a
// warning, so each measured program says this, and the driver compares (is_served_by(),
// allocators.h).
inline const char* server_of_malloc() {
  Dl_info info{};
  void* symbol = dlsym(RTLD_DEFAULT, "malloc");
  const bool known = symbol != nullptr && dladdr(symbol, &info) != 0 && info.dli_fname != nullptr;
  return known ? info.dli_fname : "unknown";
}
inline void say_server_of_malloc() {
  std::printf("{\"malloc\":\"%s\"}\n", server_of_malloc());
  std::fflush(stdout);
}

}  // namespace rdmalloc::bench
