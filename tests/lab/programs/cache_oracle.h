// The registration cache on a real device, whatever the fabric: histories of malloc, free, purge
// and reuse, after each of which what the device sees of a block must be what the CPU wrote there;
// pins that the kernel counts; limits without capabilities. verbs_cache, fabric_cache and ucx_cache
// bring a Device.
#pragma once

#include <errno.h>
#include <grp.h>
#include <rdmalloc/regcache.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>
#include <utility>
#include <vector>

namespace lab {

inline int failures = 0;
inline void expect(bool holds, const char* what) {
  if (holds) return;
  failures++;
  printf("not so: %s\n", what);
}
[[noreturn]] inline void fail(const char* what, long value) {
  printf("%s: %ld (%s)\n", what, value, strerror(static_cast<int>(labs(value))));
  exit(3);
}

constexpr size_t kLargestBytes = 2u << 20u;

// Two connected ends in this process. Block memory is at the near one.
class Device {
 public:
  virtual ~Device() = default;
  // RDMA between a block, by its local key, and the first bytes of far(): true when it completed
  // without error.
  virtual bool write(void* block, const rdmalloc_key& key, size_t bytes) = 0;
  virtual bool read(void* block, const rdmalloc_key& key, size_t bytes) = 0;
  // The other direction of rights: the far end reads [block, +bytes) by a remote key.
  virtual bool far_reads(const void* block, uint64_t rkey, size_t bytes) = 0;
  // Registers past our cache, for ever: what the naive cache does.
  virtual rdmalloc_key register_for_ever(void* block, size_t bytes) = 0;
  // kLargestBytes, registered by hand, once, outside the cache.
  virtual unsigned char* far() = 0;

  rdmalloc_domain* domain = nullptr;
};

// Where the key of a block comes from: our cache, or one that keeps what it once registered there.
class Keys {
 public:
  Keys(Device& device, bool is_naive) : device_(device), is_naive_(is_naive) {}

  rdmalloc_key take(void* block, size_t bytes, bool counted) {
    if (is_naive_) {
      auto [kept, is_new] = kept_.try_emplace({block, bytes});
      if (is_new) kept->second = device_.register_for_ever(block, bytes);
      return kept->second;
    }
    rdmalloc_key key;
    if (counted) {
      if (int e = rdmalloc_reg_get(device_.domain, block, bytes, RDMALLOC_ACCESS_LOCAL, &held_))
        fail("rdmalloc_reg_get", e);
      rdmalloc_reg_key_of(held_, &key);
    } else if (int e =
                   rdmalloc_reg_key(device_.domain, block, bytes, RDMALLOC_ACCESS_LOCAL, &key)) {
      fail("rdmalloc_reg_key", e);
    }
    return key;
  }
  void done() {
    rdmalloc_reg_put(held_);
    held_ = nullptr;
  }

 private:
  Device& device_;
  bool is_naive_;
  std::map<std::pair<void*, size_t>, rdmalloc_key> kept_;
  rdmalloc_reg* held_ = nullptr;
};

inline size_t random_size(std::mt19937_64& random) {
  // Often the same few sizes: the same addresses come back.
  static constexpr size_t common[] = {4096, 65536, 258048, 1u << 20u};
  return random() % 4 != 0 ? common[random() % 4] : 1 + random() % kLargestBytes;
}

// Writes the block's bytes to the far side and reads others back; the bytes that were wrong.
inline uint64_t there_and_back(Device& device, unsigned char* block, const rdmalloc_key& key,
                               size_t bytes, unsigned char seed) {
  uint64_t wrong = 0;
  unsigned char* far = device.far();
  for (size_t i = 0; i < bytes; i++) block[i] = static_cast<unsigned char>(seed + i + (i >> 8u));
  memset(far, ~seed, bytes);
  if (!device.write(block, key, bytes)) fail("RDMA WRITE completed with an error", EIO);
  for (size_t i = 0; i < bytes; i++) wrong += far[i] != block[i];
  // And the other way: what the device puts there, the CPU must find there.
  for (size_t i = 0; i < bytes; i += 97) far[i] ^= 0x5a;
  if (!device.read(block, key, bytes)) fail("RDMA READ completed with an error", EIO);
  for (size_t i = 0; i < bytes; i++) wrong += far[i] != block[i];
  return wrong;
}

struct Block {
  unsigned char* at;
  size_t bytes;
};

// I11: a child, born with keys of its parent's in use, writes into every block, frees some and gets
// others. The parent's transfers are of the parent's pages, whichever of the two wrote first.
inline void in_a_child(const std::vector<Block>& live) {
  for (size_t i = 0; i < live.size(); i++) {
    memset(live[i].at, 0xEE, live[i].bytes);
    if (i % 2 == 0) free(live[i].at);
  }
  free(memset(malloc(300000), 0xDD, 300000));
  _exit(0);
}

inline uint64_t oracle(Device& device, Keys& keys, uint64_t steps, bool with_children) {
  std::mt19937_64 random(20260731);
  std::vector<Block> live;
  uint64_t wrong = 0;
  for (uint64_t step = 0; step < steps; step++) {
    uint64_t what = random() % 8;
    if (live.size() < 8 || what < 3) {
      size_t bytes = random_size(random);
      live.push_back({static_cast<unsigned char*>(malloc(bytes)), bytes});
      if (live.back().at == nullptr) fail("malloc", ENOMEM);
    } else if (what < 6 || live.size() > 24) {
      size_t which = random() % live.size();
      free(live[which].at);
      live[which] = live.back();
      live.pop_back();
      if (what == 5) rdmalloc_purge(0);
    }
    if (live.empty()) continue;
    Block& block = live[random() % live.size()];
    rdmalloc_key key = keys.take(block.at, block.bytes, random() % 2 == 0);
    auto seed = static_cast<unsigned char>(random());
    pid_t child = with_children ? fork() : -1;
    if (child == 0) in_a_child(live);
    wrong += there_and_back(device, block.at, key, block.bytes, seed);
    keys.done();
    int status = 0;
    if (with_children && (waitpid(child, &status, 0) != child || status != 0))
      fail("a child ended badly", status);
  }
  for (Block& block : live) free(block.at);
  return wrong;
}

inline uint64_t pinned_bytes() {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  unsigned long kib = 0;
  while (file != nullptr && fgets(line, sizeof line, file) != nullptr)
    if (sscanf(line, "VmPin: %lu", &kib) == 1) break;
  if (file != nullptr) fclose(file);
  return uint64_t{kib} * 1024;
}

inline rdmalloc_domain_counters stats_of(rdmalloc_domain* domain) {
  rdmalloc_domain_counters stats = {};
  stats.size = sizeof stats;
  expect(rdmalloc_domain_stats(domain, &stats) == 0, "rdmalloc_domain_stats works");
  return stats;
}
inline uint64_t live_bytes(rdmalloc_domain* domain) {
  return stats_of(domain).live_bytes;
}

inline void check_pins(Device& device) {
  Keys keys(device, false);
  uint64_t before = pinned_bytes();
  std::vector<void*> blocks;
  for (size_t bytes : {size_t{100}, size_t{5000}, size_t{300000}, size_t{3} << 20u}) {
    blocks.push_back(malloc(bytes));
    memset(blocks.back(), 1, bytes);
    keys.take(blocks.back(), bytes, true);
    keys.done();
  }
  expect(live_bytes(device.domain) > 0, "something is registered");
  expect(pinned_bytes() - before == live_bytes(device.domain), "VmPin equals our own count");
  // Freed and asked for again: at the same address, once it lies where the allocator likes it best.
  uint64_t misses = 0;
  void* last = nullptr;
  for (int turn = 0; turn < 3; turn++) {
    misses = stats_of(device.domain).misses;
    last = blocks.back();
    free(last);
    blocks.back() = malloc(size_t{3} << 20u);
    keys.take(blocks.back(), size_t{3} << 20u, true);
    keys.done();
  }
  expect(blocks.back() == last, "a freed buffer comes back at its address");
  expect(stats_of(device.domain).misses == misses, "and its registration is still there");
  for (void* block : blocks) free(block);
  rdmalloc_purge(0);
  expect(stats_of(device.domain).purge_drops > 0, "a purge drops registrations");
  expect(pinned_bytes() - before == live_bytes(device.domain), "VmPin equals it after a purge");
  rdmalloc_domain_flush(device.domain);
  expect(live_bytes(device.domain) == 0 && pinned_bytes() == before, "a flush unpins everything");
}

// A remote key reaches its pages and nothing beside them. The failing transfer breaks the
// connection: last of what transfers. `access` is what the registrar grants reading with.
inline void check_neighbours(Device& device, uint32_t access = RDMALLOC_ACCESS_REMOTE_READ) {
  auto* block = static_cast<unsigned char*>(aligned_alloc(4096, 4 * 4096));
  memset(block, 7, 4 * 4096);
  rdmalloc_reg* remote = nullptr;
  expect(rdmalloc_reg_get(device.domain, block + 4096, 4096, access, &remote) == 0,
         "remote reading of one page is granted");
  if (remote == nullptr) return;
  rdmalloc_key key;
  rdmalloc_reg_key_of(remote, &key);
  expect(device.far_reads(block + 4096, key.rkey, 4096), "a peer reads the page");
  expect(!device.far_reads(block + 2 * 4096, key.rkey, 16),
         "a peer does not read the page after it (I13)");
  rdmalloc_reg_put(remote);
  free(block);
}

// Without capabilities, with 256 KiB to pin beyond what is pinned now. The process stays so.
inline void check_memlock(Device& device) {
  rdmalloc_domain_flush(device.domain);
  rlim_t bytes = pinned_bytes() + 65536 * 4;
  rlimit small = {bytes, bytes};
  expect(setrlimit(RLIMIT_MEMLOCK, &small) == 0 && setgroups(0, nullptr) == 0 &&
             setgid(65534) == 0 && setuid(65534) == 0,
         "privileges can be dropped");
  void* large = malloc(8u << 20u);
  rdmalloc_reg* reg = nullptr;
  expect(rdmalloc_reg_get(device.domain, large, 8u << 20u, RDMALLOC_ACCESS_LOCAL, &reg) == -ENOMEM,
         "over RLIMIT_MEMLOCK a registration is -ENOMEM (I12)");
  memset(large, 1, 8u << 20u);
  free(large);
  void* block = malloc(100000);
  expect(rdmalloc_reg_get(device.domain, block, 100000, RDMALLOC_ACCESS_LOCAL, &reg) == 0,
         "one that fits is granted after that");
  rdmalloc_reg_put(reg);
  // 128 KiB are registered by now: a third of that size wants room, which the idle one leaves.
  void* other = malloc(200000);
  expect(rdmalloc_reg_get(device.domain, other, 200000, RDMALLOC_ACCESS_LOCAL, &reg) == 0 &&
             stats_of(device.domain).evictions > 0,
         "an idle one is evicted for one that fits only without it");
  rdmalloc_reg_put(reg);
  free(other);
  free(block);
}

// The modes that all the programs have. 0, or 1 when something was not as it must be.
inline int judge_oracle(Device& device, const char* mode, uint64_t steps) {
  bool is_naive = strcmp(mode, "naive") == 0;
  Keys keys(device, is_naive);
  uint64_t wrong = oracle(device, keys, steps, strcmp(mode, "forks") == 0);
  printf("%s %llu steps wrong_bytes %llu\n", mode, static_cast<unsigned long long>(steps),
         static_cast<unsigned long long>(wrong));
  return failures != 0 || (wrong != 0) != is_naive;
}

}  // namespace lab
