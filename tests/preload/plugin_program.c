// SPDX-License-Identifier: BSD-3-Clause
//
// A plugin that librdmalloc_prefixed.a is linked into, used and closed by a thread that ends later.
//
//   plugin_program PLUGIN
//
// Seen to fail without stay_loaded(): SIGSEGV where the key's destructor had been.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static void* use_and_close(void* path) {
  for (int round = 0; round < 2; round++) {
    void* plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*use)(void) = NULL;
    if (plugin != NULL) *(void**)&use = dlsym(plugin, "use");
    if (use == NULL || use() != 0 || dlclose(plugin) != 0) return "the plugin can't be used";
  }
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  pthread_t thread;
  void* failure = NULL;
  if (pthread_create(&thread, NULL, use_and_close, argv[1]) != 0) return 3;
  pthread_join(thread, &failure);
  if (failure != NULL) {
    puts(failure);
    return 1;
  }
  pid_t child = fork();
  if (child == 0) _exit(use_and_close(argv[1]) == NULL ? 0 : 1);
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) return 4;
  puts("all is well");
  return 0;
}
