// DPDK as a registrar: external memory, mapped for devices.
//
// DPDK refuses only what is the very same range as another. What overlaps another in part it takes,
// and then VFIO's "is mapped already" counts as success, and mlx5 unmaps by the first address it
// finds. So the ranges are kept here too, and no two of them overlap.
#define ALLOW_EXPERIMENTAL_API 1  // what DPDK still calls rte_dev_dma_map after eight years
#include <errno.h>
#include <pthread.h>
#include <rdmalloc/registrar_dpdk.h>
#include <rte_config.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_memory.h>
#include <stdlib.h>

#include <cstddef>
#include <cstdint>

#include "regcache/registrars/fault.h"
#include "regcache/registrars/keep_errno.h"

namespace rdmalloc::registrars {
namespace {

// More there can't be: one list of segments for each.
constexpr std::size_t kMostRanges = RTE_MAX_MEMSEG_LISTS;

struct Range {
  std::uintptr_t base, end;  // base 0: free
  unsigned count;            // two threads may register the same at once; 0: could not be undone
};

struct Dpdk {
  pthread_mutex_t lock;
  Range ranges[kMostRanges];
  rte_device** devices;
  std::size_t device_count;
};

// What a call of DPDK's that failed says; `result` is what it returned, 1 from the bus of virtual
// devices where no driver is attached. Never -ENODEV: one device that is gone must not end the
// domain, in which the others still reach the pages.
int error_of(int result) {
  int error = result > 0 ? ENODEV : rte_errno;
  if (error == 0) error = errno;
  return error != 0 && error != ENODEV ? -error : -EIO;
}

void clear_errors() {
  rte_errno = 0;
  errno = 0;
}

// Unmaps for the first `count` devices, last first, going on after an error. The first error.
int unmap(Dpdk& dpdk, std::size_t count, void* addr, std::size_t length) {
  int first = 0;
  while (count-- != 0) {
    clear_errors();
    int result = should_fail("dpdk_unmap")
                     ? -1
                     : rte_dev_dma_unmap(dpdk.devices[count], addr,
                                         reinterpret_cast<std::uint64_t>(addr), length);
    if (result != 0 && first == 0) first = error_of(result);
  }
  return first;
}

int map(Dpdk& dpdk, void* addr, std::size_t length) {
  for (std::size_t i = 0; i < dpdk.device_count; ++i) {
    clear_errors();
    int result =
        should_fail("dpdk_map")
            ? -1
            : rte_dev_dma_map(dpdk.devices[i], addr, reinterpret_cast<std::uint64_t>(addr), length);
    if (result == 0) continue;
    int error = error_of(result);
    return unmap(dpdk, i, addr, length) == 0 ? error : -ENOTRECOVERABLE;
  }
  return 0;
}

// Makes the range known. Its "pages" are as large as its bounds allow, up to 2 MiB: DPDK keeps 64
// bytes for each of them, and where IO addresses are virtual ones it means nothing else by them.
int make_known(void* addr, std::size_t length) {
  std::size_t bounds = reinterpret_cast<std::uintptr_t>(addr) | length;
  std::size_t page = bounds & -bounds;
  if (page > std::size_t{1} << 21) page = std::size_t{1} << 21;
  std::size_t count = length / page;
  auto* addresses = allocate<rte_iova_t>(count);
  if (addresses == nullptr) return -ENOMEM;
  for (std::size_t i = 0; i < count; ++i)
    addresses[i] = reinterpret_cast<std::uintptr_t>(addr) + i * page;
  clear_errors();
  int result =
      should_fail("dpdk_register")
          ? -1
          : rte_extmem_register(addr, length, addresses, static_cast<unsigned>(count), page);
  int error = result == 0 ? 0 : error_of(result);
  free(addresses);
  return error;
}

int forget(void* addr, std::size_t length) {
  clear_errors();
  int result = should_fail("dpdk_unregister") ? -1 : rte_extmem_unregister(addr, length);
  return result == 0 ? 0 : error_of(result);
}

// The place of exactly this range, or a free one; -EEXIST where it overlaps another, -ENOSPC.
int place_of(Dpdk& dpdk, std::uintptr_t base, std::uintptr_t end, Range** place) {
  *place = nullptr;
  for (Range& range : dpdk.ranges) {
    if (range.base == 0) {
      if (*place == nullptr) *place = &range;
    } else if (range.base == base && range.end == end && range.count != 0) {
      *place = &range;
      return 0;
    } else if (range.base < end && base < range.end) {
      return -EEXIST;
    }
  }
  return *place != nullptr ? 0 : -ENOSPC;
}

int dpdk_register(void* context, void* addr, std::size_t length, std::uint32_t, rdmalloc_key* key) {
  auto& dpdk = *static_cast<Dpdk*>(context);
  auto base = reinterpret_cast<std::uintptr_t>(addr);
  pthread_mutex_lock(&dpdk.lock);
  Range* place = nullptr;
  int error = place_of(dpdk, base, base + length, &place);
  if (error == 0 && place->base == 0) {
    error = make_known(addr, length);
    if (error == 0) {
      error = map(dpdk, addr, length);
      // As after a deregister that failed: known, and its place taken.
      if (error != 0 && error != -ENOTRECOVERABLE && forget(addr, length) != 0)
        error = -ENOTRECOVERABLE;
    }
    if (error == 0 || error == -ENOTRECOVERABLE) *place = {base, base + length, 0};
  }
  if (error == 0) {
    ++place->count;
    key->lkey = base;
  }
  pthread_mutex_unlock(&dpdk.lock);
  return error;
}

int dpdk_deregister(void* context, void* addr, std::size_t length, const rdmalloc_key*) {
  auto& dpdk = *static_cast<Dpdk*>(context);
  auto base = reinterpret_cast<std::uintptr_t>(addr);
  pthread_mutex_lock(&dpdk.lock);
  Range* place = nullptr;
  int error = place_of(dpdk, base, base + length, &place);
  if (error == 0 && --place->count == 0) {
    // What a device still reaches stays known, and its place taken: nothing may overlap it.
    error = unmap(dpdk, dpdk.device_count, addr, length);
    if (error == 0) error = forget(addr, length);
    if (error == 0) *place = {};
  }
  pthread_mutex_unlock(&dpdk.lock);
  return error;
}

void dpdk_close(void* context) {
  auto* dpdk = static_cast<Dpdk*>(context);
  pthread_mutex_destroy(&dpdk->lock);
  free(dpdk->devices);
  free(dpdk);
}

}  // namespace
}  // namespace rdmalloc::registrars

using namespace rdmalloc::registrars;

extern "C" RDMALLOC_API int rdmalloc_domain_open_dpdk(rte_device* const* devices,
                                                      std::size_t device_count,
                                                      const rdmalloc_domain_attr* attr,
                                                      rdmalloc_domain** domain) {
  KeepErrno keep;
  for (std::size_t i = 0; i < device_count; ++i)
    if (devices == nullptr || devices[i] == nullptr) return -EINVAL;
  rte_iova_mode mode = rte_eal_iova_mode();
  if (mode != RTE_IOVA_VA) return mode == RTE_IOVA_PA ? -ENOTSUP : -EINVAL;
  auto* dpdk = allocate<Dpdk>();
  if (dpdk == nullptr) return -ENOMEM;
  pthread_mutex_init(&dpdk->lock, nullptr);
  dpdk->devices = allocate<rte_device*>(device_count + 1);
  if (dpdk->devices == nullptr) {
    dpdk_close(dpdk);
    return -ENOMEM;
  }
  for (std::size_t i = 0; i < device_count; ++i) dpdk->devices[i] = devices[i];
  dpdk->device_count = device_count;
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "dpdk";
  ops.flags =
      RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG | RDMALLOC_REGISTRAR_NO_OVERLAP;
  ops.register_ = dpdk_register;
  ops.deregister = dpdk_deregister;
  ops.close = dpdk_close;
  ops.max_count = kMostRanges;
  int error = rdmalloc_domain_open(&ops, dpdk, attr, domain);
  if (error != 0) dpdk_close(dpdk);
  return error;
}
