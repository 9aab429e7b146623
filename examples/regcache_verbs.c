/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Buffers written to remote memory with verbs, each malloc'ed, written once and freed, and
 * registered only the first time. The remote side is this process: a queue pair that is connected
 * to itself.
 *
 *     cc regcache_verbs.c $(pkg-config --cflags --libs rdmalloc-verbs libibverbs)
 *     ./a.out [DEVICE]         the default: the first whose port 1 is active
 *
 * Exits with 77 where there is no such device. Soft-RoCE is one that needs no hardware: as root,
 * rdma link add rxe0 type rxe netdev INTERFACE.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdmalloc/registrar_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRounds = 100, kBytes = 256 * 1024, kPort = 1, kNoDevice = 77 };

struct loop {
  struct ibv_pd* pd; /* the domain's */
  struct ibv_cq* queue;
  struct ibv_qp* pair;
};

static int fail(const char* what, int error) {
  fprintf(stderr, "regcache_verbs: %s: %s\n", what, strerror(-error));
  return 1;
}

/* The last address of the port that is set: soft-RoCE's first one is link-local. */
static int find_address(struct loop* loop, struct ibv_port_attr* port, struct ibv_ah_attr* self) {
  if (ibv_query_port(loop->pd->context, kPort, port) != 0) return -EIO;
  self->dlid = port->lid; /* 0 over Ethernet */
  self->port_num = kPort;
  self->is_global = 1;
  self->grh.hop_limit = 1;
  for (int i = port->gid_tbl_len - 1; i >= 0; --i) {
    union ibv_gid* gid = &self->grh.dgid;
    self->grh.sgid_index = (uint8_t)i;
    if (ibv_query_gid(loop->pd->context, kPort, i, gid) == 0 &&
        (gid->global.subnet_prefix != 0 || gid->global.interface_id != 0))
      return 0;
  }
  return -EADDRNOTAVAIL;
}

/* What every program with verbs does, but that it would send its peer the address and the number.
 * 0 or a negative errno. */
static int connect_to_itself(struct loop* loop) {
  struct ibv_port_attr port;
  struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = kPort};
  init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  struct ibv_qp_attr to_receive = {.qp_state = IBV_QPS_RTR, .dest_qp_num = loop->pair->qp_num};
  to_receive.min_rnr_timer = 12;
  int error = find_address(loop, &port, &to_receive.ah_attr);
  if (error != 0) return error;
  to_receive.path_mtu = port.active_mtu;
  struct ibv_qp_attr to_send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7};
  error = ibv_modify_qp(loop->pair, &init,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error == 0)
    error = ibv_modify_qp(loop->pair, &to_receive,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0)
    error = ibv_modify_qp(loop->pair, &to_send,
                          IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  return -error;
}

static int open_loop(struct loop* loop) {
  loop->queue = ibv_create_cq(loop->pd->context, 4, NULL, NULL, 0);
  if (loop->queue == NULL) return -errno;
  struct ibv_qp_init_attr attr = {.send_cq = loop->queue, .recv_cq = loop->queue};
  attr.qp_type = IBV_QPT_RC;
  attr.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1};
  attr.cap.max_recv_sge = 1;
  loop->pair = ibv_create_qp(loop->pd, &attr);
  return loop->pair != NULL ? connect_to_itself(loop) : -errno;
}

/* One buffer from malloc to free, written to `to`, whose key is `remote`. 0 or a negative errno. */
static int write_one(struct loop* loop, struct rdmalloc_domain* domain, const char* to,
                     const struct rdmalloc_key* remote, int round) {
  char* from = malloc(kBytes);
  if (from == NULL) return -ENOMEM;
  memset(from, 'a' + round % 26, kBytes);

  /* The key is good until the free below; nothing has to be put. */
  struct rdmalloc_key key;
  int error = rdmalloc_reg_key(domain, from, kBytes, RDMALLOC_ACCESS_LOCAL, &key);
  if (error == 0) {
    struct ibv_sge piece = {(uintptr_t)from, kBytes, (uint32_t)key.lkey};
    struct ibv_send_wr write = {.sg_list = &piece, .num_sge = 1}, *bad;
    write.opcode = IBV_WR_RDMA_WRITE;
    write.send_flags = IBV_SEND_SIGNALED;
    write.wr.rdma.remote_addr = (uintptr_t)to;
    write.wr.rdma.rkey = (uint32_t)remote->rkey;
    struct ibv_wc done;
    error = -ibv_post_send(loop->pair, &write, &bad);
    if (error == 0) {
      int count;
      while ((count = ibv_poll_cq(loop->queue, 1, &done)) == 0) continue;
      if (count < 0 || done.status != IBV_WC_SUCCESS) error = -EIO;
    }
  }
  free(from);
  return error;
}

int main(int argc, char** argv) {
  struct loop loop = {0};
  struct rdmalloc_domain* domain;
  int error =
      rdmalloc_domain_open_verbs_device(argc > 1 ? argv[1] : NULL, kPort, NULL, &loop.pd, &domain);
  if (error == -ENODEV || error == -ENETDOWN) {
    printf("SKIP: %s: %s\n", argc > 1 ? argv[1] : "verbs",
           error == -ENODEV ? "there is no such device" : "port 1 is not active");
    return kNoDevice;
  }
  if (error != 0) return fail("rdmalloc_domain_open_verbs_device", error);
  error = open_loop(&loop);
  if (error != 0) return fail("opening a queue pair", error);

  /* What others write to is registered for exactly these bytes, and until its put. */
  char* to = calloc(1, kBytes);
  if (to == NULL) return fail("calloc", -ENOMEM);
  struct rdmalloc_reg* target;
  error = rdmalloc_reg_get(domain, to, kBytes, RDMALLOC_ACCESS_REMOTE_WRITE, &target);
  if (error != 0) return fail("rdmalloc_reg_get", error);
  struct rdmalloc_key remote;
  rdmalloc_reg_key_of(target, &remote);
  for (int round = 0; round < kRounds && error == 0; ++round)
    error = write_one(&loop, domain, to, &remote, round);
  if (error != 0) return fail("writing", error);
  for (size_t i = 0; i < kBytes; ++i)
    if (to[i] != 'a' + (kRounds - 1) % 26) return fail("what was written", -EILSEQ);
  rdmalloc_reg_put(target);
  free(to);

  struct rdmalloc_domain_counters counters = {.size = sizeof counters};
  rdmalloc_domain_stats(domain, &counters);
  printf("%d buffers written, %llu registrations\n", kRounds,
         (unsigned long long)counters.registrations);
  ibv_destroy_qp(loop.pair);
  ibv_destroy_cq(loop.queue);
  error = rdmalloc_domain_close(domain);
  return error == 0 ? 0 : fail("rdmalloc_domain_close", error);
}
