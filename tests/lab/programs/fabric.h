// libfabric as the lab's programs use it: a fabric with one domain, and endpoints of this process.
#pragma once

#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace lab {

[[noreturn]] inline void fail_fabric(const char* what, long error) {
  fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what,
          fi_strerror(static_cast<int>(-error)));
  exit(3);
}
inline void check(const char* what, long error) {
  if (error < 0) fail_fabric(what, error);
}

struct Fabric {
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
};

// What to ask for; the caller may add to it before open_fabric(), which frees it.
inline fi_info* hints_for(const char* provider, fi_ep_type type, uint64_t capabilities) {
  fi_info* hints = fi_allocinfo();
  hints->caps = capabilities;
  hints->mode = FI_CONTEXT;
  hints->ep_attr->type = type;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup(provider);
  return hints;
}

inline Fabric open_fabric(fi_info* hints) {
  Fabric fabric;
  check("fi_getinfo", fi_getinfo(FI_VERSION(1, 9), nullptr, nullptr, 0, hints, &fabric.info));
  check("fi_fabric", fi_fabric(fabric.info->fabric_attr, &fabric.fabric, nullptr));
  check("fi_domain", fi_domain(fabric.fabric, fabric.info, &fabric.domain, nullptr));
  fi_freeinfo(hints);
  return fabric;
}

inline void close_fabric(const Fabric& fabric) {
  check("fi_close domain", fi_close(&fabric.domain->fid));
  check("fi_close fabric", fi_close(&fabric.fabric->fid));
  fi_freeinfo(fabric.info);
}

struct End {
  fid_ep* endpoint = nullptr;
  fid_cq* queue = nullptr;
  fid_av* addresses = nullptr;  // of RDM endpoints only
};

// Not enabled yet: what else it is bound to is the caller's.
inline void open_end(const Fabric& fabric, End& end, fi_info* info) {
  fi_cq_attr queue = {};
  queue.format = FI_CQ_FORMAT_CONTEXT;
  queue.size = 16;
  check("fi_cq_open", fi_cq_open(fabric.domain, &queue, &end.queue, nullptr));
  check("fi_endpoint", fi_endpoint(fabric.domain, info, &end.endpoint, nullptr));
  check("fi_ep_bind", fi_ep_bind(end.endpoint, &end.queue->fid, FI_TRANSMIT | FI_RECV));
}

inline void open_rdm_end(const Fabric& fabric, End& end) {
  open_end(fabric, end, fabric.info);
  fi_av_attr addresses = {};
  addresses.type = FI_AV_TABLE;
  check("fi_av_open", fi_av_open(fabric.domain, &addresses, &end.addresses, nullptr));
  check("fi_ep_bind", fi_ep_bind(end.endpoint, &end.addresses->fid, 0));
  check("fi_enable", fi_enable(end.endpoint));
}

inline fi_addr_t insert_address(const End& into, const End& of) {
  char name[256];
  size_t bytes = sizeof name;
  fi_addr_t address = 0;
  check("fi_getname", fi_getname(&of.endpoint->fid, name, &bytes));
  if (fi_av_insert(into.addresses, name, 1, &address, 0, nullptr) != 1)
    fail_fabric("fi_av_insert", -FI_EINVAL);
  return address;
}

inline void close_rdm_end(const End& end) {
  check("fi_close endpoint", fi_close(&end.endpoint->fid));
  check("fi_close queue", fi_close(&end.queue->fid));
  check("fi_close addresses", fi_close(&end.addresses->fid));
}

}  // namespace lab
