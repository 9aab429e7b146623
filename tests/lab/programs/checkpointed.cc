// A program that checkpoints are taken of: threads that allocate, register with an io_uring and
// with mlock, write through the ring and compare; a registered heap and a pool. Everything is
// compared in each round, so that a page that a restore got wrong, a stale key or a lost
// registration shows.
//
//   checkpointed FOLDER HEAP_MIB
//
// Each round renames FOLDER/state.new to FOLDER/state: "rounds N wrong M". Ends when FOLDER/stop is
// there, with FOLDER/ended saying the same. Without a device: CRIU takes no file but these.
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/mempolicy.h>
#include <rdmalloc/registrar_mlock.h>
#include <rdmalloc/registrar_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

std::atomic<bool> stops{false};
std::atomic<int> wrong{0};

void is_wrong(const char* what, long detail) {
  std::fprintf(stderr, "checkpointed: %s (%ld)\n", what, detail);
  ++wrong;
}

// Every word says where it is, and in which round it was written.
void fill(char* block, std::size_t bytes, std::uint64_t round) {
  auto* words = reinterpret_cast<std::uint64_t*>(block);
  for (std::size_t i = 0; i < bytes / 8; ++i)
    words[i] = reinterpret_cast<std::uintptr_t>(words + i) * 31 + round;
}
bool is_filled(const char* block, std::size_t bytes, std::uint64_t round) {
  auto* words = reinterpret_cast<const std::uint64_t*>(block);
  for (std::size_t i = 0; i < bytes / 8; ++i)
    if (words[i] != reinterpret_cast<std::uintptr_t>(words + i) * 31 + round) return false;
  return true;
}

// -1 where the kernel knows no NUMA policies.
int policy_of(const void* address) {
  int mode = -1;
  return syscall(SYS_get_mempolicy, &mode, nullptr, 0, address, MPOL_F_ADDR) == 0 ? mode : -1;
}

// Registers, compares, frees; a refusal while everything is quiesced is right.
void churn(rdmalloc_domain* domain, unsigned seed) {
  std::vector<char*> blocks(64);
  std::vector<std::size_t> sizes(64);
  std::vector<std::uint64_t> rounds(64);
  for (std::uint64_t round = 1; !stops; ++round) {
    seed = seed * 1664525 + 1013904223;
    std::size_t at = seed >> 26;
    if (blocks[at] != nullptr && !is_filled(blocks[at], sizes[at], rounds[at]))
      is_wrong("a block has other bytes", static_cast<long>(sizes[at]));
    std::free(blocks[at]);
    sizes[at] = std::size_t{8} * ((seed >> 8) % 16384 + 1);
    rounds[at] = round;
    blocks[at] = static_cast<char*>(std::malloc(sizes[at]));
    fill(blocks[at], sizes[at], round);
    rdmalloc_reg* reg = nullptr;
    int error = rdmalloc_reg_get(domain, blocks[at], sizes[at], RDMALLOC_ACCESS_LOCAL, &reg);
    if (error == 0)
      rdmalloc_reg_put(reg);
    else if (error != -EAGAIN)
      is_wrong("a registration fails", error);
    if (round % 16 == 0) usleep(1000);
  }
  for (char* block : blocks) std::free(block);
}

// Writes a block through the ring, by its key, and reads it back. False: quiesced meanwhile.
bool write_and_compare(rdmalloc_uring* uring, rdmalloc_domain* domain, rdmalloc_reg* reg,
                       const char* block, std::size_t bytes, int file) {
  (void)domain;
  rdmalloc_key key;
  rdmalloc_reg_key_of(reg, &key);
  io_uring_sqe* entry = io_uring_get_sqe(rdmalloc_uring_ring(uring));
  io_uring_prep_write_fixed(entry, file, block, static_cast<unsigned>(bytes), 0,
                            static_cast<int>(key.lkey));
  io_uring_submit(rdmalloc_uring_ring(uring));
  io_uring_cqe done = {};
  if (rdmalloc_uring_reap(uring, &done, 1, true) != 1 || done.res != static_cast<int>(bytes)) {
    is_wrong("a write through the ring fails", done.res);
    return false;
  }
  std::string back(bytes, 0);
  if (pread(file, back.data(), bytes, 0) != static_cast<ssize_t>(bytes) ||
      std::memcmp(back.data(), block, bytes) != 0)
    is_wrong("the ring has written other bytes", static_cast<long>(bytes));
  return true;
}

struct Ring {
  rdmalloc_domain* domain;
  rdmalloc_uring* uring;
  const char* bound;  // memory of a heap with a NUMA node; nullptr: the kernel has none
};

// One round of the main thread: a block of the cache's, one of the heap's, a buffer of the pool's.
void use_ring(const Ring& ring, rdmalloc_heap* heap, rdmalloc_pool* pool, int file,
              std::uint64_t round) {
  auto send = [&](char* block, std::size_t bytes) {
    fill(block, bytes, round);
    rdmalloc_reg* reg = nullptr;
    // Held over the transfer, so a quiesce waits for it.
    int error = rdmalloc_reg_get(ring.domain, block, bytes, RDMALLOC_ACCESS_LOCAL, &reg);
    if (error == -EAGAIN) return;
    if (error != 0) {
      is_wrong("a registration for the ring fails", error);
      return;
    }
    write_and_compare(ring.uring, ring.domain, reg, block, bytes, file);
    // A restore brings no policy back. What is registered is resumed, so the heap's is there.
    if (ring.bound != nullptr && policy_of(ring.bound) != MPOL_BIND)
      is_wrong("the heap's pages may come from any node", policy_of(ring.bound));
    rdmalloc_reg_put(reg);
  };
  auto* block = static_cast<char*>(std::malloc(256 * kKiB));
  send(block, 256 * kKiB);
  std::free(block);
  block = static_cast<char*>(rdmalloc_heap_malloc(heap, 100 * kKiB));
  if (block == nullptr) is_wrong("the heap is full", errno);
  if (block != nullptr) send(block, 100 * kKiB);
  std::free(block);
  rdmalloc_buffer* buffer = nullptr;
  if (int error = rdmalloc_pool_get(pool, 4096, &buffer)) {
    is_wrong("the pool is empty", error);
    return;
  }
  send(static_cast<char*>(buffer->addr), 4096);
  rdmalloc_pool_put(pool, buffer);
}

void write_state(const std::string& folder, const char* name, std::uint64_t rounds) {
  std::string made = folder + "/state.new";
  std::FILE* file = std::fopen(made.c_str(), "w");
  if (file == nullptr) return;
  std::fprintf(file, "rounds %llu wrong %d\n", static_cast<unsigned long long>(rounds),
               wrong.load());
  std::fclose(file);
  std::rename(made.c_str(), (folder + "/" + name).c_str());
}

int run(const std::string& folder, std::size_t heap_bytes) {
  Ring ring = {};
  rdmalloc_domain* locks = nullptr;
  if (int error = rdmalloc_domain_open_uring(nullptr, nullptr, &ring.domain, &ring.uring))
    return -error;
  if (int error = rdmalloc_domain_open_mlock(nullptr, &locks)) return -error;
  rdmalloc_heap_attr of_heap = {};
  of_heap.size = sizeof of_heap;
  of_heap.budget_bytes = heap_bytes;
  of_heap.domains = &ring.domain;
  of_heap.domain_count = 1;
  bool has_nodes = policy_of(&of_heap) >= 0;
  if (has_nodes) of_heap.numa_node = RDMALLOC_NODE(0);
  rdmalloc_heap* heap = nullptr;
  if (int error = rdmalloc_heap_create(&of_heap, &heap)) return -error;
  rdmalloc_pool_attr of_pool = {};
  of_pool.size = sizeof of_pool;
  of_pool.small_count = of_pool.large_count = 16;
  rdmalloc_pool* pool = nullptr;
  if (int error = rdmalloc_pool_create(&ring.domain, 1, &of_pool, &pool)) return -error;
  // Half of the heap has bytes that stay.
  std::size_t kept_bytes = heap_bytes / 2;
  auto* kept = static_cast<char*>(rdmalloc_heap_malloc(heap, kept_bytes));
  if (kept == nullptr) return ENOMEM;
  fill(kept, kept_bytes, 7);
  if (has_nodes) ring.bound = kept;
  int file = open((folder + "/written").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return errno;
  std::vector<std::thread> threads;
  threads.emplace_back(churn, locks, 1u);
  threads.emplace_back(churn, locks, 2u);
  threads.emplace_back(churn, ring.domain, 3u);
  std::uint64_t rounds = 0;
  for (; access((folder + "/stop").c_str(), F_OK) != 0; ++rounds) {
    use_ring(ring, heap, pool, file, rounds);
    if (rounds % 64 == 0 && !is_filled(kept, kept_bytes, 7))
      is_wrong("the heap has other bytes", 0);
    write_state(folder, "state", rounds);
    usleep(2000);
  }
  stops = true;
  for (std::thread& thread : threads) thread.join();
  if (!is_filled(kept, kept_bytes, 7)) is_wrong("the heap has other bytes at the end", 0);
  if (int error = rdmalloc_heap_destroy(heap)) is_wrong("destroying the heap", error);
  if (int error = rdmalloc_pool_destroy(pool)) is_wrong("destroying the pool", error);
  if (int error = rdmalloc_domain_close(ring.domain)) is_wrong("closing the ring", error);
  if (int error = rdmalloc_domain_close(locks)) is_wrong("closing the locks", error);
  write_state(folder, "ended", rounds);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s FOLDER HEAP_MIB\n", argv[0]);
    return 2;
  }
  std::string folder = argv[1];
  int error = run(folder, std::strtoul(argv[2], nullptr, 10) * kMiB);
  if (error != 0) std::fprintf(stderr, "checkpointed: error %d\n", error);
  return error == 0 ? 0 : 1;
}
