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
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lab/programs/fabric.h"
#include "tests/lab/programs/purge_loop.h"

namespace {

using lab::check, lab::End, lab::Fabric;

constexpr size_t kMessageBytes = 64;

bool has_completed(End& end) {
  fi_cq_entry entry;
  long got = fi_cq_read(end.queue, &entry, 1);
  if (got != 1 && got != -FI_EAGAIN) lab::fail_fabric("fi_cq_read", got);
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
  const Fabric fabric = lab::open_fabric(lab::hints_for("verbs;ofi_rxm", FI_EP_RDM, FI_MSG));
  End sender, receiver;
  open_rdm_end(fabric, sender);
  open_rdm_end(fabric, receiver);
  const fi_addr_t to = insert_address(sender, receiver);
  static Message first, received, more;
  check("fi_recv", fi_recv(receiver.endpoint, received.bytes, sizeof received.bytes, nullptr,
                           FI_ADDR_UNSPEC, &received.context));
  send(sender, to, first, &receiver);
  // The first message, so that the receiver's queue is empty now.
  while (!has_completed(receiver)) {
  }
  for (uint64_t i = 0; i < messages; i++) send(sender, to, more, nullptr);
  close_rdm_end(receiver);
  close_rdm_end(sender);
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
