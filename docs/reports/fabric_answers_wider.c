/* What does libfabric's cache register when it is asked for less? docs/reports/wider-than-asked.md.
 * Needs a verbs device, soft-RoCE for one.
 *
 *   cc -O2 -rdynamic fabric_answers_wider.c -o fabric_answers_wider -lfabric -libverbs -ldl
 *   ./fabric_answers_wider
 *
 * It stands in front of ibv_reg_mr and prints what the device is asked for. Exit status 1 when that
 * is more than fi_mr_reg was asked for, 77 without a device. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef ibv_reg_mr

enum { kPage = 4096, kPages = 16 };
static char* block;
static int may_be_remote, is_wider;

/* Local writing comes with receiving; the rest is what a peer may do. */
static void look(const char* first, size_t bytes, unsigned access) {
  const unsigned remote =
      IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if (first < block || first >= block + kPages * kPage) return;
  printf("  the device is asked for pages %d to %d:%s%s%s%s\n", (int)((first - block) / kPage),
         (int)((first - block + bytes) / kPage) - 1,
         access & IBV_ACCESS_REMOTE_READ ? " remote read" : "",
         access & IBV_ACCESS_REMOTE_WRITE ? " remote write" : "",
         access & IBV_ACCESS_REMOTE_ATOMIC ? " remote atomic" : "",
         access & remote ? "" : " local use");
  if ((access & remote) != 0 && !may_be_remote) is_wider = 1;
}

struct ibv_mr* ibv_reg_mr(struct ibv_pd* pd, void* first, size_t bytes, int access) {
  struct ibv_mr* (*real)(struct ibv_pd*, void*, size_t, int) =
      (struct ibv_mr * (*)(struct ibv_pd*, void*, size_t, int)) dlsym(RTLD_NEXT, "ibv_reg_mr");
  look(first, bytes, (unsigned)access);
  return real(pd, first, bytes, access);
}

struct ibv_mr* ibv_reg_mr_iova2(struct ibv_pd* pd, void* first, size_t bytes, uint64_t iova,
                                unsigned access) {
  struct ibv_mr* (*real)(struct ibv_pd*, void*, size_t, uint64_t, unsigned) =
      (struct ibv_mr * (*)(struct ibv_pd*, void*, size_t, uint64_t, unsigned))
          dlsym(RTLD_NEXT, "ibv_reg_mr_iova2");
  look(first, bytes, access);
  return real(pd, first, bytes, iova, access);
}

static struct fid_domain* open_domain(void) {
  struct fi_info* hints = fi_allocinfo();
  struct fi_info* info = NULL;
  struct fid_fabric* fabric = NULL;
  struct fid_domain* domain = NULL;
  if (hints == NULL) return NULL;
  hints->caps = FI_MSG | FI_RMA;
  hints->ep_attr->type = FI_EP_MSG;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->fabric_attr->prov_name = strdup("verbs");
  if (fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info) != 0) return NULL;
  if (fi_fabric(info->fabric_attr, &fabric, NULL) != 0) return NULL;
  return fi_domain(fabric, info, &domain, NULL) == 0 ? domain : NULL;
}

static struct fid_mr* ask(struct fid_domain* domain, int page, int pages, uint64_t access,
                          const char* words) {
  struct fid_mr* registration = NULL;
  printf("asked for pages %d to %d, %s\n", page, page + pages - 1, words);
  if (fi_mr_reg(domain, block + page * kPage, (size_t)pages * kPage, access, 0, 0, 0, &registration,
                NULL) != 0)
    exit(2);
  printf("  key %llx\n", (unsigned long long)fi_mr_key(registration));
  return registration;
}

int main(void) {
  struct fid_domain* domain = open_domain();
  if (domain == NULL) {
    printf("no verbs device\n");
    return 77;
  }
  printf("libfabric %u.%u\n", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
  block = aligned_alloc(kPage, kPages * kPage);
  if (block == NULL) return 2;
  memset(block, 1, kPages * kPage);
  struct fid_mr* all = ask(domain, 0, kPages, FI_SEND | FI_RECV, "to send and to receive");
  const uint64_t key = fi_mr_key(all);
  fi_close(&all->fid);
  printf("closed\n");
  may_be_remote = 1;
  struct fid_mr* one = ask(domain, 5, 1, FI_REMOTE_READ, "for remote reading");
  if (fi_mr_key(one) == key) {
    printf("  the key is the first one's, of all %d pages\n", kPages);
    is_wider = 1;
  }
  fi_close(&one->fid);
  fi_close(&domain->fid);
  free(block);
  return is_wider;
}
