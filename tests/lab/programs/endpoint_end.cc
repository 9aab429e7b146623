// SPDX-License-Identifier: BSD-3-Clause
//
// libfabric alone, over verbs;ofi_rxm: closes an endpoint while messages to it have arrived and
// were not yet read from its completion queue, as MPI_Finalize may.
//
//   endpoint_end ROUNDS MESSAGES [purge]
//
// Each round opens two endpoints, connects them by one message, sends MESSAGES more, waits until
// the device has delivered them, and closes the receiver without a look at its queue. Up to 2.6
// libfabric frees the connection's endpoint, whose table of functions it sets to NULL before, and
// then posts a buffer to it for each message that it finds. With `purge` a thread calls
// rdmalloc_purge(0) without pause. The last line is "ended N rounds, P purges".
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lab/programs/purge_loop.h"

namespace {

constexpr size_t kMessageBytes = 64;

[[noreturn]] void fail(const char* what, long error) {
  fprintf(stderr, "endpoint_end: %s: %s\n", what, fi_strerror(static_cast<int>(-error)));
  exit(3);
}
void check(const char* what, long error) {
  if (error < 0) fail(what, error);
}

struct End {
  fid_ep* endpoint = nullptr;
  fid_cq* queue = nullptr;
  fid_av* addresses = nullptr;
  char name[256];
  size_t name_bytes = sizeof name;
};

struct Fabric {
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
};

void open_end(Fabric& fabric, End& end) {
  fi_cq_attr queue = {};
  queue.format = FI_CQ_FORMAT_CONTEXT;
  queue.size = 16;
  check("fi_cq_open", fi_cq_open(fabric.domain, &queue, &end.queue, nullptr));
  fi_av_attr addresses = {};
  addresses.type = FI_AV_TABLE;
  check("fi_av_open", fi_av_open(fabric.domain, &addresses, &end.addresses, nullptr));
  check("fi_endpoint", fi_endpoint(fabric.domain, fabric.info, &end.endpoint, nullptr));
  check("fi_ep_bind", fi_ep_bind(end.endpoint, &end.queue->fid, FI_TRANSMIT | FI_RECV));
  check("fi_ep_bind", fi_ep_bind(end.endpoint, &end.addresses->fid, 0));
  check("fi_enable", fi_enable(end.endpoint));
  check("fi_getname", fi_getname(&end.endpoint->fid, end.name, &end.name_bytes));
}

void close_end(End& end) {
  check("fi_close endpoint", fi_close(&end.endpoint->fid));
  check("fi_close queue", fi_close(&end.queue->fid));
  check("fi_close addresses", fi_close(&end.addresses->fid));
}

void open_fabric(Fabric& fabric) {
  fi_info* hints = fi_allocinfo();
  hints->caps = FI_MSG;
  hints->mode = FI_CONTEXT;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup("verbs;ofi_rxm");
  check("fi_getinfo", fi_getinfo(FI_VERSION(1, 9), nullptr, nullptr, 0, hints, &fabric.info));
  check("fi_fabric", fi_fabric(fabric.info->fabric_attr, &fabric.fabric, nullptr));
  check("fi_domain", fi_domain(fabric.fabric, fabric.info, &fabric.domain, nullptr));
  fi_freeinfo(hints);
}

void close_fabric(Fabric& fabric) {
  check("fi_close domain", fi_close(&fabric.domain->fid));
  check("fi_close fabric", fi_close(&fabric.fabric->fid));
  fi_freeinfo(fabric.info);
}

bool has_completed(End& end) {
  fi_cq_entry entry;
  long got = fi_cq_read(end.queue, &entry, 1);
  if (got != 1 && got != -FI_EAGAIN) fail("fi_cq_read", got);
  return got == 1;
}

struct Message {
  fi_context context;
  unsigned char bytes[kMessageBytes];
};

// The sender's completion: the device has delivered the message to a buffer that the receiver
// posted. While they connect both must make progress; afterwards the receiver must not, or it reads
// its queue.
void send(End& sender, fi_addr_t to, Message& message, End* connecting) {
  long error;
  while ((error = fi_send(sender.endpoint, message.bytes, sizeof message.bytes, nullptr, to,
                          &message.context)) == -FI_EAGAIN) {
    has_completed(sender);
    if (connecting != nullptr) has_completed(*connecting);
  }
  check("fi_send", error);
  while (!has_completed(sender)) {
    if (connecting != nullptr) has_completed(*connecting);
  }
}

void one_round(uint64_t messages) {
  Fabric fabric;
  End sender, receiver;
  open_fabric(fabric);
  open_end(fabric, sender);
  open_end(fabric, receiver);
  fi_addr_t to = 0;
  if (fi_av_insert(sender.addresses, receiver.name, 1, &to, 0, nullptr) != 1)
    fail("fi_av_insert", -FI_EINVAL);
  static Message first, received, more;
  check("fi_recv", fi_recv(receiver.endpoint, received.bytes, sizeof received.bytes, nullptr,
                           FI_ADDR_UNSPEC, &received.context));
  send(sender, to, first, &receiver);
  // The first message, so that the receiver's queue is empty now.
  while (!has_completed(receiver)) {
  }
  for (uint64_t i = 0; i < messages; i++) send(sender, to, more, nullptr);
  close_end(receiver);
  close_end(sender);
  close_fabric(fabric);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "endpoint_end: wanted ROUNDS MESSAGES [purge]\n");
    return 2;
  }
  uint64_t rounds = strtoull(argv[1], nullptr, 10), messages = strtoull(argv[2], nullptr, 10);
  lab::PurgeLoop purges;
  if (argc > 3) purges.start();
  for (uint64_t round = 0; round < rounds; round++) one_round(messages);
  printf("ended %llu rounds, %llu purges\n", static_cast<unsigned long long>(rounds),
         static_cast<unsigned long long>(purges.stop()));
  return 0;
}
