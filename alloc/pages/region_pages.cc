#include "alloc/pages/region_pages.h"

#include <errno.h>

#include <utility>

#include "alloc/core/lock.h"
#include "alloc/core/purge_signal.h"
#include "alloc/os/huge_pool.h"
#include "alloc/os/os.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/events.h"
#include "alloc/pages/give_back.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/purge_turn.h"

namespace rdmalloc {
namespace {

// Pages of the arena's own kind, none of them backed. They are charged, under strict overcommit, by
// the second step, which so may fail; then nothing is usable there, and the first may be repeated.
int put_plain(std::uintptr_t base, std::size_t bytes) {
  if (int error = os::reserve_over(base, bytes)) return error;
  os::advise_small(base, bytes);
  return os::commit(base, bytes);
}

// An exchange of pages of a region that is in flight, with the turn.
template <class Put>
int exchange(SliceIndex slice, std::uint32_t slices, Put put) {
  std::uintptr_t base = arena.address_of(slice);
  std::size_t bytes = std::size_t{slices} << kSliceShift;
  int error = -EBUSY;
  // Whether the decommit does anything is no matter: it is for caches that hear of it by that call
  // only (tier T0). Locked pages, and those of a pool before Linux 5.18, stay until the mapping
  // goes.
  give_back(base, bytes, RDMALLOC_PURGE_REQUEST, [&](int) {
    error = put(base, bytes);
    if (error == 0) events_note_purged(slice, slices);
    return error;
  });
  return error;
}

struct Request {
  SliceIndex slice;
  std::uint32_t slices;
  PageKind kind;
  std::uintptr_t staged;  // pages of a pool, at their first place; 0: none, or they were moved
  bool is_changed;
};

int put_in_turn(void* arg) {
  auto* wanted = static_cast<Request*>(arg);
  return exchange(wanted->slice, wanted->slices, [wanted](std::uintptr_t base, std::size_t bytes) {
    wanted->is_changed = true;
    if (std::uintptr_t staged = std::exchange(wanted->staged, 0))
      return os::move_huge(staged, bytes, base);
    if (int error = put_plain(base, bytes)) return error;
    // A wish: refused where the kernel has small pages only.
    if (wanted->kind != PageKind::kSmall) os::advise_huge(base, bytes);
    return 0;
  });
}

int restore_in_turn(void*) {
  region_pages_restore_in_turn();
  return 0;
}

}  // namespace

int region_pages_put(SliceIndex slice, std::uint32_t slices, PageKind kind, bool* is_changed) {
  std::size_t bytes = std::size_t{slices} << kSliceShift;
  Request wanted{slice, slices, kind, 0, false};
  *is_changed = false;
  if (std::size_t page_bytes = pool_page_bytes(kind)) {
    if (int error = os::map_huge(bytes, page_bytes, &wanted.staged)) return error;
  }
  int error = purge_with_turn(put_in_turn, &wanted);
  *is_changed = wanted.is_changed;
  if (error != 0 && wanted.staged != 0) os::unreserve(wanted.staged, bytes);
  if (error == 0) page_heap_region_note_new_pages(slice, slices);
  return error;
}

void region_pages_restore_in_turn() {
  std::uint32_t slices = 0;
  SliceIndex slice = 0;
  while (page_heap_retired_slices() != 0 &&
         (slice = page_heap_next_retired(slice + slices, &slices)) != 0)
    if (exchange(slice, slices, put_plain) == 0) page_heap_region_restored(slice);
}

void region_pages_restore() {
  purge_with_turn(restore_in_turn, nullptr);
  if (page_heap_retired_slices() == 0) return;
  // Pairs with the seq_cst store of `sleep` in purge_until_stopped(): the region was counted
  // before.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  purge_wake();
}

void region_pages_explain(Message& message, PageKind kind, std::uint64_t bytes,
                          std::uint32_t node) {
  std::size_t page_bytes = pool_page_bytes(kind);
  int of_node = node == 0 ? -1 : static_cast<int>(node) - 1;
  os::HugePool pool;
  if (!os::huge_pool(page_bytes, of_node, &pool)) {
    message.text("this kernel has no huge pages of ").number(page_bytes).text(" bytes");
    return;
  }
  std::uint64_t wanted = bytes / page_bytes;
  std::uint64_t missing = wanted > pool.free ? wanted - pool.free : 0;
  message.number(wanted)
      .text(" huge pages of ")
      .number(page_bytes)
      .text(" bytes are needed and ")
      .number(pool.free)
      .text(" are free");
  if (missing == 0) {
    message.text(
        "; a cgroup's limit (hugetlb.*.max), a cpuset, a memory policy or vm.max_map_count keeps "
        "them away");
    return;
  }
  message.text("; as root: echo ")
      .number(pool.pages + missing)
      .text(" > ")
      .text(os::huge_pool_file(page_bytes, of_node, "nr_hugepages").c_str());
}

}  // namespace rdmalloc
