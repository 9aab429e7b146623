// Ends in the way that its argument names, with registrations outstanding: in use, sticky, of a
// heap, of foreign memory, really pinned by io_uring; and a thread that registers, frees and purges
// meanwhile. Prints "SKIP: …" where there is no io_uring.
#include <pthread.h>
#include <rdmalloc/registrar_uring.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/heap_attr.h"
#include "tests/support/kernel_has.h"

namespace {

constexpr std::size_t kMiB = 1 << 20;

struct Outstanding {
  rdmalloc_domain* domain;
  rdmalloc_heap* heap;
  char *block, *sticky, *foreign;
  rdmalloc_reg *held, *held_foreign;
} all;
std::atomic<int> rounds{0};
std::atomic<bool> is_over{false};

void fail(const char* what, int error) {
  std::printf("%s: %s\n", what, rdmalloc_strerror(error));
  _exit(1);
}
void check(const char* what, int error) {
  if (error != 0) fail(what, error);
}

void* register_and_purge(void*) {
  for (; !is_over; ++rounds) {
    void* block = rdmalloc_malloc(kMiB);
    rdmalloc_reg* reg = nullptr;
    check("get", rdmalloc_reg_get(all.domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &reg));
    rdmalloc_reg_put(reg);
    rdmalloc_free(block);
    if (rounds % 8 == 0) rdmalloc_purge(0);
  }
  return nullptr;
}

void open_all() {
  rdmalloc_uring* uring = nullptr;
  if (int error = rdmalloc_test::io_uring_error()) {
    std::printf("SKIP: no io_uring here: %s\n", strerror(error));
    exit(0);
  }
  check("ring", rdmalloc_domain_open_uring(nullptr, nullptr, &all.domain, &uring));
  rdmalloc_heap_attr attr =
      rdmalloc_test::registered_heap_attr(&all.domain, 4 * kMiB, RDMALLOC_ACCESS_LOCAL);
  check("heap", rdmalloc_heap_create(&attr, &all.heap));
  rdmalloc_heap_malloc(all.heap, kMiB);
  all.block = static_cast<char*>(rdmalloc_malloc(kMiB));
  check("block", rdmalloc_reg_get(all.domain, all.block, kMiB, RDMALLOC_ACCESS_LOCAL, &all.held));
  all.sticky = static_cast<char*>(rdmalloc_malloc(kMiB));
  rdmalloc_key key;
  check("key", rdmalloc_reg_key(all.domain, all.sticky, kMiB, RDMALLOC_ACCESS_LOCAL, &key));
  all.foreign = static_cast<char*>(
      mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  check("foreign",
        rdmalloc_reg_get(all.domain, all.foreign, kMiB, RDMALLOC_ACCESS_LOCAL, &all.held_foreign));
}

// What a program's exit handlers and destructors do: use and put, in no order that we would choose.
void tidy_up_late() {
  rdmalloc_free(all.block);  // held still: I3 keeps its pages
  rdmalloc_reg* reg = nullptr;
  check("late get", rdmalloc_reg_get(all.domain, all.sticky, 8, RDMALLOC_ACCESS_LOCAL, &reg));
  rdmalloc_reg_put(reg);
  rdmalloc_reg_put(all.held_foreign);
  munmap(all.foreign, kMiB);
  std::puts("tidied up");
}

// A domain goes when nothing of it is in use, and says so while something is.
void detach() {
  int error = rdmalloc_domain_close(all.domain);
  if (error != -EBUSY) fail("closed with a registration in use", error);
  check("block", memcmp(all.block, all.foreign, kMiB) == 0 ? 0 : -EIO);  // zero, both of them
  rdmalloc_reg_put(all.held);
  rdmalloc_reg_put(all.held_foreign);
  error = rdmalloc_domain_close(all.domain);
  if (error != -EBUSY) fail("closed under a registered heap", error);
  check("destroy", rdmalloc_heap_destroy(all.heap));
  check("close", rdmalloc_domain_close(all.domain));
}

}  // namespace

int main(int argc, char** argv) {
  std::string how = argc > 1 ? argv[1] : "";
  if (how == "handlers") std::atexit(tidy_up_late);
  check("init", rdmalloc_init());
  open_all();
  if (how == "detach") {
    detach();
    check("fini", rdmalloc_fini());
    return 0;
  }
  if (how == "fini") {
    // The purge thread goes; registrations and malloc do not.
    check("fini", rdmalloc_fini());
    rdmalloc_key key;
    check("key", rdmalloc_reg_key(all.domain, all.sticky, kMiB, RDMALLOC_ACCESS_LOCAL, &key));
    check("init", rdmalloc_init());
    return 0;
  }
  pthread_t thread;
  pthread_create(&thread, nullptr, register_and_purge, nullptr);
  while (rounds < 50) usleep(1000);
  if (how == "return" || how == "handlers") return 0;
  if (how == "exit_on_a_thread") {
    pthread_t other;
    pthread_create(
        &other, nullptr, [](void*) -> void* { std::exit(0); }, nullptr);
    pthread_join(other, nullptr);
  }
  if (how == "last_thread") {
    rdmalloc_free(rdmalloc_malloc(100));  // this thread is known to malloc, and missed
    is_over = true;
    pthread_exit(nullptr);
  }
  if (how == "quick_exit") std::quick_exit(0);
  if (how == "_exit") _exit(0);
  if (how == "signal") raise(SIGTERM);
  if (how == "exec") execl("/bin/true", "true", static_cast<char*>(nullptr));
  std::printf("unknown way to end: '%s'\n", how.c_str());
  return 2;
}
