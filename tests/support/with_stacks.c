// SPDX-License-Identifier: BSD-3-Clause
//
// What with_stacks.py does for a test that ends by itself and leaves nothing behind:
//
//     with_stacks PYTHON WITH_STACKS.PY SECONDS COMMAND [ARGUMENT...]
//
// Thousands of tests do so, and an interpreter takes 25 ms of a processor for each of them. In all
// other cases (the limit, a signal, processes left over, a wrong call) this program becomes
// with_stacks.py: by exec, so the descendants stay its own, and it goes on from there (--after).
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char** arguments;  // PYTHON, WITH_STACKS.PY, SECONDS, COMMAND...
static int argument_count;
static sigset_t mask_at_start;
static const int kStops[] = {SIGTERM, SIGINT, SIGHUP};
enum { kStopCount = sizeof kStops / sizeof *kStops };

// The rest is Python's: `after` is NULL where nothing has been started. Called in a handler too.
// Signals that stop us wait until it has handlers for them.
static void become_python(const char* after) {
  const char* words[argument_count + 6];
  int count = 0;
  words[count++] = arguments[0];
  words[count++] = "-I";
  words[count++] = "-S";
  words[count++] = arguments[1];
  if (after != NULL) {
    words[count++] = "--after";
    words[count++] = after;
  }
  for (int i = 2; i < argument_count; i++) words[count++] = arguments[i];
  words[count] = NULL;
  sigset_t mask = mask_at_start;
  for (int i = 0; i < kStopCount && after != NULL; i++) sigaddset(&mask, kStops[i]);
  sigprocmask(SIG_SETMASK, &mask, NULL);
  execv(words[0], (char* const*)words);
  _exit(125);
}

static void on_signal(int number) {
  become_python(number == SIGTERM ? "stop-15" : number == SIGINT ? "stop-2" : "stop-1");
}

// As start() of with_stacks.py.
static pid_t start(char* const* command) {
  close_range(3, ~0u, 0);
  int told[2];
  if (pipe2(told, O_CLOEXEC) != 0) return -1;
  pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0);
    signal(SIGPIPE, SIG_DFL);  // as an interpreter's children have them
    signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, &mask_at_start, NULL);
    execvp(command[0], command);
    int error = errno;
    if (write(told[1], &error, sizeof error) < 0) _exit(126);
    _exit(127);
  }
  close(told[1]);
  int error = child < 0 ? errno : 0;
  ssize_t length = read(told[0], &error, sizeof error);
  close(told[0]);
  if (child > 0 && length <= 0) return child;
  if (child > 0) waitpid(child, NULL, 0);
  errno = error;
  return -1;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// The status of the child, or -1 at the limit; reaps adopted orphans meanwhile. As wait_for() of
// with_stacks.py, which says what counts.
static int wait_for(pid_t child, double seconds) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGCHLD);
  for (double left = seconds, at = now();;) {
    int status = 0;
    for (pid_t ended; (ended = waitpid(-1, &status, WNOHANG)) > 0;)
      if (ended == child) return status;
    if (left <= 0) return -1;
    double nap = left < 1 ? left : 1, before = at;
    struct timespec limit = {(time_t)nap, (long)((nap - (double)(time_t)nap) * 1e9)};
    sigtimedwait(&ends, NULL, &limit);
    at = now();
    left -= at - before < nap + 2 ? at - before : nap;
  }
}

// Every descendant is a child of ours by now, or has an ancestor that is.
static int has_children(void) {
  pid_t ended;
  while ((ended = waitpid(-1, NULL, WNOHANG)) > 0) {
  }
  return ended == 0;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "with_stacks: wanted PYTHON WITH_STACKS.PY SECONDS COMMAND [ARGUMENT...]\n");
    return 125;
  }
  arguments = argv + 1;
  argument_count = argc - 1;
  sigprocmask(SIG_SETMASK, NULL, &mask_at_start);
  char* end = NULL;
  double seconds = argc > 4 ? strtod(argv[3], &end) : 0;
  if (!(seconds > 0 && seconds < 1e6) || *end != '\0') become_python(NULL);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  struct sigaction action = {.sa_handler = on_signal};
  sigfillset(&action.sa_mask);
  for (int i = 0; i < kStopCount; i++) sigaction(kStops[i], &action, NULL);
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGCHLD);
  sigprocmask(SIG_BLOCK, &ends, NULL);  // for sigtimedwait()

  pid_t child = start(argv + 4);
  if (child < 0) {
    fprintf(stderr, "with_stacks: %s: %s\n", argv[4], strerror(errno));
    return 127;
  }
  int status = wait_for(child, seconds);
  if (status < 0) become_python("limit");
  if (has_children()) {
    char after[32];
    snprintf(after, sizeof after, "end-%d", status);
    become_python(after);
  }
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const char* name = sigabbrev_np(WTERMSIG(status));
  fprintf(stderr, "with_stacks: ended by SIG%s:", name != NULL ? name : "RT");
  for (char** word = argv + 4; *word != NULL; word++) fprintf(stderr, " %s", *word);
  fprintf(stderr, "\n");
  return 128 + WTERMSIG(status);
}
