/* Does fi_close of a registration end it? docs/reports/pinned-after-close.md. Needs a verbs device,
 * soft-RoCE for one.
 *
 *   cc -O2 pinned_after_close.c -o pinned_after_close -lfabric
 *   ./pinned_after_close
 *
 * It asks the kernel what is pinned (VmPin) after each step. Exit status 1 when pages of a closed
 * registration are, 77 without a device. */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { kBytes = 1 << 20 };

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

static struct fid_mr* register_block(struct fid_domain* domain, void* block) {
  struct fid_mr* registration = NULL;
  if (fi_mr_reg(domain, block, kBytes, FI_SEND | FI_RECV, 0, 0, 0, &registration, NULL) != 0) {
    printf("fi_mr_reg failed\n");
    exit(2);
  }
  return registration;
}

static char* fresh_block(void) {
  char* block = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) exit(2);
  memset(block, 1, kBytes);
  return block;
}

static long pinned_kib(const char* after) {
  char line[128];
  long kib = -1;
  FILE* file = fopen("/proc/self/status", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL)
    if (sscanf(line, "VmPin: %ld", &kib) == 1) break;
  if (file != NULL) fclose(file);
  printf("%-38s %5ld KiB pinned\n", after, kib);
  return kib;
}

int main(void) {
  struct fid_domain* domain = open_domain();
  if (domain == NULL) {
    printf("no verbs device\n");
    return 77;
  }
  printf("libfabric %u.%u\n", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
  char* block = fresh_block();
  char* other = fresh_block();
  const long before = pinned_kib("at the beginning");
  struct fid_mr* registration = register_block(domain, block);
  pinned_kib("after fi_mr_reg");
  fi_close(&registration->fid);
  const long closed = pinned_kib("after fi_close");
  munmap(block, kBytes);
  const long unmapped = pinned_kib("after munmap of the block");
  registration = register_block(domain, other);
  pinned_kib("after fi_mr_reg of another block");
  fi_close(&registration->fid);
  pinned_kib("after fi_close of that");
  fi_close(&domain->fid);
  pinned_kib("after fi_close of the domain");
  return closed > before || unmapped > before;
}
