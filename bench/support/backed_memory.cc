#include "bench/support/backed_memory.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "bench/support/blocks.h"
#include "bench/support/resident.h"

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// 0 for success, as an exit status.
int write_pages(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return 1;
  madvise(memory, bytes + kHugePage, MADV_HUGEPAGE);  // refused: small pages then
  const std::size_t skipped = -reinterpret_cast<std::uintptr_t>(memory) % kHugePage;
  touch_pages(static_cast<char*>(memory) + skipped, bytes);
  return 0;
}

}  // namespace

std::size_t back_free_memory(std::size_t bytes) {
  const std::size_t available = proc_bytes("/proc/meminfo", "\nMemAvailable:");
  bytes = std::min(bytes, available / 4);
  if (bytes == 0) return 0;
  // In a process of its own: this one's peak of resident memory is in what wait4() says of those
  // that it starts.
  const pid_t writer = fork();
  if (writer < 0) return 0;
  if (writer == 0) _exit(write_pages(bytes));
  int status = 0;
  while (waitpid(writer, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? bytes : 0;
}

}  // namespace rdmalloc::bench
