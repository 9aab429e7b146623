// SPDX-License-Identifier: BSD-3-Clause
//
// What a program sees of librdmalloc-verbs-shim.so, preloaded with count_registrations and
// librdmalloc: right handles, from the cache for what it may serve and from libibverbs for the
// rest, and nothing left behind a protection domain. Ends with "shim N failures".
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/lab/programs/cache_oracle.h"

namespace {

using lab::expect;
using lab::fail;

// Flags that the compiler can't see, so that the calls go where a program's do that computes them.
volatile int local_write = IBV_ACCESS_LOCAL_WRITE;
constexpr size_t kBytes = 300000;

unsigned long registrations() {
  using Count = unsigned long (*)();
  auto count = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "rdmalloc_lab_registrations"));
  if (count == nullptr) fail("no library counts registrations", EINVAL);
  return count();
}

ibv_mr* take(ibv_pd* pd, void* address, size_t bytes, int access) {
  ibv_mr* mr = ibv_reg_mr(pd, address, bytes, access);
  if (mr == nullptr) fail("ibv_reg_mr", errno);
  return mr;
}

bool is_right(const ibv_mr* mr, const ibv_pd* pd, const void* address, size_t bytes) {
  return mr->addr == address && mr->length == bytes && mr->pd == pd && mr->context == pd->context;
}

// Registers and lets go at once; the registrations with the device that it took.
unsigned long cost(ibv_pd* pd, void* address, size_t bytes, int access) {
  unsigned long before = registrations();
  ibv_mr* mr = take(pd, address, bytes, access);
  expect(is_right(mr, pd, address, bytes), "a handle has the program's address, length and pd");
  expect(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr succeeds");
  return registrations() - before;
}

void check_served(ibv_pd* pd, char* block) {
  expect(cost(pd, block, kBytes, local_write) == 1, "the first registration of a block is real");
  expect(cost(pd, block, kBytes, IBV_ACCESS_LOCAL_WRITE) == 0, "the second is the cache's");
  expect(cost(pd, block + 1000, 5000, local_write) == 0, "so is that of a part");
  ibv_mr* whole = take(pd, block, kBytes, local_write);
  ibv_mr* part = take(pd, block + 4096, 4096, local_write);
  expect(whole != part && whole->lkey == part->lkey, "two handles, one registration");
  expect(ibv_rereg_mr(part, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, 0) != 0 &&
             errno == EOPNOTSUPP && is_right(part, pd, block + 4096, 4096),
         "ibv_rereg_mr is refused and changes nothing");
  expect(ibv_dereg_mr(whole) == 0 && ibv_dereg_mr(part) == 0, "both end");
  expect(cost(pd, block, kBytes, 0) == 1, "read-only is not served by what may be written");
  expect(cost(pd, block, kBytes, 0) == 0, "but by its own kind");
}

void check_passed_on(ibv_pd* pd, char* block) {
  const int remote = int{IBV_ACCESS_REMOTE_READ} | local_write;
  ibv_mr* mr = take(pd, block + 100, 1000, remote);
  ibv_mr* served = take(pd, block + 100, 1000, local_write);
  expect(mr->rkey != served->rkey, "I13: a remote key is of the bytes asked, not of the cache's");
  expect(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(served) == 0, "both end");
  expect(cost(pd, block, kBytes, remote) == 1 && cost(pd, block, kBytes, remote) == 1,
         "remote rights are real each time");
  void* foreign = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(cost(pd, foreign, kBytes, local_write) == 1 && cost(pd, foreign, kBytes, local_write) == 1,
         "I6: foreign memory is real each time");
  munmap(foreign, kBytes);
  unsigned long before = registrations();
  mr = ibv_reg_mr_iova(pd, block, 4096, 0x10000, local_write);
  expect(mr != nullptr && registrations() == before + 1 && ibv_dereg_mr(mr) == 0,
         "another address on the wire is a real one");
}

void check_purge(ibv_pd* pd, char* block) {
  ibv_mr* held = take(pd, block, kBytes, local_write);
  const uint64_t pinned = lab::pinned_bytes();
  free(block);
  rdmalloc_purge(0);
  expect(lab::pinned_bytes() >= kBytes && lab::pinned_bytes() <= pinned,
         "I3: what a handle holds is not purged");
  expect(ibv_dereg_mr(held) == 0, "the handle ends");
  rdmalloc_purge(0);
  expect(lab::pinned_bytes() == 0, "and then a purge unpins it");
}

void check_end(ibv_context* device) {
  ibv_pd* pd = ibv_alloc_pd(device);
  void* block = malloc(kBytes);
  expect(cost(pd, block, kBytes, local_write) == 1, "another pd has registrations of its own");
  ibv_mr* held = take(pd, block, kBytes, local_write);
  expect(ibv_dealloc_pd(pd) != 0, "a pd with a handle is busy, as ever");
  expect(ibv_dereg_mr(held) == 0, "the handle ends");
  expect(cost(pd, block, kBytes, local_write) <= 1, "the pd still serves");
  expect(ibv_dealloc_pd(pd) == 0 && lab::pinned_bytes() == 0,
         "a pd that is given up takes its cached registrations along");
  pd = ibv_alloc_pd(device);
  expect(cost(pd, block, kBytes, local_write) == 1, "the next one starts anew");
  expect(ibv_close_device(device) == 0, "the device closes over a pd and its cache");
  free(block);
  rdmalloc_purge(0);
  expect(lab::pinned_bytes() == 0, "nothing is pinned, no call reaches the device that is gone");
}

}  // namespace

int main() {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ibv_context* device = count > 0 ? ibv_open_device(list[0]) : nullptr;
  ibv_pd* pd = device != nullptr ? ibv_alloc_pd(device) : nullptr;
  if (pd == nullptr) fail("no verbs device", ENODEV);
  auto* block = static_cast<char*>(malloc(kBytes));
  memset(block, 1, kBytes);
  check_served(pd, block);
  check_passed_on(pd, block);
  check_purge(pd, block);
  expect(ibv_dealloc_pd(pd) == 0, "the pd goes");
  check_end(device);
  ibv_free_device_list(list);
  printf("shim %d failures\n", lab::failures);
  return lab::failures != 0;
}
