#include "regcache/verbs_shim/real.h"

#include <dlfcn.h>
#include <errno.h>

#include <atomic>

namespace rdmalloc_shim {
namespace {

// The next definition in the search order, which may be another interposer's; where libibverbs was
// loaded locally, that order does not hold it.
void* find(const char* name, const char* version) {
  if (void* next = dlvsym(RTLD_NEXT, name, version)) return next;
  void* library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return library != nullptr ? dlvsym(library, name, version) : nullptr;
}

// Any thread: all that find it find the same.
template <typename Function>
class Lazy {
 public:
  constexpr Lazy(const char* name, const char* version) : name_(name), version_(version) {}
  Function get() {
    void* found = found_.load(std::memory_order_relaxed);
    if (found == nullptr) {
      found = find(name_, version_);
      found_.store(found, std::memory_order_relaxed);
      if (found == nullptr) errno = ENOSYS;
    }
    return reinterpret_cast<Function>(found);
  }

 private:
  const char* name_;
  const char* version_;
  std::atomic<void*> found_{nullptr};
};

constinit Lazy<decltype(&ibv_reg_mr)> next_reg_mr{"ibv_reg_mr", "IBVERBS_1.1"};
constinit Lazy<decltype(&ibv_reg_mr_iova)> next_reg_mr_iova{"ibv_reg_mr_iova", "IBVERBS_1.7"};
constinit Lazy<decltype(&ibv_reg_mr_iova2)> next_reg_mr_iova2{"ibv_reg_mr_iova2", "IBVERBS_1.8"};
constinit Lazy<decltype(&ibv_dereg_mr)> next_dereg_mr{"ibv_dereg_mr", "IBVERBS_1.1"};
constinit Lazy<decltype(&ibv_rereg_mr)> next_rereg_mr{"ibv_rereg_mr", "IBVERBS_1.1"};
constinit Lazy<decltype(&ibv_dealloc_pd)> next_dealloc_pd{"ibv_dealloc_pd", "IBVERBS_1.1"};
constinit Lazy<decltype(&ibv_close_device)> next_close_device{"ibv_close_device", "IBVERBS_1.1"};

}  // namespace

ibv_mr* Real::reg_mr(ibv_pd* pd, void* address, size_t length, int access) const {
  auto next = next_reg_mr.get();
  return next != nullptr ? next(pd, address, length, access) : nullptr;
}
ibv_mr* Real::reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                          int access) const {
  auto next = next_reg_mr_iova.get();
  return next != nullptr ? next(pd, address, length, iova, access) : nullptr;
}
ibv_mr* Real::reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                           unsigned access) const {
  auto next = next_reg_mr_iova2.get();
  return next != nullptr ? next(pd, address, length, iova, access) : nullptr;
}
int Real::dereg_mr(ibv_mr* mr) const {
  auto next = next_dereg_mr.get();
  return next != nullptr ? next(mr) : ENOSYS;
}
int Real::rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length,
                   int access) const {
  auto next = next_rereg_mr.get();
  return next != nullptr ? next(mr, flags, pd, address, length, access) : IBV_REREG_MR_ERR_CMD;
}
int Real::dealloc_pd(ibv_pd* pd) const {
  auto next = next_dealloc_pd.get();
  return next != nullptr ? next(pd) : ENOSYS;
}
int Real::close_device(ibv_context* context) const {
  auto next = next_close_device.get();
  return next != nullptr ? next(context) : ENOSYS;
}

}  // namespace rdmalloc_shim
