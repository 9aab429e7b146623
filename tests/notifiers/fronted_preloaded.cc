// SPDX-License-Identifier: BSD-3-Clause
//
// RDMALLOC_NOTIFY=explicit, and another madvise() stands in front of libc's by its symbol: here the
// program's own, as that of a library that is preloaded too. It hears of each purge. Seen to fail
// when only a jump at the head of libc's was looked for.
#include <rdmalloc/rdmalloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "tests/notifiers/expect.h"

namespace {

std::atomic<int64_t> heard{0};

}  // namespace

extern "C" int madvise(void* address, size_t length, int advice) noexcept {
  if (advice == MADV_DONTNEED) heard += static_cast<int64_t>(length);
  return static_cast<int>(syscall(SYS_madvise, address, length, advice));
}

int main() {
  constexpr size_t kBytes = 2u << 20u;
  void* block = malloc(kBytes);
  memset(block, 1, kBytes);
  __asm__ volatile("" : : "r"(block) : "memory");
  free(block);
  int64_t purged = rdmalloc_test::find<decltype(&rdmalloc_purge)>("rdmalloc_purge")(0);
  rdmalloc_test::expect(purged > 0, "a purge");
  rdmalloc_test::expect(heard >= purged, "of which it hears");
  return rdmalloc_test::failures != 0;
}
