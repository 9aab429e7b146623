// SPDX-License-Identifier: BSD-3-Clause
//
// The registration cache over UCX on real verbs. Two workers of this process; the far one gets and
// puts a block by its remote key, which is the oracle, as in verbs_cache. (By the key, since UCX
// before 1.15 registers the near side of such a transfer itself, whatever handle it is given.)
// UCX's own caches are off (UCX_RCACHE_ENABLE=n, UCX_IB_REG_METHODS=direct) but for `refused`.
//
//   ucx_cache oracle STEPS     our cache; ends with "oracle N steps wrong_bytes W"
//   ucx_cache naive STEPS      a cache that hears of no purge: must be wrong
//   ucx_cache limits           VmPin, access rights, RLIMIT_MEMLOCK without capabilities
//   ucx_cache refused          UCX's own caches on, or one of them: open says -ENOTSUP
#include <rdmalloc/registrar_ucx.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include <string>
#include <vector>

#include "tests/lab/programs/cache_oracle.h"

namespace {

using lab::expect;

void check(const char* what, ucs_status_t status) {
  if (status == UCS_OK) return;
  printf("ucx_cache: %s: %s\n", what, ucs_status_string(status));
  exit(3);
}

ucp_context_h open_context() {
  ucp_config_t* config = nullptr;
  check("ucp_config_read", ucp_config_read(nullptr, nullptr, &config));
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_RMA;
  params.mt_workers_shared = 1;
  ucp_context_h context = nullptr;
  check("ucp_init", ucp_init(&params, config, &context));
  ucp_config_release(config);
  return context;
}

ucp_worker_h open_worker(ucp_context_h context) {
  ucp_worker_params_t params = {};
  ucp_worker_h worker = nullptr;
  check("ucp_worker_create", ucp_worker_create(context, &params, &worker));
  return worker;
}

ucp_ep_h connect(ucp_worker_h from, ucp_worker_h to) {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  check("ucp_worker_get_address", ucp_worker_get_address(to, &address, &bytes));
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = address;
  // A transfer that the device refuses is an error and not the end of the process.
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void*, ucp_ep_h, ucs_status_t) {};
  ucp_ep_h endpoint = nullptr;
  check("ucp_ep_create", ucp_ep_create(from, &params, &endpoint));
  ucp_worker_release_address(to, address);
  return endpoint;
}

class UcxDevice : public lab::Device {
 public:
  UcxDevice() : context_(open_context()), bytes_(lab::kLargestBytes) {
    if (int e = rdmalloc_domain_open_ucx(context_, nullptr, &domain))
      lab::fail("rdmalloc_domain_open_ucx", e);
    near_ = open_worker(context_);
    far_ = open_worker(context_);
    to_near_ = connect(far_, near_);
    // Connects, so that what UCX pins for itself is pinned before the program counts.
    std::vector<unsigned char> block(65536);
    rdmalloc_key key = register_for_ever(block.data(), block.size());
    if (!write(block.data(), key, block.size()) || !read(block.data(), key, block.size()))
      lab::fail("the first transfers", EIO);
    check("ucp_mem_unmap", ucp_mem_unmap(context_, static_cast<ucp_mem_h>(key.handle)));
  }
  bool write(void* block, const rdmalloc_key& key, size_t bytes) override {
    void* packed = pack(key);
    bool is_done = get(block, packed, bytes);
    ucp_rkey_buffer_release(packed);
    return is_done;
  }
  bool read(void* block, const rdmalloc_key& key, size_t bytes) override {
    void* packed = pack(key);
    bool is_done = put(block, packed, bytes);
    ucp_rkey_buffer_release(packed);
    return is_done;
  }
  bool far_reads(const void* block, uint64_t rkey, size_t bytes) override {
    rdmalloc_key key = {};
    key.rkey = rkey;
    return get(block, rdmalloc_ucx_rkey_of(&key)->packed, bytes);
  }
  rdmalloc_key register_for_ever(void* block, size_t bytes) override {
    ucp_mem_map_params_t params = {};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = block;
    params.length = bytes;
    ucp_mem_h registration = nullptr;
    check("ucp_mem_map", ucp_mem_map(context_, &params, &registration));
    return {0, 0, registration, 0};
  }
  unsigned char* far() override { return bytes_.data(); }

 private:
  // The remote key of a local registration: for the test only, a program asks for remote access.
  void* pack(const rdmalloc_key& key) {
    void* packed = nullptr;
    size_t bytes = 0;
    check("ucp_rkey_pack",
          ucp_rkey_pack(context_, static_cast<ucp_mem_h>(key.handle), &packed, &bytes));
    return packed;
  }
  bool get(const void* block, const void* packed, size_t bytes) {
    ucp_rkey_h rkey = nullptr;
    check("ucp_ep_rkey_unpack", ucp_ep_rkey_unpack(to_near_, packed, &rkey));
    ucp_request_param_t param = {};
    bool is_done = finish(
        ucp_get_nbx(to_near_, far(), bytes, reinterpret_cast<uint64_t>(block), rkey, &param));
    ucp_rkey_destroy(rkey);
    return is_done;
  }
  bool put(void* block, const void* packed, size_t bytes) {
    ucp_rkey_h rkey = nullptr;
    check("ucp_ep_rkey_unpack", ucp_ep_rkey_unpack(to_near_, packed, &rkey));
    ucp_request_param_t param = {}, flush = {};
    bool is_done = finish(ucp_put_nbx(to_near_, far(), bytes, reinterpret_cast<uint64_t>(block),
                                      rkey, &param)) &&
                   finish(ucp_ep_flush_nbx(to_near_, &flush));
    ucp_rkey_destroy(rkey);
    return is_done;
  }
  bool finish(ucs_status_ptr_t request) {
    if (!UCS_PTR_IS_PTR(request)) return UCS_PTR_STATUS(request) == UCS_OK;
    ucs_status_t status = UCS_INPROGRESS;
    while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
      ucp_worker_progress(near_);
      ucp_worker_progress(far_);
    }
    ucp_request_free(request);
    return status == UCS_OK;
  }

  ucp_context_h context_;
  ucp_worker_h near_ = nullptr, far_ = nullptr;
  ucp_ep_h to_near_ = nullptr;
  std::vector<unsigned char> bytes_;
};

int check_refused() {
  rdmalloc_domain* domain = nullptr;
  int error = rdmalloc_domain_open_ucx(open_context(), nullptr, &domain);
  expect(error == -ENOTSUP && domain == nullptr, "with a cache of UCX's on, open says -ENOTSUP");
  printf("refused %d failures\n", lab::failures);
  return lab::failures != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const uint64_t steps = argc > 2 ? strtoull(argv[2], nullptr, 10) : 0;
  if (mode == "refused") return check_refused();
  if (mode != "limits" && ((mode != "oracle" && mode != "naive") || steps == 0)) {
    fprintf(stderr, "ucx_cache: wanted oracle STEPS | naive STEPS | limits | refused\n");
    return 2;
  }
  UcxDevice device;
  if (mode != "limits") return lab::judge_oracle(device, mode.c_str(), steps);
  lab::check_pins(device);
  lab::check_neighbours(device, RDMALLOC_ACCESS_REMOTE_READ | RDMALLOC_ACCESS_REMOTE_WRITE);
  lab::check_memlock(device);
  printf("limits %d failures\n", lab::failures);
  return lab::failures != 0;
}
