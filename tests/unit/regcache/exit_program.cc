// Ends with a domain open, and something that a thread of rdmalloc would deregister soon: free
// memory that decays, a purge under way, foreign memory that the registrar's library unmaps at its
// end. Seen to fail, by a call after the destructor: `decays` with RDMALLOC_NOTIFY=hooks and off,
// `purging` in all modes, `watched`.
// `closes` and `closes_watched` have a static object that closes the domain while such a thread has
// more to deregister. Seen to fail, by hanging in the close, when the thread deferred the rest
// without waking it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/support/kernel_has.h"
#include "tests/unit/regcache/exit_registrar.h"

namespace {

constexpr std::size_t kBlock = 256 * 1024, kBlocks = 64;

void check(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s\n", what);
  _exit(1);
}

struct Closer {
  rdmalloc_domain* domain = nullptr;
  ~Closer() {
    if (domain == nullptr) return;
    exit_registrar()->is_closing = true;
    check(rdmalloc_domain_close(domain) == 0, "no close");
    check(exit_registrar()->deregistrations == kBlocks, "not all are deregistered");
  }
};
Closer closer;

void set(const char* name, std::uint64_t value) {
  check(rdmalloc_ctl(name, nullptr, nullptr, &value, sizeof value) == 0, name);
}

}  // namespace

int main(int, char** argv) {
  const char* how = argv[1];
  ExitRegistrar* registrar = exit_registrar();
  rdmalloc_domain* domain = nullptr;
  rdmalloc_domain_attr attr = {};
  attr.size = sizeof attr;
  attr.largest = kBlock;
  check(rdmalloc_domain_open(&registrar->ops, nullptr, &attr, &domain) == 0, "no domain");
  auto touch = [&](void* memory) {
    rdmalloc_reg* reg = nullptr;
    check(rdmalloc_reg_get(domain, memory, kBlock, RDMALLOC_ACCESS_LOCAL, &reg) == 0, "no get");
    rdmalloc_reg_put(reg);
  };
  // Of one piece of memory, so that its end is that of all the registrations.
  auto touch_blocks = [&](void* memory) {
    memset(memory, 1, kBlocks * kBlock);
    for (std::size_t i = 0; i < kBlocks; ++i) touch(static_cast<char*>(memory) + i * kBlock);
    registrar->holds_first = true;
    closer.domain = domain;
  };
  if (strstr(how, "watched") != nullptr) {
    rdmalloc_watch_counters watch = {};
    watch.size = sizeof watch;
    rdmalloc_watch_stats(&watch);
    if (rdmalloc_test::userfaultfd_error() != 0) {
      std::printf("SKIP: no userfaultfd here\n");
      return 77;
    }
    check(watch.is_on != 0, "not watched");
    bool is_closed = strcmp(how, "closes_watched") == 0;
    std::size_t length = is_closed ? kBlocks * kBlock : kBlock;
    void* memory =
        mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (is_closed) {
      touch_blocks(memory);
      munmap(memory, length);
      while (registrar->deregistrations == 0) usleep(1000);
      return 0;
    }
    registrar->unmapped_bytes = length;
    registrar->unmapped_at_end = memory;
    touch(memory);
    return 0;
  }
  if (strcmp(how, "closes") == 0) {
    set("purge.decay_ms", 0);
    void* block = rdmalloc_malloc(kBlocks * kBlock);
    touch_blocks(block);
    rdmalloc_free(block);
    while (registrar->deregistrations == 0) usleep(1000);
    return 0;
  }
  bool is_purging = strcmp(how, "purging") == 0;
  set("purge.decay_ms", 300);
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(rdmalloc_malloc(kBlock));
    memset(blocks.back(), 1, kBlock);
    touch(blocks.back());
  }
  for (void* block : blocks) rdmalloc_free(block);
  if (!is_purging) return 0;
  registrar->slow_us = 30000;
  set("purge.decay_ms", 0);
  while (registrar->deregistrations == 0) usleep(1000);
  return 0;
}
