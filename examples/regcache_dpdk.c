/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Packets whose bytes lie in malloc'ed memory, sent through DPDK without a copy: each buffer is
 * malloc'ed, sent once and freed by DPDK, and its memory is made known to DPDK and mapped for the
 * device only the first time. The device is net_null, which needs no hardware, huge pages or
 * rights.
 *
 *     cc regcache_dpdk.c $(pkg-config --cflags --libs rdmalloc-dpdk libdpdk)
 *     ./a.out --no-huge -m 64 --no-pci --no-shconf --iova-mode=va --vdev=net_null0
 */
#include <errno.h>
#include <rdmalloc/registrar_dpdk.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kPackets = 1000, kBytes = 1500, kBlockBytes = 2048, kPort = 0 };

static int fail(const char* what, int error) {
  fprintf(stderr, "regcache_dpdk: %s: %s\n", what, rte_strerror(-error));
  return 1;
}

/* What every program with DPDK does. 0 or a negative errno. */
static int open_port(struct rte_mempool** mbufs) {
  struct rte_eth_conf conf = {0};
  int error = rte_eth_dev_configure(kPort, 1, 1, &conf);
  *mbufs = rte_pktmbuf_pool_create("mbufs", 255, 0, 0, RTE_PKTMBUF_HEADROOM, SOCKET_ID_ANY);
  if (error == 0 && *mbufs == NULL) error = -rte_errno;
  if (error == 0) error = rte_eth_rx_queue_setup(kPort, 0, 64, SOCKET_ID_ANY, NULL, *mbufs);
  if (error == 0) error = rte_eth_tx_queue_setup(kPort, 0, 64, SOCKET_ID_ANY, NULL);
  return error == 0 ? rte_eth_dev_start(kPort) : error;
}

/* DPDK is done with the packet: on whatever thread frees the mbuf. */
static void give_back(void* buffer, void* unused) {
  (void)unused;
  free(buffer);
}

/* One packet from malloc to the device. 0 or a negative errno. */
static int send_one(struct rdmalloc_domain* domain, struct rte_mempool* mbufs, int number) {
  char* buffer = malloc(kBlockBytes);
  struct rte_mbuf* packet = rte_pktmbuf_alloc(mbufs);
  struct rdmalloc_key key;
  int error = buffer == NULL || packet == NULL ? -ENOMEM : 0;
  if (error == 0)
    error = rdmalloc_reg_key(domain, buffer, kBlockBytes, RDMALLOC_ACCESS_LOCAL, &key);
  if (error != 0) {
    rte_pktmbuf_free(packet);
    free(buffer);
    return error;
  }
  memset(buffer, number, kBytes);
  /* DPDK counts the holders in a word that it asks to have in the buffer's end. */
  uint16_t length = kBlockBytes;
  struct rte_mbuf_ext_shared_info* holders =
      rte_pktmbuf_ext_shinfo_init_helper(buffer, &length, give_back, NULL);
  /* With virtual addresses for IO a block's is its own. */
  rte_pktmbuf_attach_extbuf(packet, buffer, (rte_iova_t)(uintptr_t)buffer, length, holders);
  packet->data_len = kBytes;
  packet->pkt_len = kBytes;
  if (rte_eth_tx_burst(kPort, 0, &packet, 1) == 1) return 0;
  rte_pktmbuf_free(packet);
  return -EAGAIN;
}

int main(int argc, char** argv) {
  if (rte_eal_init(argc, argv) < 0) return fail("rte_eal_init", -rte_errno);
  if (rte_eth_dev_count_avail() == 0) return fail("a port", -ENODEV);
  struct rte_mempool* mbufs;
  int error = open_port(&mbufs);
  if (error != 0) return fail("opening the port", error);
  struct rte_eth_dev_info info;
  error = rte_eth_dev_info_get(kPort, &info);
  if (error != 0) return fail("rte_eth_dev_info_get", error);

  struct rdmalloc_domain* domain;
  struct rte_device* devices[] = {(struct rte_device*)(uintptr_t)info.device};
  error = rdmalloc_domain_open_dpdk(devices, 1, NULL, &domain);
  if (error != 0) return fail("rdmalloc_domain_open_dpdk", error);
  for (int i = 0; i < kPackets && error == 0; ++i) error = send_one(domain, mbufs, i);
  if (error != 0) return fail("sending", error);

  struct rdmalloc_domain_counters counters = {.size = sizeof counters};
  rdmalloc_domain_stats(domain, &counters);
  printf("%d packets sent, %llu registrations\n", kPackets,
         (unsigned long long)counters.registrations);
  rte_eth_dev_stop(kPort);
  rte_eth_dev_close(kPort);
  error = rdmalloc_domain_close(domain);
  if (error != 0) return fail("rdmalloc_domain_close", error);
  rte_mempool_free(mbufs);
  rte_eal_cleanup();
  return 0;
}
