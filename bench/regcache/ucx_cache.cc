#include "bench/regcache/ucx_cache.h"

#ifdef RDMALLOC_BENCH_HAS_UCX

#include <unistd.h>

#include <climits>

extern "C" {
#include <ucm/api/ucm.h>
#include <ucp/api/ucp.h>
}

namespace rdmalloc::bench {

std::string UcxCache::version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
}

ucs_status_t UcxCache::mem_reg(void* context, ucs_rcache_t*, void*, ucs_rcache_region_t*,
                               uint16_t) {
  auto* self = static_cast<UcxCache*>(context);
  if (self->counts_) self->registrations_.fetch_add(1, std::memory_order_relaxed);
  return UCS_OK;
}

void UcxCache::mem_dereg(void*, ucs_rcache_t*, ucs_rcache_region_t*) {}

void UcxCache::dump_region(void*, ucs_rcache_t*, ucs_rcache_region_t*, char* text, size_t most) {
  if (most != 0) *text = '\0';
}

UcxCache::UcxCache(bool counts) : counts_(counts) {
  // No size in the struct of parameters: with another release they would be read wrongly.
  const std::string known =
      std::to_string(UCP_API_MAJOR) + "." + std::to_string(UCP_API_MINOR) + ".";
  if (!version().starts_with(known)) {
    problem_ = "built for " + known + "x, but the library is " + version();
    return;
  }
  ucs_rcache_params_t params{};
  params.region_struct_size = sizeof(ucs_rcache_region_t);
  params.alignment = UCS_RCACHE_MIN_ALIGNMENT;
  params.max_alignment = static_cast<std::size_t>(getpagesize());
  params.ucm_events = UCM_EVENT_VM_UNMAPPED | UCM_EVENT_MEM_TYPE_FREE;
  params.ucm_event_priority = 1000;
  params.ops = &ops_;
  params.context = this;
  params.max_regions = ULONG_MAX;
  params.max_size = SIZE_MAX;
  params.max_unreleased = SIZE_MAX;
  const ucs_status_t status = ucs_rcache_create(&params, "bench", nullptr, &cache_);
  if (status != UCS_OK) problem_ = "ucs_rcache_create: " + std::string(ucs_status_string(status));
}

UcxCache::~UcxCache() {
  if (cache_ != nullptr) ucs_rcache_destroy(cache_);
}

}  // namespace rdmalloc::bench

#endif
