// SPDX-License-Identifier: BSD-3-Clause
//
// libfabric alone, over verbs;ofi_rxm: registers fresh memory in a loop, with the library's own
// cache in between, and reads each buffer back through the device, from a second endpoint of this
// process. What the device sees is compared with what the CPU wrote, so a stale registration is
// caught.
//
//   registrations [COUNT BYTES growing|fresh|recycled]...
//
// The patterns are those of blocks.h, a transfer being a read; with growing the registrations stay.
// The last line is that of broadcast.cc.
#include <rdma/fi_rma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "tests/lab/programs/blocks.h"
#include "tests/lab/programs/fabric.h"

namespace {

using lab::check, lab::End, lab::fail_fabric;

struct Fabric : lab::Fabric {
  End reader, owner;
  fi_addr_t owner_address = 0;
};

Fabric open_fabric() {
  Fabric fabric = {
      lab::open_fabric(lab::hints_for("verbs;ofi_rxm", FI_EP_RDM, FI_MSG | FI_RMA)), {}, {}};
  open_rdm_end(fabric, fabric.reader);
  open_rdm_end(fabric, fabric.owner);
  fabric.owner_address = insert_address(fabric.reader, fabric.owner);
  return fabric;
}

// Progress on both ends until the reader's one operation is done.
void wait_for_read(Fabric& fabric) {
  for (;;) {
    fi_cq_entry entry;
    long got = fi_cq_read(fabric.reader.queue, &entry, 1);
    if (got == 1) return;
    if (got != -FI_EAGAIN) {
      fi_cq_err_entry error = {};
      fi_cq_readerr(fabric.reader.queue, &error, 0);
      fail_fabric("fi_read completed with an error", -error.err);
    }
    fi_cq_read(fabric.owner.queue, &entry, 1);
  }
}

void read_back(Fabric& fabric, void* into, fid_mr* into_registration, const void* from,
               fid_mr* from_registration, size_t bytes) {
  static fi_context context;
  long error;
  // FI_EAGAIN while the endpoints connect, which takes progress on both.
  while ((error = fi_read(fabric.reader.endpoint, into, bytes, fi_mr_desc(into_registration),
                          fabric.owner_address, reinterpret_cast<uint64_t>(from),
                          fi_mr_key(from_registration), &context)) == -FI_EAGAIN) {
    fi_cq_entry entry;
    fi_cq_read(fabric.reader.queue, &entry, 1);
    fi_cq_read(fabric.owner.queue, &entry, 1);
  }
  check("fi_read", error);
  wait_for_read(fabric);
}

fid_mr* register_memory(Fabric& fabric, void* block, size_t bytes) {
  static uint64_t wanted_key = 1;
  fid_mr* registration = nullptr;
  check("fi_mr_reg", fi_mr_reg(fabric.domain, block, bytes, FI_READ | FI_WRITE | FI_REMOTE_READ, 0,
                               wanted_key++, 0, &registration, nullptr));
  return registration;
}

void fill(unsigned char* block, size_t bytes, uint64_t turn) {
  for (size_t i = 0; i < bytes; i++)
    block[i] = static_cast<unsigned char>((turn * 131 + i * 7 + (i >> 8u)) >> (i % 3));
}

// Where the device's view of a buffer is read to, registered once.
struct Seen {
  unsigned char* bytes = nullptr;
  fid_mr* registration = nullptr;
};

// Fills, registers and reads back; how many bytes the device saw otherwise. The registration is the
// caller's.
uint64_t transfer(Fabric& fabric, const Seen& seen, unsigned char* block, size_t bytes,
                  uint64_t turn, fid_mr** registration) {
  if (block == nullptr) fail_fabric("malloc", -FI_ENOMEM);
  fill(block, bytes, turn);
  *registration = register_memory(fabric, block, bytes);
  memset(seen.bytes, 0, bytes);
  read_back(fabric, seen.bytes, seen.registration, block, *registration, bytes);
  uint64_t wrong = 0;
  for (size_t i = 0; i < bytes; i++) wrong += seen.bytes[i] != block[i];
  return wrong;
}

uint64_t growing(Fabric& fabric, const Seen& seen, uint64_t count, size_t bytes) {
  const size_t step = lab::step_of(bytes);
  auto* live = static_cast<unsigned char*>(malloc(count * step));
  if (live == nullptr) fail_fabric("malloc", -FI_ENOMEM);
  std::vector<fid_mr*> registrations(count);
  uint64_t wrong = 0;
  for (uint64_t turn = 0; turn < count; turn++) {
    if (turn % lab::kFreeEvery == 0) lab::free_something();
    wrong += transfer(fabric, seen, live + turn * step, bytes, turn, &registrations[turn]);
  }
  for (fid_mr* registration : registrations) fi_close(&registration->fid);
  free(live);
  return wrong;
}

struct Recycled {
  uint64_t count = 0, came_back = 0, wrong = 0;
};

uint64_t fresh(Fabric& fabric, const Seen& seen, uint64_t count, size_t bytes, Recycled* recycled) {
  lab::Recycling recycling;
  uint64_t wrong = 0;
  for (uint64_t turn = 0; turn < count; turn++) {
    auto* block = static_cast<unsigned char*>(malloc(bytes));
    bool is_back = recycled != nullptr && recycling.has_come_back(block, bytes);
    fid_mr* registration = nullptr;
    uint64_t wrong_here = transfer(fabric, seen, block, bytes, turn, &registration);
    wrong += wrong_here;
    fi_close(&registration->fid);
    if (recycled == nullptr) {
      free(block);
      continue;
    }
    recycling.free_and_wait(block, bytes);
    recycled->count++;
    recycled->came_back += is_back ? 1 : 0;
    recycled->wrong += wrong_here != 0;
  }
  return wrong;
}

uint64_t run(Fabric& fabric, uint64_t count, size_t bytes, char pattern, Recycled& all) {
  Seen seen;
  seen.bytes = static_cast<unsigned char*>(malloc(bytes));
  if (seen.bytes == nullptr) fail_fabric("malloc", -FI_ENOMEM);
  seen.registration = register_memory(fabric, seen.bytes, bytes);
  uint64_t wrong = pattern == 'g'
                       ? growing(fabric, seen, count, bytes)
                       : fresh(fabric, seen, count, bytes, pattern == 'f' ? nullptr : &all);
  fi_close(&seen.registration->fid);
  free(seen.bytes);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc % 3 != 1) {
    fprintf(stderr, "registrations: wanted [COUNT BYTES growing|fresh|recycled]...\n");
    return 2;
  }
  Fabric fabric = open_fabric();
  uint64_t wrong = 0, total = 0;
  Recycled all;
  for (int i = 1; i < argc; i += 3) {
    uint64_t count = strtoull(argv[i], nullptr, 10);
    wrong += run(fabric, count, strtoull(argv[i + 1], nullptr, 10), argv[i + 2][0], all);
    total += count;
  }
  printf("broadcasts %llu wrong_bytes %llu recycled %llu came_back %llu wrong_recycled %llu\n",
         static_cast<unsigned long long>(total), static_cast<unsigned long long>(wrong),
         static_cast<unsigned long long>(all.count), static_cast<unsigned long long>(all.came_back),
         static_cast<unsigned long long>(all.wrong));
  close_rdm_end(fabric.reader);
  close_rdm_end(fabric.owner);
  close_fabric(fabric);
  return wrong != 0;
}
