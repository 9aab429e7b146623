// A program whose first thread has ended, and that sees no /proc: there the purge thread can't tell
// whether it is the last, and leaves by itself. It is begun and ended all the while.
#include <pthread.h>
#include <rdmalloc/rdmalloc.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

void* begin_and_end(void*) {
  usleep(50000);  // the first thread is gone by now
  for (int i = 0; i < 20; ++i) {
    if (rdmalloc_init() != 0) std::abort();
    if (i % 2 == 0) usleep(1000);
    if (rdmalloc_fini() != 0) std::abort();
  }
  std::puts("ended");
  return nullptr;
}

}  // namespace

int main() {
  if (unshare(CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("none", "/proc", "tmpfs", 0, nullptr) != 0) {
    std::puts("SKIP: no mount namespace for this user");
    return 0;
  }
  pthread_t thread;
  if (pthread_create(&thread, nullptr, begin_and_end, nullptr) != 0) return 1;
  pthread_exit(nullptr);
}
