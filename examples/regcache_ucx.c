/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Buffers put to remote memory with UCX, each malloc'ed, put once and freed, and registered only
 * the first time. The remote side is another worker of this process.
 *
 *     cc regcache_ucx.c $(pkg-config --cflags --libs rdmalloc-ucx ucx)
 *     UCX_RCACHE_ENABLE=n ./a.out
 *
 * The variable turns UCX's own cache off, which would keep memory registered that ours let go;
 * over an InfiniBand device UCX before 1.16 needs UCX_IB_REG_METHODS=direct as well.
 */
#include <errno.h>
#include <rdmalloc/registrar_ucx.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

enum { kRounds = 200, kBytes = 256 * 1024 };

struct pair {
  ucp_context_h context;
  ucp_worker_h here, there;
  ucp_ep_h endpoint; /* from here to there */
};

static int fail(const char* what, const char* error) {
  fprintf(stderr, "regcache_ucx: %s: %s\n", what, error);
  return 1;
}

/* What every program with UCX does. */
static ucs_status_t open_pair(struct pair* pair) {
  ucp_params_t params = {
      .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
      .features = UCP_FEATURE_RMA,
      .mt_workers_shared = 1, /* so that any thread may register, the purge thread too */
  };
  ucs_status_t status = ucp_init(&params, NULL, &pair->context);
  if (status != UCS_OK) return status;
  ucp_worker_params_t worker = {.field_mask = 0};
  ucp_address_t* address;
  size_t length;
  if ((status = ucp_worker_create(pair->context, &worker, &pair->here)) != UCS_OK ||
      (status = ucp_worker_create(pair->context, &worker, &pair->there)) != UCS_OK ||
      (status = ucp_worker_get_address(pair->there, &address, &length)) != UCS_OK)
    return status;
  ucp_ep_params_t to_there = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
  status = ucp_ep_create(pair->here, &to_there, &pair->endpoint);
  ucp_worker_release_address(pair->there, address);
  return status;
}

static ucs_status_t finish(struct pair* pair, ucs_status_ptr_t request) {
  if (!UCS_PTR_IS_PTR(request)) return UCS_PTR_STATUS(request);
  ucs_status_t status;
  while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
    ucp_worker_progress(pair->here);
    ucp_worker_progress(pair->there);
  }
  ucp_request_free(request);
  return status;
}

static void close_pair(struct pair* pair) {
  ucp_request_param_t now = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                             .flags = UCP_EP_CLOSE_FLAG_FORCE};
  finish(pair, ucp_ep_close_nbx(pair->endpoint, &now));
  ucp_worker_destroy(pair->here);
  ucp_worker_destroy(pair->there);
  ucp_cleanup(pair->context);
}

/* One buffer from malloc to free, put to `to`. */
static ucs_status_t put_one(struct pair* pair, struct rdmalloc_domain* domain, const char* to,
                            ucp_rkey_h remote, int round) {
  char* from = malloc(kBytes);
  if (from == NULL) return UCS_ERR_NO_MEMORY;
  memset(from, 'a' + round % 26, kBytes);

  /* The key is good until the free below; nothing has to be put back. */
  struct rdmalloc_key key;
  ucs_status_t status = UCS_ERR_NO_RESOURCE;
  if (rdmalloc_reg_key(domain, from, kBytes, RDMALLOC_ACCESS_LOCAL, &key) == 0) {
    ucp_request_param_t by_handle = {.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH, .memh = key.handle};
    ucp_request_param_t nothing = {.op_attr_mask = 0};
    status = finish(pair, ucp_put_nbx(pair->endpoint, from, kBytes, (uint64_t)(uintptr_t)to, remote,
                                      &by_handle));
    /* Until the flush UCX may still read the buffer. */
    if (status == UCS_OK) status = finish(pair, ucp_ep_flush_nbx(pair->endpoint, &nothing));
  }
  free(from);
  return status;
}

int main(void) {
  struct pair pair;
  ucs_status_t status = open_pair(&pair);
  if (status != UCS_OK) return fail("opening two workers", ucs_status_string(status));
  struct rdmalloc_domain* domain;
  int error = rdmalloc_domain_open_ucx(pair.context, NULL, &domain);
  if (error != 0) return fail("rdmalloc_domain_open_ucx", strerror(-error));

  /* What others put to is registered for exactly these bytes, and until its put. UCX knows no other
   * remote access than both. */
  char* to = calloc(1, kBytes);
  if (to == NULL) return fail("calloc", strerror(ENOMEM));
  struct rdmalloc_reg* target;
  error = rdmalloc_reg_get(domain, to, kBytes,
                           RDMALLOC_ACCESS_REMOTE_READ | RDMALLOC_ACCESS_REMOTE_WRITE, &target);
  if (error != 0) return fail("rdmalloc_reg_get", strerror(-error));
  struct rdmalloc_key key;
  rdmalloc_reg_key_of(target, &key);
  /* `packed` and its length are what a program sends to its peer. */
  ucp_rkey_h remote;
  status = ucp_ep_rkey_unpack(pair.endpoint, rdmalloc_ucx_rkey_of(&key)->packed, &remote);
  if (status != UCS_OK) return fail("ucp_ep_rkey_unpack", ucs_status_string(status));
  for (int round = 0; round < kRounds && status == UCS_OK; ++round)
    status = put_one(&pair, domain, to, remote, round);
  if (status != UCS_OK) return fail("putting", ucs_status_string(status));
  for (size_t i = 0; i < kBytes; ++i)
    if (to[i] != 'a' + (kRounds - 1) % 26) return fail("reading", "not what was put last");
  ucp_rkey_destroy(remote);
  rdmalloc_reg_put(target);
  free(to);

  struct rdmalloc_domain_counters counters = {.size = sizeof counters};
  rdmalloc_domain_stats(domain, &counters);
  printf("%d buffers put, %llu registrations\n", kRounds,
         (unsigned long long)counters.registrations);
  error = rdmalloc_domain_close(domain);
  close_pair(&pair);
  return error == 0 ? 0 : fail("rdmalloc_domain_close", strerror(-error));
}
