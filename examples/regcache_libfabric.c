/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Buffers written to remote memory with libfabric, each malloc'ed, written once and freed, and
 * registered only the first time. The remote side is this process: an endpoint that writes to
 * itself, over the provider for TCP, which any machine has.
 *
 *     cc regcache_libfabric.c $(pkg-config --cflags --libs rdmalloc-libfabric libfabric)
 *     ./a.out
 *
 * Over verbs with libfabric's own cache off: FI_MR_CACHE_MAX_COUNT=0 ./a.out 'verbs;ofi_rxm'
 * ADDRESS
 */
#include <errno.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdmalloc/registrar_libfabric.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRounds = 200, kBytes = 256 * 1024 };

struct peer {
  struct fi_info* info;
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_av* addresses;
  struct fid_cq* queue;
  struct fid_ep* endpoint;
  fi_addr_t self;
};

static int fail(const char* what, int error) {
  fprintf(stderr, "regcache_libfabric: %s: %s\n", what, fi_strerror(-error));
  return 1;
}

/* What every program with libfabric does. 0 or a negative errno. */
static int open_peer(const char* provider, const char* address, struct peer* peer) {
  struct fi_info* hints = fi_allocinfo();
  if (hints == NULL) return -ENOMEM;
  hints->caps = FI_RMA | FI_MSG;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->fabric_attr->prov_name = strdup(provider);
  int error = fi_getinfo(FI_VERSION(1, 13), address, NULL, FI_SOURCE, hints, &peer->info);
  fi_freeinfo(hints);
  if (error != 0) return error;

  struct fi_av_attr av_attr = {0};
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_CONTEXT};
  if ((error = fi_fabric(peer->info->fabric_attr, &peer->fabric, NULL)) != 0 ||
      (error = fi_domain(peer->fabric, peer->info, &peer->domain, NULL)) != 0 ||
      (error = fi_av_open(peer->domain, &av_attr, &peer->addresses, NULL)) != 0 ||
      (error = fi_cq_open(peer->domain, &cq_attr, &peer->queue, NULL)) != 0 ||
      (error = fi_endpoint(peer->domain, peer->info, &peer->endpoint, NULL)) != 0 ||
      (error = fi_ep_bind(peer->endpoint, &peer->addresses->fid, 0)) != 0 ||
      (error = fi_ep_bind(peer->endpoint, &peer->queue->fid, FI_TRANSMIT | FI_RECV)) != 0 ||
      (error = fi_enable(peer->endpoint)) != 0)
    return error;
  char name[256];
  size_t length = sizeof name;
  if ((error = fi_getname(&peer->endpoint->fid, name, &length)) != 0) return error;
  return fi_av_insert(peer->addresses, name, 1, &peer->self, 0, NULL) == 1 ? 0 : -FI_EINVAL;
}

static void close_peer(struct peer* peer) {
  fi_close(&peer->endpoint->fid);
  fi_close(&peer->queue->fid);
  fi_close(&peer->addresses->fid);
  fi_close(&peer->domain->fid);
  fi_close(&peer->fabric->fid);
  fi_freeinfo(peer->info);
}

/* One buffer from malloc to free, written to `to`, whose key is `remote`. 0 or a negative errno. */
static int write_one(struct peer* peer, struct rdmalloc_domain* domain, char* to,
                     const struct rdmalloc_key* remote, int round) {
  char* from = malloc(kBytes);
  if (from == NULL) return -ENOMEM;
  memset(from, 'a' + round % 26, kBytes);

  /* The key is good until the free below; nothing has to be put. */
  struct rdmalloc_key key;
  ssize_t error = rdmalloc_reg_key(domain, from, kBytes, RDMALLOC_ACCESS_LOCAL, &key);
  if (error == 0) {
    bool has_addresses = (peer->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
    uint64_t address = has_addresses ? (uint64_t)(uintptr_t)to : 0;
    struct fi_cq_entry done;
    while ((error = fi_write(peer->endpoint, from, kBytes, (void*)(uintptr_t)key.lkey, peer->self,
                             address, remote->rkey, NULL)) == -FI_EAGAIN)
      fi_cq_read(peer->queue, &done, 0);
    if (error == 0)
      while ((error = fi_cq_read(peer->queue, &done, 1)) == -FI_EAGAIN) continue;
    if (error > 0) error = 0;
  }
  free(from);
  return (int)error;
}

int main(int argc, char** argv) {
  if (argc != 1 && argc != 3) {
    fprintf(stderr, "usage: %s [PROVIDER ADDRESS] (default: 'tcp;ofi_rxm' 127.0.0.1)\n", argv[0]);
    return 2;
  }
  struct peer peer = {0};
  int error =
      open_peer(argc == 3 ? argv[1] : "tcp;ofi_rxm", argc == 3 ? argv[2] : "127.0.0.1", &peer);
  if (error != 0) return fail("opening an endpoint", error);
  struct rdmalloc_domain* domain;
  error = rdmalloc_domain_open_libfabric(peer.domain, peer.info, NULL, &domain);
  if (error != 0) return fail("rdmalloc_domain_open_libfabric", error);

  /* What others write to is registered for exactly these bytes, and until its put. */
  char* to = calloc(1, kBytes);
  struct rdmalloc_reg* target = NULL;
  if (to == NULL) return fail("calloc", -ENOMEM);
  error = rdmalloc_reg_get(domain, to, kBytes, RDMALLOC_ACCESS_REMOTE_WRITE, &target);
  if (error != 0) return fail("rdmalloc_reg_get", error);
  struct rdmalloc_key remote;
  rdmalloc_reg_key_of(target, &remote);
  for (int round = 0; round < kRounds && error == 0; ++round)
    error = write_one(&peer, domain, to, &remote, round);
  if (error != 0) return fail("writing", error);
  /* A completion means that the source is free again. We are the target too, and make its progress.
   */
  const volatile char* last = to + kBytes - 1;
  while (*last != 'a' + (kRounds - 1) % 26) fi_cq_read(peer.queue, NULL, 0);
  rdmalloc_reg_put(target);
  free(to);

  struct rdmalloc_domain_counters counters = {.size = sizeof counters};
  rdmalloc_domain_stats(domain, &counters);
  printf("%d buffers written, %llu registrations\n", kRounds,
         (unsigned long long)counters.registrations);
  error = rdmalloc_domain_close(domain);
  close_peer(&peer);
  return error == 0 ? 0 : fail("rdmalloc_domain_close", error);
}
