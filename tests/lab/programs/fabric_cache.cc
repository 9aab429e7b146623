// SPDX-License-Identifier: BSD-3-Clause
//
// The registration cache over libfabric on real verbs, with "verbs;ofi_rxm" (RDM endpoints) and
// with "verbs" alone (connected ones). Two endpoints of this process; fi_write and fi_read between
// them are the oracle, as in verbs_cache. FI_MR_CACHE_MAX_COUNT=0 but for `refused`.
//
//   fabric_cache PROVIDER oracle STEPS     our cache; ends with "oracle N steps wrong_bytes W"
//   fabric_cache PROVIDER naive STEPS      a cache that hears of no purge: must be wrong
//   fabric_cache PROVIDER limits           VmPin, access rights, RLIMIT_MEMLOCK without capability
//   fabric_cache PROVIDER refused          libfabric's own cache on: open says -ENOTSUP
#include <rdma/fi_rma.h>
#include <rdmalloc/registrar_libfabric.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "tests/lab/programs/cache_oracle.h"
#include "tests/lab/programs/fabric.h"

namespace {

using lab::check, lab::End, lab::expect;

struct Fabric : lab::Fabric {
  End near, far;
  fi_addr_t far_address = 0, near_address = 0;  // of RDM endpoints, each in the other's table
};

void open_rdm(Fabric& fabric) {
  open_rdm_end(fabric, fabric.near);
  open_rdm_end(fabric, fabric.far);
  fabric.far_address = insert_address(fabric.near, fabric.far);
  fabric.near_address = insert_address(fabric.far, fabric.near);
}

// ---- connected endpoints ----

fi_info* await_event(fid_eq* events, uint32_t wanted) {
  fi_eq_cm_entry entry = {};
  uint32_t event = 0;
  long got = fi_eq_sread(events, &event, &entry, sizeof entry, -1, 0);
  if (got == -FI_EAVAIL) {
    fi_eq_err_entry error = {};
    fi_eq_readerr(events, &error, 0);
    check("connecting", -error.err);
  }
  check("fi_eq_sread", got);
  if (event != wanted) check("another event than wanted", -FI_EOTHER);
  return entry.info;
}

void open_connected(Fabric& fabric) {
  fi_eq_attr attr = {};
  attr.wait_obj = FI_WAIT_UNSPEC;
  // One queue for all: a thread that waits on it makes the progress of both ends' connecting.
  fid_eq* events = nullptr;
  check("fi_eq_open", fi_eq_open(fabric.fabric, &attr, &events, nullptr));
  fid_pep* listener = nullptr;
  check("fi_passive_ep", fi_passive_ep(fabric.fabric, fabric.info, &listener, nullptr));
  check("fi_pep_bind", fi_pep_bind(listener, &events->fid, 0));
  check("fi_listen", fi_listen(listener));
  char name[256];
  size_t bytes = sizeof name;
  check("fi_getname", fi_getname(&listener->fid, name, &bytes));
  fi_info* called = fi_dupinfo(fabric.info);  // verbs wants to know whom it will connect to
  free(called->dest_addr);
  called->dest_addr = memcpy(malloc(bytes), name, bytes);
  called->dest_addrlen = bytes;
  open_end(fabric, fabric.near, called);
  fi_freeinfo(called);
  check("fi_ep_bind", fi_ep_bind(fabric.near.endpoint, &events->fid, 0));
  check("fi_enable", fi_enable(fabric.near.endpoint));
  check("fi_connect", fi_connect(fabric.near.endpoint, name, nullptr, 0));
  fi_info* caller = await_event(events, FI_CONNREQ);
  open_end(fabric, fabric.far, caller);
  check("fi_ep_bind", fi_ep_bind(fabric.far.endpoint, &events->fid, 0));
  check("fi_enable", fi_enable(fabric.far.endpoint));
  check("fi_accept", fi_accept(fabric.far.endpoint, nullptr, 0));
  await_event(events, FI_CONNECTED);
  await_event(events, FI_CONNECTED);
  fi_freeinfo(caller);
}

lab::Fabric open_fabric(const std::string& provider) {
  const bool is_rdm = provider.find(';') != std::string::npos;
  fi_info* hints =
      lab::hints_for(provider.c_str(), is_rdm ? FI_EP_RDM : FI_EP_MSG, FI_MSG | FI_RMA);
  hints->addr_format = is_rdm ? FI_FORMAT_UNSPEC : FI_SOCKADDR_IN;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  return lab::open_fabric(hints);
}

class FabricDevice : public lab::Device {
 public:
  explicit FabricDevice(const std::string& provider)
      : fabric_{open_fabric(provider), {}, {}}, bytes_(lab::kLargestBytes) {
    if (int e = rdmalloc_domain_open_libfabric(fabric_.domain, fabric_.info, nullptr, &domain))
      lab::fail("rdmalloc_domain_open_libfabric", e);
    if (fabric_.info->ep_attr->type == FI_EP_RDM)
      open_rdm(fabric_);
    else
      open_connected(fabric_);
    registration_ = register_by_hand(bytes_.data(), bytes_.size(),
                                     FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
  }
  bool write(void* block, const rdmalloc_key& key, size_t bytes) override {
    return transfer(fabric_.near, [&](void* context) {
      return fi_write(fabric_.near.endpoint, block, bytes, reinterpret_cast<void*>(key.lkey),
                      fabric_.far_address, reinterpret_cast<uint64_t>(far()),
                      fi_mr_key(registration_), context);
    });
  }
  bool read(void* block, const rdmalloc_key& key, size_t bytes) override {
    return transfer(fabric_.near, [&](void* context) {
      return fi_read(fabric_.near.endpoint, block, bytes, reinterpret_cast<void*>(key.lkey),
                     fabric_.far_address, reinterpret_cast<uint64_t>(far()),
                     fi_mr_key(registration_), context);
    });
  }
  bool far_reads(const void* block, uint64_t rkey, size_t bytes) override {
    return transfer(fabric_.far, [&](void* context) {
      return fi_read(fabric_.far.endpoint, far(), bytes, fi_mr_desc(registration_),
                     fabric_.near_address, reinterpret_cast<uint64_t>(block), rkey, context);
    });
  }
  rdmalloc_key register_for_ever(void* block, size_t bytes) override {
    fid_mr* registration = register_by_hand(block, bytes, FI_READ | FI_WRITE);
    return {reinterpret_cast<uint64_t>(fi_mr_desc(registration)), 0, registration, 0};
  }
  unsigned char* far() override { return bytes_.data(); }
  const Fabric& fabric() const { return fabric_; }

 private:
  fid_mr* register_by_hand(void* memory, size_t bytes, uint64_t access) {
    static uint64_t wanted_key = 1;
    fid_mr* registration = nullptr;
    check("fi_mr_reg", fi_mr_reg(fabric_.domain, memory, bytes, access, 0, wanted_key++, 0,
                                 &registration, nullptr));
    return registration;
  }

  // Posts until the endpoint takes it, then makes progress at both ends until it is done.
  template <typename Post>
  bool transfer(End& end, Post post) {
    End& other = &end == &fabric_.near ? fabric_.far : fabric_.near;
    fi_context context = {};
    fi_cq_entry entry;
    long error;
    while ((error = post(&context)) == -FI_EAGAIN) {
      fi_cq_read(end.queue, &entry, 0);
      fi_cq_read(other.queue, &entry, 0);
    }
    check("posting", error);
    for (;;) {
      long got = fi_cq_read(end.queue, &entry, 1);
      if (got == 1) return true;
      if (got != -FI_EAGAIN) break;
      fi_cq_read(other.queue, &entry, 0);
    }
    fi_cq_err_entry failed = {};
    fi_cq_readerr(end.queue, &failed, 0);
    return false;
  }

  Fabric fabric_;
  std::vector<unsigned char> bytes_;
  fid_mr* registration_ = nullptr;
};

// Under the small RLIMIT_MEMLOCK that check_memlock() leaves: the probe finds room, or says ENOMEM
// where there is none, and does not blame the provider.
void check_open_under_limit(const FabricDevice& device) {
  const Fabric& fabric = device.fabric();
  rdmalloc_domain_flush(device.domain);
  rdmalloc_domain* other = nullptr;
  expect(rdmalloc_domain_open_libfabric(fabric.domain, fabric.info, nullptr, &other) == 0 &&
             rdmalloc_domain_close(other) == 0,
         "a domain opens where 1 MiB can't be registered");
  rlimit none = {65536, 65536};
  expect(setrlimit(RLIMIT_MEMLOCK, &none) == 0, "the limit can be lowered");
  expect(rdmalloc_domain_open_libfabric(fabric.domain, fabric.info, nullptr, &other) == -ENOMEM,
         "and is -ENOMEM where nothing can");
}

int check_refused(const std::string& provider) {
  const lab::Fabric fabric = open_fabric(provider);
  rdmalloc_domain* domain = nullptr;
  int error = rdmalloc_domain_open_libfabric(fabric.domain, fabric.info, nullptr, &domain);
  expect(error == -ENOTSUP && domain == nullptr, "with libfabric's cache on, open says -ENOTSUP");
  printf("refused %d failures\n", lab::failures);
  return lab::failures != 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string provider = argc > 1 ? argv[1] : "", mode = argc > 2 ? argv[2] : "";
  const uint64_t steps = argc > 3 ? strtoull(argv[3], nullptr, 10) : 0;
  if (mode == "refused") return check_refused(provider);
  if (mode != "limits" && ((mode != "oracle" && mode != "naive") || steps == 0)) {
    fprintf(stderr,
            "fabric_cache: wanted PROVIDER oracle STEPS | naive STEPS | limits | refused\n");
    return 2;
  }
  FabricDevice device(provider);
  if (mode != "limits") return lab::judge_oracle(device, mode.c_str(), steps);
  lab::check_pins(device);
  lab::check_neighbours(device);
  lab::check_memlock(device);
  check_open_under_limit(device);
  printf("limits %d failures\n", lab::failures);
  return lab::failures != 0;
}
