// SPDK's iobuf story, as a target lives it: buffers are asked for that do not fit, the start fails
// or is tried again with fewer, I/O threads run until SIGTERM, and everything goes back. Over the
// spdk registrar and the stand-in for SPDK (fake_spdk.cc), in the way that the argument names:
//
//   too_much         the request does not fit; the target runs on without buffers
//   too_much_gone    the same, and ends at SIGTERM with nothing closed
//   refused          SPDK's map refuses in the middle, and says nothing of it
//   retried          the request does not fit; SPDK's default sizes do, and I/O runs on them
//
// What the original does: 32,767 small and 16,383 large buffers in 1 GiB fail, and then the end of
// the failed start is an assertion.
#include <dlfcn.h>
#include <rdmalloc/registrar_spdk.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/registrars/fake_spdk.h"

namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

FakeSpdk* spdk = nullptr;
std::uint64_t (*translate)(const void*, std::uint64_t*) = nullptr;
std::atomic<bool> must_stop{false};

void expect(bool is_so, const char* what) {
  if (is_so) return;
  std::printf("not so: %s\n", what);
  _exit(1);
}

rdmalloc_domain* open_domain() {
  rdmalloc_domain_attr limits = {};
  limits.size = sizeof limits;
  limits.max_bytes = kGiB;
  rdmalloc_domain* domain = nullptr;
  expect(rdmalloc_domain_open_spdk(nullptr, &limits, &domain) == 0, "a domain opens");
  return domain;
}

rdmalloc_pool* make(rdmalloc_domain* domain, std::uint32_t small, std::uint32_t large, int error) {
  rdmalloc_pool_attr attr = {};
  attr.size = sizeof attr;
  attr.small_count = small;
  attr.large_count = large;
  rdmalloc_pool* pool = nullptr;
  expect(rdmalloc_pool_create(&domain, 1, &attr, &pool) == error,
         "making the pool ends as it must");
  return pool;
}

// One I/O at a time: a buffer, or a place in the line for one, which the thread that puts serves.
struct Io {
  rdmalloc_pool_waiter waiter;
  std::atomic<rdmalloc_buffer*> arrived;
};

// In the line, giving back what this thread has: were it the last thread with buffers, all wait.
rdmalloc_buffer* wait_and_put(rdmalloc_pool* pool, Io* io, std::vector<rdmalloc_buffer*>* held) {
  rdmalloc_buffer* buffer;
  while ((buffer = io->arrived.load(std::memory_order_acquire)) == nullptr) {
    if (held->empty()) {
      std::this_thread::yield();
    } else {
      expect(rdmalloc_pool_put(pool, held->back()) == 0, "a buffer goes back");
      held->pop_back();
    }
  }
  io->arrived.store(nullptr, std::memory_order_relaxed);  // this thread's until it waits again
  return buffer;
}

void run_io(rdmalloc_pool* pool, std::atomic<int>* ios, std::atomic<int>* waits) {
  Io io = {};
  io.waiter.arg = &io;
  io.waiter.ready = [](rdmalloc_pool_waiter* waiter, rdmalloc_buffer* buffer) {
    // Release: pairs with the acquire below; the waiter is ours again.
    static_cast<Io*>(waiter->arg)->arrived.store(buffer, std::memory_order_release);
  };
  std::vector<rdmalloc_buffer*> held;
  while (!must_stop || !held.empty()) {
    rdmalloc_buffer* buffer = nullptr;
    // Three threads want more large ones than there are.
    std::size_t bytes = *ios % 5 == 0 ? 4096 : 100000;
    if (!must_stop) {
      int error = rdmalloc_pool_wait(pool, bytes, &io.waiter, &buffer);
      if (error == -EINPROGRESS) {
        ++*waits;
        buffer = wait_and_put(pool, &io, &held);
      } else {
        expect(error == 0, "a buffer, or a place in the line");
      }
    }
    if (buffer != nullptr) {
      std::uint64_t length = bytes;
      expect(translate(buffer->addr, &length) != UINT64_MAX, "SPDK translates every buffer");
      std::memset(buffer->addr, 1, bytes);
      held.push_back(buffer);
      ++*ios;
    }
    while (held.size() == 600 || (must_stop && !held.empty())) {
      for (rdmalloc_buffer* one : held) expect(rdmalloc_pool_put(pool, one) == 0, "a put");
      held.clear();
    }
  }
}

// Until SIGTERM, which comes when `threads` have done enough.
void run_until_sigterm(rdmalloc_pool* pool) {
  std::atomic<int> ios{0}, waits{0};
  std::vector<std::thread> threads;
  for (int i = 0; pool != nullptr && i < 3; ++i) threads.emplace_back(run_io, pool, &ios, &waits);
  while (pool != nullptr && !must_stop && (ios < 20000 || waits < 100)) usleep(1000);
  kill(getpid(), SIGTERM);
  while (!must_stop) usleep(1000);
  for (std::thread& thread : threads) thread.join();
}

void tell_the_story(const std::string& how, rdmalloc_domain* domain) {
  rdmalloc_pool* pool = nullptr;
  if (how == "refused") {
    spdk->temper = kRefusesQuietly;
    pool = make(domain, 0, 0, -ENOMEM);
    expect(spdk->registered == 0, "nothing stays registered");
    spdk->temper = kGood;
  } else {
    pool = make(domain, 32767, 16383, -ENOMEM);
  }
  expect(pool == nullptr, "no pool");
  if (how == "retried" || how == "refused") pool = make(domain, 0, 0, 0);
  run_until_sigterm(pool);
  if (how == "too_much_gone") std::exit(0);
  if (pool != nullptr) expect(rdmalloc_pool_destroy(pool) == 0, "the pool goes");
  expect(rdmalloc_domain_close(domain) == 0, "the domain closes");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  signal(SIGTERM, [](int) { must_stop = true; });
  void* library = dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
  expect(library != nullptr, "the stand-in loads");
  spdk = reinterpret_cast<FakeSpdk* (*)()>(dlsym(library, "fake_spdk"))();
  translate = reinterpret_cast<decltype(translate)>(dlsym(library, "spdk_vtophys"));
  tell_the_story(argv[1], open_domain());
  expect(spdk->registered == 0, "nothing stays registered at the end");
  expect(spdk->wrong_calls == 0, "SPDK was asked for nothing that it never grants");
  std::puts("target ended");
  return 0;
}
