// libibverbs' own functions, behind ours. Found when first called: at load time libibverbs may not
// be there, and it may come with a plugin that is loaded locally (UCX).
#pragma once

#include <infiniband/verbs.h>

#undef ibv_reg_mr  // macros that choose between the functions
#undef ibv_reg_mr_iova

namespace rdmalloc_shim {

// Each behaves as the function of libibverbs; ENOSYS, or nullptr with errno ENOSYS, where that is
// missing.
struct Real {
  ibv_mr* reg_mr(ibv_pd* pd, void* address, size_t length, int access) const;
  ibv_mr* reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) const;
  ibv_mr* reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                       unsigned access) const;
  int dereg_mr(ibv_mr* mr) const;
  int rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, size_t length, int access) const;
  int dealloc_pd(ibv_pd* pd) const;
  int close_device(ibv_context* context) const;
};
inline constexpr Real kReal{};

}  // namespace rdmalloc_shim
