/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Buffers for SPDK's drivers from malloc: each is malloc'ed, given to a driver once and freed, and
 * its memory is registered with SPDK only the first time. The driver here only does what one does
 * first with a buffer, asking SPDK for its physical address; no device is needed for that, but a
 * map: with a PCI driver in the program, or an IOMMU.
 *
 * Debian has no SPDK, and this program needs nothing of it to compile. It finds SPDK's functions
 * when it runs, as the registrar does, or says that there is none and exits with 77:
 *
 *     cc regcache_spdk.c $(pkg-config --cflags --libs rdmalloc-spdk)
 *
 * With SPDK it is compiled so, against shared libraries. Of archives the program must export what
 * it has (-rdynamic), or name the functions in struct rdmalloc_spdk_attr:
 *
 *     cc -DHAVE_SPDK regcache_spdk.c $(pkg-config --cflags rdmalloc-spdk spdk_env_dpdk) \
 *        -Wl,--no-as-needed $(pkg-config --libs rdmalloc-spdk spdk_env_dpdk)
 *
 * Our tests run it over a stand-in for SPDK's map (tests/unit/registrars/fake_spdk.cc).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <rdmalloc/registrar_spdk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_SPDK
#include <spdk/env.h>
#endif

enum { kRounds = 200, kBytes = 256 * 1024, kUnit = 2 * 1024 * 1024, kNoSpdk = 77 };
static const uint64_t kNoAddress = UINT64_MAX; /* SPDK_VTOPHYS_ERROR */

typedef uint64_t vtophys_fn(const void* addr, uint64_t* length);

static int fail(const char* what, int error) {
  fprintf(stderr, "regcache_spdk: %s: %s\n", what, strerror(-error));
  return 1;
}

/* What every program with SPDK does first: before it there is no memory map. */
static int start_spdk(void) {
#ifdef HAVE_SPDK
  struct spdk_env_opts options;
  options.opts_size = sizeof options;
  spdk_env_opts_init(&options);
  options.name = "regcache_spdk";
  return spdk_env_init(&options);
#else
  return 0;
#endif
}

/* One buffer from malloc to free. 0 or a negative errno. */
static int use_one(struct rdmalloc_domain* domain, vtophys_fn* vtophys) {
  char* buffer = malloc(kBytes);
  if (buffer == NULL) return -ENOMEM;
  memset(buffer, 'a', kBytes);
  /* There is nothing in the key, SPDK finds memory by its address. That it was given means that the
   * buffer is registered until the free below. */
  struct rdmalloc_key key;
  int error = rdmalloc_reg_key(domain, buffer, kBytes, RDMALLOC_ACCESS_LOCAL, &key);
  /* Here a program calls spdk_nvme_ns_cmd_write() and waits. */
  for (size_t done = 0; error == 0 && done < kBytes;) {
    uint64_t length = kBytes - done; /* in: wanted; out: from here on in one piece */
    if (vtophys(buffer + done, &length) == kNoAddress) error = -EFAULT;
    done += length;
  }
  free(buffer);
  return error;
}

int main(void) {
  int error = start_spdk();
  if (error != 0) return fail("spdk_env_init", error);
  /* A buffer for NVMe over RDMA must lie in one region of SPDK's, and those are of 2 MiB. */
  struct rdmalloc_domain_attr attr = {.size = sizeof attr, .largest = kUnit};
  struct rdmalloc_domain* domain;
  error = rdmalloc_domain_open_spdk(NULL, &attr, &domain);
  vtophys_fn* vtophys = NULL;
  if (error == 0) *(void**)&vtophys = dlsym(RTLD_DEFAULT, "spdk_vtophys");
  if (error == -ENOENT || (error == 0 && vtophys == NULL)) {
    printf("SKIP: SPDK is not in this program; the head of regcache_spdk.c says how to link it\n");
    return kNoSpdk;
  }
  if (error != 0) return fail("rdmalloc_domain_open_spdk", error);

  for (int round = 0; round < kRounds && error == 0; ++round) error = use_one(domain, vtophys);
  /* -EFAULT also where SPDK has no map of physical addresses at all. */
  if (error != 0) return fail("using a buffer", error);
  struct rdmalloc_domain_counters counters = {.size = sizeof counters};
  rdmalloc_domain_stats(domain, &counters);
  printf("%d buffers used, %llu registrations\n", kRounds,
         (unsigned long long)counters.registrations);
  error = rdmalloc_domain_close(domain);
#ifdef HAVE_SPDK
  spdk_env_fini();
#endif
  return error == 0 ? 0 : fail("rdmalloc_domain_close", error);
}
