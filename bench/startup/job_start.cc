// job_start WAY RESERVED_MIB BACKED_MIB THREADS: the start of a job that takes much memory at once:
// one block of so much, so much of it backed by so many threads, and its end. WAY:
//   touch           each thread writes a byte of each page of its part
//   prefault        rdmalloc_reg_prefault() with a registrar that does nothing
//   register        the same with mlock() as the registrar, which counts and pins pages singly, as
//                   a device's driver does
//   pool-2M, pool-1G  a heap on pages of the kernel's pool, made and written
// bench_start runs it. Times are wall times, in ms.
#include <rdmalloc/regcache.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "bench/support/resident.h"
#include "bench/support/server_of_malloc.h"

// Of the library that serves malloc here; without rdmalloc they are not there.
#pragma weak rdmalloc_domain_open
#pragma weak rdmalloc_domain_close
#pragma weak rdmalloc_reg_prefault
#pragma weak rdmalloc_heap_create
#pragma weak rdmalloc_heap_malloc
#pragma weak rdmalloc_heap_destroy

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPiece = std::size_t{64} << 20;  // of a registration

double now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

[[noreturn]] void give_up(const char* what, int error) {
  std::fprintf(stderr, "job_start: %s: %s\n", what, std::strerror(error));
  std::exit(1);
}

void touch(char* memory, std::size_t bytes, unsigned threads) {
  const std::size_t part = bytes / threads / kPage * kPage;
  std::vector<std::thread> team;
  for (unsigned i = 0; i < threads; ++i)
    team.emplace_back([=] {
      const std::size_t end = i + 1 == threads ? bytes : (i + 1) * part;
      for (std::size_t at = i * part; at < end; at += kPage) memory[at] = 1;
    });
  for (std::thread& thread : team) thread.join();
}

int register_nothing(void*, void*, size_t, uint32_t, rdmalloc_key* key) {
  *key = {};
  return 0;
}
int deregister_nothing(void*, void*, size_t, const rdmalloc_key*) {
  return 0;
}
int register_by_mlock(void*, void* addr, size_t length, uint32_t, rdmalloc_key* key) {
  *key = {};
  return mlock(addr, length) == 0 ? 0 : -errno;
}
int deregister_by_munlock(void*, void* addr, size_t length, const rdmalloc_key*) {
  return munlock(addr, length) == 0 ? 0 : -errno;
}

rdmalloc_domain* domain_of(bool is_mlock) {
  if (rdmalloc_domain_open == nullptr) give_up("no rdmalloc serves this program", ENOSYS);
  rdmalloc_registrar_ops ops{};
  ops.size = sizeof(ops);
  ops.name = "job_start";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
              RDMALLOC_REGISTRAR_EXACT_ACCESS;
  ops.register_ = is_mlock ? register_by_mlock : register_nothing;
  ops.deregister = is_mlock ? deregister_by_munlock : deregister_nothing;
  ops.largest = kPiece;
  rdmalloc_domain* domain = nullptr;
  if (const int error = rdmalloc_domain_open(&ops, nullptr, nullptr, &domain); error != 0)
    give_up("rdmalloc_domain_open", -error);
  return domain;
}

struct Told {
  double reserve_ms = 0;
  double back_ms = 0;
  double end_ms = 0;
  double huge_percent = 0;
};

void tell_backed(Told& told, std::size_t backed) {
  told.huge_percent =
      100 * static_cast<double>(rdmalloc::bench::huge_bytes()) / static_cast<double>(backed);
}

void on_a_block(const char* way, std::size_t reserved, std::size_t backed, unsigned threads,
                Told& told) {
  const double start = now_ms();
  auto* memory = static_cast<char*>(std::malloc(reserved));
  if (memory == nullptr) give_up("malloc", ENOMEM);
  told.reserve_ms = now_ms() - start;
  rdmalloc_domain* domain = nullptr;
  if (std::strcmp(way, "touch") == 0) {
    touch(memory, backed, threads);
  } else {
    domain = domain_of(std::strcmp(way, "register") == 0);
    const iovec range = {memory, backed};
    if (const int error = rdmalloc_reg_prefault(&domain, 1, &range, 1, threads, nullptr, nullptr);
        error != 0)
      give_up("rdmalloc_reg_prefault", -error);
  }
  told.back_ms = now_ms() - start - told.reserve_ms;
  tell_backed(told, backed);
  const double ends = now_ms();
  if (domain != nullptr) rdmalloc_domain_close(domain);
  std::free(memory);
  told.end_ms = now_ms() - ends;
}

void on_pool_pages(std::uint32_t page_size, std::size_t backed, unsigned threads, Told& told) {
  if (rdmalloc_heap_create == nullptr) give_up("no rdmalloc serves this program", ENOSYS);
  rdmalloc_heap_attr attr{};
  attr.size = sizeof(attr);
  attr.budget_bytes = backed + page_size;
  attr.page_size = page_size;
  const double start = now_ms();
  rdmalloc_heap* heap = nullptr;
  if (const int error = rdmalloc_heap_create(&attr, &heap); error != 0)
    give_up("rdmalloc_heap_create", -error);
  told.reserve_ms = now_ms() - start;
  auto* memory = static_cast<char*>(rdmalloc_heap_malloc(heap, backed));
  if (memory == nullptr) give_up("rdmalloc_heap_malloc", ENOMEM);
  touch(memory, backed, threads);
  told.back_ms = now_ms() - start - told.reserve_ms;
  told.huge_percent = 100;
  const double ends = now_ms();
  rdmalloc_heap_destroy(heap);
  told.end_ms = now_ms() - ends;
}

}  // namespace

int main(int argc, char** argv) {
  const char* way = argc == 5 ? argv[1] : "";
  const std::size_t reserved = argc == 5 ? std::strtoul(argv[2], nullptr, 10) << 20 : 0;
  const std::size_t backed = argc == 5 ? std::strtoul(argv[3], nullptr, 10) << 20 : 0;
  const auto threads = static_cast<unsigned>(argc == 5 ? std::atoi(argv[4]) : 0);
  const bool is_pool = std::strncmp(way, "pool-", 5) == 0;
  const bool is_known = is_pool || std::strcmp(way, "touch") == 0 ||
                        std::strcmp(way, "prefault") == 0 || std::strcmp(way, "register") == 0;
  if (!is_known || backed == 0 || reserved < backed || threads < 1 || threads > 256) {
    std::fputs(
        "usage: job_start touch|prefault|register|pool-2M|pool-1G RESERVED_MIB BACKED_MIB "
        "THREADS\n",
        stderr);
    return 2;
  }
  Told told;
  if (is_pool)
    on_pool_pages(std::strcmp(way, "pool-1G") == 0 ? RDMALLOC_PAGE_1G : RDMALLOC_PAGE_2M, backed,
                  threads, told);
  else
    on_a_block(way, reserved, backed, threads, told);
  std::printf(
      "{\"malloc\":\"%s\",\"reserve_ms\":%.3f,\"back_ms\":%.3f,\"end_ms\":%.3f,"
      "\"huge_percent\":%.1f}\n",
      rdmalloc::bench::server_of_malloc(), told.reserve_ms, told.back_ms, told.end_ms,
      told.huge_percent);
  return 0;
}
