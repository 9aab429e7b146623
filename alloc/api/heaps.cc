// Heaps of the user, as the public functions that rdmalloc.h describes.
#include <errno.h>
#include <rdmalloc/rdmalloc.h>

#include <cstddef>
#include <cstring>

#include "alloc/api/allocate.h"
#include "alloc/core/fork.h"
#include "alloc/core/report.h"
#include "alloc/core/sized_struct.h"
#include "alloc/heaps/heap.h"
#include "alloc/heaps/heap_blocks.h"

using namespace rdmalloc;

namespace {

std::uint64_t handle_of(const rdmalloc_heap* heap) {
  return reinterpret_cast<std::uintptr_t>(heap);
}

void* refused(int error) {
  errno = error;
  return nullptr;
}

// Whether the address is of a live block, or of none that is known, of that very heap.
bool is_of(const Heap* heap, const void* ptr) {
  return heap != nullptr && is_of_heap(ptr) && heap_block_at(ptr).heap == heap;
}

bool page_kind_of(std::uint32_t page_size, PageKind* kind) {
  switch (page_size) {
    case 0:
      *kind = PageKind::kAny;
      return true;
    case RDMALLOC_PAGE_THP:
      *kind = PageKind::kTransparent;
      return true;
    case RDMALLOC_PAGE_4K:
      *kind = PageKind::kSmall;
      return true;
    case RDMALLOC_PAGE_2M:
      *kind = PageKind::kHuge2M;
      return true;
    case RDMALLOC_PAGE_1G:
      *kind = PageKind::kHuge1G;
      return true;
    default:
      return false;
  }
}

int refuse_heap(int error, const char* name, std::uint64_t value, const char* allowed) {
  Message()
      .text("warning: rdmalloc_heap_create: ")
      .text(name)
      .text(" is ")
      .number(value)
      .text("; allowed: ")
      .text(allowed)
      .warn();
  return error;
}

// What the attributes ask for.
int plan_heap(const rdmalloc_heap_attr* given, HeapPlan* plan) {
  rdmalloc_heap_attr attr = {};
  if (int error = given != nullptr ? read_struct(given, &attr) : 0)
    return refuse_heap(error, "`size`", given->size,
                       "sizeof(struct rdmalloc_heap_attr), and what this library does not know of "
                       "it must be 0");
  plan->budget_bytes = attr.budget_bytes != 0 ? attr.budget_bytes : UINT64_MAX;
  if (plan->budget_bytes < kSliceBytes)
    return refuse_heap(-EINVAL, "budget_bytes", attr.budget_bytes, "65536 or more; 0: no limit");
  if (attr.flags != 0) return refuse_heap(-EINVAL, "`flags`", attr.flags, "0, there are none yet");
  if (!page_kind_of(attr.page_size, &plan->pages))
    return refuse_heap(-EINVAL, "page_size", attr.page_size,
                       "0, RDMALLOC_PAGE_4K (4096), RDMALLOC_PAGE_THP (1), RDMALLOC_PAGE_2M "
                       "(2097152), RDMALLOC_PAGE_1G (1073741824)");
  if (attr.domain_count == 0 && attr.access != 0)
    return refuse_heap(-EINVAL, "`access`", attr.access,
                       "0 without domains; name those that its rights are for");
  if (attr.domain_count != 0 && attr.domains == nullptr)
    return refuse_heap(-EINVAL, "`domains` is NULL, and domain_count", attr.domain_count,
                       "as many domains as it says, or 0");
  if (attr.domain_count == 0 && attr.numa_node == 0 && plan->pages == PageKind::kAny) return 0;
  if (attr.budget_bytes == 0) {
    report_warning("rdmalloc_heap_create",
                   "a heap with domains, a NUMA node or a page_size needs budget_bytes: all of its "
                   "memory is taken when it is made");
    return -EINVAL;
  }
  plan->has_regions = true;
  plan->domains = attr.domains;
  plan->domain_count = attr.domain_count;
  plan->access = attr.access;
  plan->node = attr.numa_node;
  return 0;
}

}  // namespace

extern "C" {

int rdmalloc_heap_create(const struct rdmalloc_heap_attr* attr, struct rdmalloc_heap** heap) {
  if (heap == nullptr) {
    report_warning("rdmalloc_heap_create", "`heap` is NULL: there is no place for the heap's name");
    return -EINVAL;
  }
  HeapPlan plan = {};
  if (int error = plan_heap(attr, &plan)) return error;
  std::uint64_t handle = 0;
  if (int error = heap_create(plan, &handle)) return error;
  *heap = reinterpret_cast<rdmalloc_heap*>(handle);
  return 0;
}

int rdmalloc_heap_grow(struct rdmalloc_heap* heap, size_t bytes) {
  return bytes == 0 ? -EINVAL : heap_grow(handle_of(heap), bytes);
}

int rdmalloc_heap_destroy(struct rdmalloc_heap* heap) {
  return heap_destroy(handle_of(heap));
}

int rdmalloc_heap_abandon(struct rdmalloc_heap* heap) {
  return heap_abandon(handle_of(heap));
}

void* rdmalloc_heap_malloc(struct rdmalloc_heap* heap, size_t bytes) {
  return heap_malloc(handle_of(heap), bytes);
}

void* rdmalloc_heap_calloc(struct rdmalloc_heap* heap, size_t count, size_t bytes) {
  std::size_t total = 0;
  if (__builtin_mul_overflow(count, bytes, &total)) return out_of_memory();
  bool is_zero = false;
  void* block = heap_allocate(handle_of(heap), total, 1, &is_zero);
  if (block != nullptr && !is_zero) std::memset(block, 0, total);
  return block;
}

void* rdmalloc_heap_aligned(struct rdmalloc_heap* heap, size_t alignment, size_t bytes) {
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) return refused(EINVAL);
  bool is_zero = false;
  return heap_allocate(handle_of(heap), bytes, alignment, &is_zero);
}

void* rdmalloc_heap_realloc(struct rdmalloc_heap* heap, void* ptr, size_t bytes) {
  if (ptr == nullptr) return rdmalloc_heap_malloc(heap, bytes);
  fork_check();
  if (!is_of(heap_of_handle(handle_of(heap)), ptr)) return refused(EINVAL);
  if (bytes == 0) {
    release(ptr);
    return nullptr;
  }
  return reallocate(ptr, bytes);
}

int rdmalloc_heap_free(struct rdmalloc_heap* heap, void* ptr) {
  fork_check();
  const Heap* found = heap_of_handle(handle_of(heap));
  if (found == nullptr || (ptr != nullptr && !is_of(found, ptr))) return -EINVAL;
  if (ptr != nullptr) heap_block_free(ptr);
  return 0;
}

int rdmalloc_heap_walk(struct rdmalloc_heap* heap, rdmalloc_heap_walk_fn fn, void* arg) {
  return fn == nullptr ? -EINVAL : heap_walk(handle_of(heap), fn, arg);
}

int rdmalloc_heap_stats(struct rdmalloc_heap* heap, struct rdmalloc_heap_counters* stats) {
  if (int error = check_struct(stats)) return error;
  fork_check();
  const Heap* found = heap_of_handle(handle_of(heap));
  if (found == nullptr) return -EINVAL;
  HeapState state = heap_state(*found);
  std::uint64_t huge_bytes = state.huge_2m_bytes + state.huge_1g_bytes;
  rdmalloc_heap_counters all = {
      sizeof all,         state.budget_bytes, state.span_bytes,   state.most_span_bytes,
      state.live_bytes,   state.live_blocks,  state.refusals,     state.large_bytes,
      state.large_blocks, state.cached_bytes, state.region_bytes, huge_bytes};
  write_struct(all, stats);
  return 0;
}

}  // extern "C"
