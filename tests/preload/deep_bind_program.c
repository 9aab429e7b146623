// A plugin that is loaded with RTLD_DEEPBIND, in both ways that dlopen() is passed on
// (regcache/interpose/dlopen.cc).
//
//   deep_bind_program DIRECTORY FILE
//
// Seen to fail, by an abort in the plugin's free(), when the flag was passed on.
#include <dlfcn.h>
#include <stdio.h>

static int use(const char* file) {
  void* plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  int (*function)(void) = NULL;
  if (plugin != NULL) *(void**)&function = dlsym(plugin, "use");
  if (function == NULL || function() != 0) return 1;
  return dlclose(plugin);
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", argv[1], argv[2]);
  if (use(path) != 0) return 3;
  // From here on who calls matters: $ORIGIN is the caller's.
  snprintf(path, sizeof path, "$ORIGIN/../lib/%s", argv[2]);
  if (use(path) != 0) return 4;
  puts("used");
  return 0;
}
