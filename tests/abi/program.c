/* A program that was compiled with the headers of an earlier interface (the folder that it is built
 * with): every public struct and every inline function once, against the library of today. */
#include <errno.h>
#include <rdmalloc/notifier.h>
#include <rdmalloc/rdmalloc.h>
#include <rdmalloc/regcache.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "abi: line %d: %s does not hold\n", line, what);
  exit(1);
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)

static int live, prepared, purges, told;

static int register_range(void* context, void* addr, size_t length, uint32_t access,
                          struct rdmalloc_key* key) {
  (void)addr, (void)length, (void)access;
  EXPECT(context == &live);
  key->lkey = (uint64_t)++live;
  return 0;
}
static int deregister_range(void* context, void* addr, size_t length,
                            const struct rdmalloc_key* key) {
  (void)context, (void)addr, (void)length;
  EXPECT(key->lkey != 0);
  --live;
  return 0;
}
static int on_event(struct rdmalloc_domain* domain, enum rdmalloc_domain_event event, void* arg) {
  (void)domain;
  EXPECT(arg == &prepared);
  if (event == RDMALLOC_DOMAIN_PREPARE) ++prepared;
  return 0;
}
static int on_purge(void* arg, void* base, size_t length, enum rdmalloc_purge_reason reason) {
  (void)base, (void)length, (void)reason;
  EXPECT(arg == &purges);
  ++purges;
  return 0;
}
static int on_progress(const struct rdmalloc_prefault_progress* progress, void* arg) {
  EXPECT(arg == &told && progress->size >= sizeof *progress && progress->threads == 1);
  ++told;
  return 0;
}

static struct rdmalloc_domain* open_domain(void) {
  struct rdmalloc_registrar_ops ops;
  struct rdmalloc_domain_attr attr;
  struct rdmalloc_domain* domain = NULL;
  memset(&ops, 0, sizeof ops);
  memset(&attr, 0, sizeof attr);
  ops.size = sizeof ops;
  ops.name = "of an earlier interface";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
              RDMALLOC_REGISTRAR_EXACT_ACCESS;
  ops.register_ = register_range;
  ops.deregister = deregister_range;
  attr.size = sizeof attr;
  attr.event = on_event;
  attr.event_arg = &prepared;
  EXPECT(rdmalloc_domain_open(&ops, &live, &attr, &domain) == 0);
  return domain;
}

static void use_registrations(struct rdmalloc_domain* domain) {
  struct rdmalloc_key key, same;
  struct rdmalloc_reg* reg = NULL;
  struct rdmalloc_range range;
  struct rdmalloc_domain_counters counters;
  char* block = rdmalloc_malloc(MIB);
  struct iovec whole;
  EXPECT(rdmalloc_reg_key(domain, block, 8, RDMALLOC_ACCESS_LOCAL, &key) == 0);
  EXPECT(rdmalloc_reg_key(domain, block + 100, 8, RDMALLOC_ACCESS_LOCAL, &same) == 0);
  EXPECT(same.lkey == key.lkey && same.generation == key.generation);
  EXPECT(rdmalloc_reg_get(domain, block, MIB, RDMALLOC_ACCESS_LOCAL, &reg) == 0);
  rdmalloc_reg_key_of(reg, &same);
  EXPECT(same.lkey == key.lkey);
  EXPECT((char*)rdmalloc_reg_addr(reg) <= block && rdmalloc_reg_length(reg) >= MIB);
  rdmalloc_reg_put(reg);
  range.size = sizeof range;
  EXPECT(rdmalloc_range_of(block, &range) == 0);
  EXPECT(range.base <= (void*)block && range.block_bytes >= MIB);
  EXPECT((range.flags & RDMALLOC_RANGE_LARGE) != 0 && range.heap == NULL);
  whole.iov_base = block;
  whole.iov_len = MIB;
  EXPECT(rdmalloc_reg_prefault(&domain, 1, &whole, 1, 1, on_progress, &told) == 0);
  EXPECT(told > 0);
  counters.size = sizeof counters;
  EXPECT(rdmalloc_domain_stats(domain, &counters) == 0);
  EXPECT(counters.live_count == 1 && counters.sticky_count == 1 && counters.is_lost == 0);
  EXPECT(counters.memlock_limit_bytes == UINT64_MAX && counters.resumes == 0);
  rdmalloc_free(block);
}

static void use_heaps(struct rdmalloc_domain* domain) {
  struct rdmalloc_heap_attr attr;
  struct rdmalloc_heap_counters counters;
  struct rdmalloc_heap_region_info region;
  struct rdmalloc_heap* heap = NULL;
  struct rdmalloc_key key;
  void* block;
  memset(&attr, 0, sizeof attr);
  attr.size = sizeof attr;
  attr.budget_bytes = 2 * MIB;
  attr.domains = &domain;
  attr.domain_count = 1;
  EXPECT(rdmalloc_heap_create(&attr, &heap) == 0);
  block = rdmalloc_heap_malloc(heap, 1000);
  EXPECT(rdmalloc_heap_key(heap, 0, block, 1000, &key) == 0);
  region.size = sizeof region;
  EXPECT(rdmalloc_heap_region(heap, 0, &region) == 0);
  EXPECT(region.length == 2 * MIB && region.domain_count == 1 && region.keys[0].lkey == key.lkey);
  counters.size = sizeof counters;
  EXPECT(rdmalloc_heap_stats(heap, &counters) == 0);
  EXPECT(counters.live_blocks == 1 && counters.region_bytes == 2 * MIB && counters.huge_bytes == 0);
  EXPECT(rdmalloc_heap_destroy(heap) == 0);
}

static void use_pools(struct rdmalloc_domain* domain) {
  struct rdmalloc_pool_attr attr;
  struct rdmalloc_pool_counters counters;
  struct rdmalloc_pool* pool = NULL;
  struct rdmalloc_buffer* buffer = NULL;
  memset(&attr, 0, sizeof attr);
  attr.size = sizeof attr;
  attr.small_count = attr.large_count = 2;
  EXPECT(rdmalloc_pool_create(&domain, 1, &attr, &pool) == 0);
  EXPECT(rdmalloc_pool_get(pool, 100, &buffer) == 0);
  EXPECT(buffer->length >= 100 && buffer->keys[0].lkey != 0);
  counters.size = sizeof counters;
  EXPECT(rdmalloc_pool_stats(pool, &counters) == 0);
  EXPECT(counters.small.in_use == 1 && counters.large.count == 2 && counters.registrations == 1);
  EXPECT(rdmalloc_pool_put(pool, buffer) == 0);
  EXPECT(rdmalloc_pool_destroy(pool) == 0);
}

static void use_the_rest(void) {
  struct rdmalloc_observer_ops ops;
  struct rdmalloc_observer* observer = NULL;
  struct rdmalloc_watch_counters watch;
  struct rdmalloc_quiesce_counters quiesce;
  struct rdmalloc_notifier_info notifier;
  memset(&ops, 0, sizeof ops);
  ops.size = sizeof ops;
  ops.purge = on_purge;
  EXPECT(rdmalloc_observer_add(&ops, &purges, &observer) == 0);
  rdmalloc_free(memset(rdmalloc_malloc(4 * MIB), 1, 4 * MIB));
  EXPECT(rdmalloc_purge(0) > 0);
  EXPECT(purges > 0);
  EXPECT(rdmalloc_observer_remove(observer) == 0);
  EXPECT(rdmalloc_quiesce(10000) == 0 && rdmalloc_resume() == 0);
  EXPECT(prepared == 1);
  quiesce.size = sizeof quiesce;
  EXPECT(rdmalloc_quiesce_stats(&quiesce) == 0);
  EXPECT(quiesce.quiesces == 1 && quiesce.lost_domains == 0);
  watch.size = sizeof watch;
  EXPECT(rdmalloc_watch_stats(&watch) == 0);
  EXPECT(watch.is_on == 0 && watch.retired == 0);
  notifier.size = sizeof notifier;
  EXPECT(rdmalloc_notifier_state(RDMALLOC_NOTIFIER_UCX, &notifier) == 0);
  EXPECT(notifier.is_attached == 0 && notifier.explanation != NULL);
}

int main(void) {
  struct rdmalloc_domain* domain = open_domain();
  use_registrations(domain);
  use_heaps(domain);
  use_pools(domain);
  use_the_rest();
  EXPECT(rdmalloc_domain_close(domain) == 0);
  EXPECT(live == 0);
  return 0;
}
