// SPDX-License-Identifier: BSD-3-Clause
//
// A child of clone(CLONE_VM), a process of its own in its parent's memory. It ends, and the
// parent's next thread brings the parent a purge thread. Passes with libc's malloc too, but for
// that one.
//
//   clone_threads makes_one   the child makes a thread. Seen to fail where it got a purge thread:
//                             it never ended, and its parent took the thread for its own
//   clone_threads allocates   the child is the first to allocate, hence in C. Seen to fail where
//                             the memory was the child's for good
//   clone_threads begins      the child is the first to allocate and makes a thread. Seen to fail,
//                             it never ended, without is_first_thread_of_libc()
//   clone_threads copies      the same in memory of its own (no CLONE_VM). Seen to fail likewise
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void use_memory(void) {
  for (int i = 0; i < 20; i++) {
    char* volatile block = malloc(3 << 20);
    if (block == NULL) _exit(2);
    block[0] = 1;
    free(block);
  }
}
static void* run(void* arg) {
  use_memory();
  return arg;
}
static int allocate(void* arg) {
  run(arg);
  return 0;
}
static int use_on_two_threads(void* arg) {
  (void)arg;
  use_memory();
  pthread_t thread;
  if (pthread_create(&thread, NULL, run, NULL) != 0) return 3;
  return pthread_join(thread, NULL);
}

static int has_purge_thread(void) {
  int found = 0;
  DIR* tasks = opendir("/proc/self/task");
  for (struct dirent* task; tasks != NULL && (task = readdir(tasks)) != NULL;) {
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
    FILE* file = fopen(path, "r");
    if (file == NULL) continue;
    if (fgets(name, sizeof name, file) != NULL) found |= strcmp(name, "rdmalloc-purge\n") == 0;
    fclose(file);
  }
  if (tasks != NULL) closedir(tasks);
  return found;
}

int main(int argc, char** argv) {
  static char stack[1 << 20];
  const char* name = argc == 2 ? argv[1] : "";
  if (strcmp(name, "makes_one") == 0) use_memory();
  int (*use)(void*) = strcmp(name, "allocates") == 0 ? allocate : use_on_two_threads;
  int flags = strcmp(name, "copies") == 0 ? SIGCHLD : CLONE_VM | SIGCHLD;
  int status = -1;
  pid_t child = clone(use, stack + sizeof stack, flags, NULL);
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
    printf("the clone ended with %#x\n", (unsigned)status);
    return 1;
  }
  if (use_on_two_threads(NULL) != 0) return 1;
  if (access("/proc/self/task", R_OK) == 0 && getenv("LD_PRELOAD") != NULL)
    while (!has_purge_thread()) usleep(1000);
  puts("all is well");
  return 0;
}
