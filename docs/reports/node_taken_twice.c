/* Do two threads take the same node of libfabric's cache? docs/reports/node-taken-twice.md. Needs a
 * verbs device, soft-RoCE for one.
 *
 *   cc -O2 -pthread node_taken_twice.c -o node_taken_twice -lfabric
 *   ./node_taken_twice monitor      one thread registers, another notifies of what went
 *   ./node_taken_twice registers    four threads register
 *
 * Both are allowed: the domain is FI_THREAD_SAFE, and notify of an imported monitor has no owner.
 * It crashes or hangs, or says that it ended. Exit status 77 without a device. */
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_ext.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kPage = 4096, kBlocks = 64, kTurns = 20000, kMostThreads = 4 };
static struct fid_domain* domain;
static atomic_bool is_started, is_over;
static _Atomic unsigned long notified;

/* A monitor that lets the cache keep all but what it is notified of. */
static int start(struct fid_mem_monitor* monitor) {
  (void)monitor;
  is_started = true;
  return 0;
}
static void stop(struct fid_mem_monitor* monitor) {
  (void)monitor;
}
static int subscribe(struct fid_mem_monitor* monitor, const void* first, size_t bytes) {
  (void)monitor, (void)first, (void)bytes;
  return 0;
}
static void unsubscribe(struct fid_mem_monitor* monitor, const void* first, size_t bytes) {
  (void)monitor, (void)first, (void)bytes;
}
static bool is_valid(struct fid_mem_monitor* monitor, const void* first, size_t bytes) {
  (void)monitor, (void)first, (void)bytes;
  return true;
}
static struct fi_ops_mem_monitor monitor_ops = {.size = sizeof monitor_ops,
                                                .start = start,
                                                .stop = stop,
                                                .subscribe = subscribe,
                                                .unsubscribe = unsubscribe,
                                                .valid = is_valid};
static struct fid_mem_monitor monitor = {.fid.fclass = FI_CLASS_MEM_MONITOR,
                                         .export_ops = &monitor_ops};

static int import_monitor(void) {
  struct fid* cache = NULL;
  if (fi_open(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &cache, NULL) != 0) return -1;
  const int error = fi_import_fid(cache, &monitor.fid, 0);
  fi_close(cache);
  return error;
}

static int open_domain(void) {
  struct fi_info* hints = fi_allocinfo();
  struct fi_info* info = NULL;
  struct fid_fabric* fabric = NULL;
  if (hints == NULL) return -1;
  hints->caps = FI_MSG | FI_RMA;
  hints->ep_attr->type = FI_EP_MSG;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->fabric_attr->prov_name = strdup("verbs");
  if (fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info) != 0) return -1;
  if (import_monitor() != 0) exit(2); /* after fi_getinfo, which begins libfabric */
  if (fi_fabric(info->fabric_attr, &fabric, NULL) != 0) return -1;
  return fi_domain(fabric, info, &domain, NULL);
}

static void notify(void* first, size_t bytes) {
  monitor.import_ops->notify(&monitor, first, bytes);
  notified++;
}

/* Registers blocks of its own in turn; half of what it closes is notified, so nodes come and go. */
static void* registers(void* argument) {
  char* blocks = argument;
  for (int turn = 0; turn < kTurns; turn++) {
    char* block = blocks + (size_t)(turn % kBlocks) * kPage;
    struct fid_mr* registration = NULL;
    if (fi_mr_reg(domain, block, kPage, FI_SEND | FI_RECV, 0, 0, 0, &registration, NULL) != 0)
      exit(2);
    fi_close(&registration->fid);
    if (turn % 2 != 0) notify(block, kPage);
  }
  return NULL;
}

static void* notifies(void* argument) {
  char* blocks = argument;
  for (int turn = 0; !is_over; turn++) notify(blocks + (size_t)(turn % kBlocks) * kPage, kPage);
  return NULL;
}

int main(int argc, char** argv) {
  const bool is_monitor = argc > 1 && strcmp(argv[1], "monitor") == 0;
  if (!is_monitor && (argc < 2 || strcmp(argv[1], "registers") != 0)) return 2;
  if (open_domain() != 0) {
    printf("no verbs device\n");
    return 77;
  }
  printf("libfabric %u.%u\n", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
  if (!is_started) printf("it does not use the monitor\n");
  fflush(stdout);
  const int threads = is_monitor ? 1 : kMostThreads;
  pthread_t registering[kMostThreads], notifying;
  char* blocks = aligned_alloc(kPage, (size_t)kMostThreads * kBlocks * kPage);
  if (blocks == NULL) return 2;
  memset(blocks, 1, (size_t)kMostThreads * kBlocks * kPage);
  for (int i = 0; i < threads; i++)
    if (pthread_create(&registering[i], NULL, registers, blocks + (size_t)i * kBlocks * kPage) != 0)
      return 2;
  if (is_monitor && pthread_create(&notifying, NULL, notifies, blocks) != 0) return 2;
  for (int i = 0; i < threads; i++) pthread_join(registering[i], NULL);
  is_over = true;
  if (is_monitor) pthread_join(notifying, NULL);
  fi_close(&domain->fid);
  printf("ended: %d registrations, notified %lu times\n", threads * kTurns, notified);
  return 0;
}
