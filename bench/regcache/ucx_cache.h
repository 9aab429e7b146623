// UCX's registration cache with a registrar that does nothing, as the transports of UCX 1.13 set
// theirs up (uct/ib/base/ib_md.c): regions aligned to 16 bytes, no limits, the events of unmapped
// memory listened to. Its header is installed, but it is an interface of UCX's own and changes with
// each release: only the version that we know is measured (CMakeLists.txt, version()).
#pragma once

#ifdef RDMALLOC_BENCH_HAS_UCX

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <string>

extern "C" {
#include <ucs/memory/rcache.h>
}

namespace rdmalloc::bench {

class UcxCache {
 public:
  // Without `counts` registrations() stays 0: a count is a line that all threads write.
  explicit UcxCache(bool counts = true);
  ~UcxCache();
  UcxCache(const UcxCache&) = delete;
  UcxCache& operator=(const UcxCache&) = delete;

  // Why it can't be measured, or nothing.
  const std::string& problem() const { return problem_; }
  std::uint64_t registrations() const { return registrations_.load(std::memory_order_relaxed); }

  ucs_rcache_region_t* get(void* address, std::size_t length) {
    ucs_rcache_region_t* region = nullptr;
    const ucs_status_t status =
        ucs_rcache_get(cache_, address, length, PROT_READ | PROT_WRITE, nullptr, &region);
    return status == UCS_OK ? region : nullptr;
  }
  void put(ucs_rcache_region_t* region) { ucs_rcache_region_put(cache_, region); }
  // Of a region that is held; it is deregistered by the put.
  void invalidate(ucs_rcache_region_t* region) {
    ucs_rcache_region_invalidate(
        cache_, region, [](void*) {}, nullptr);
  }

  // Of the library that runs, as "1.13.1".
  static std::string version();

 private:
  static ucs_status_t mem_reg(void* context, ucs_rcache_t* cache, void* argument,
                              ucs_rcache_region_t* region, uint16_t flags);
  static void mem_dereg(void* context, ucs_rcache_t* cache, ucs_rcache_region_t* region);
  static void dump_region(void* context, ucs_rcache_t* cache, ucs_rcache_region_t* region,
                          char* text, size_t most);

  ucs_rcache_ops_t ops_{mem_reg, mem_dereg, dump_region};
  ucs_rcache_t* cache_ = nullptr;
  const bool counts_;
  std::atomic<std::uint64_t> registrations_{0};
  std::string problem_;
};

}  // namespace rdmalloc::bench

#endif
