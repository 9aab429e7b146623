#include "alloc/heaps/heap_regions.h"

#include <errno.h>

#include "alloc/cache/take_back.h"
#include "alloc/core/options.h"
#include "alloc/core/order_for_fork.h"
#include "alloc/core/report.h"
#include "alloc/os/populate.h"
#include "alloc/os/rounding.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {
namespace {

const HeapRegion& region_of(const Heap& heap, SliceIndex slice) {
  const HeapRegion* region = heap.regions;
  while (slice < region->first || slice >= region->end()) ++region;
  return *region;
}

std::uint32_t slices_of(SliceIndex slice) {
  return arena.span(slice).load().slices;
}
bool is_free_for_heap(SliceIndex slice) {
  return arena.span(slice).load().kind == SpanKind::kHeapFree;
}

// Enters a span that is free, joined with its neighbours in the region.
void enter_free(Heap& heap, SliceIndex slice) {
  const HeapRegion& region = region_of(heap, slice);
  SliceIndex end = slice + slices_of(slice);
  if (end < region.end() && is_free_for_heap(end)) {
    heap.free_spans.remove(end, slices_of(end));
    page_heap_region_join(slice, end);
  }
  if (slice > region.first) {
    SliceIndex before = arena.first[slice - 1].load(std::memory_order_relaxed);
    if (is_free_for_heap(before)) {
      heap.free_spans.remove(before, slices_of(before));
      page_heap_region_join(before, slice);
      slice = before;
    }
  }
  heap.free_spans.insert(slice, slices_of(slice));
}

// Says why a heap gets less than it asked for, and what would help.
int refuse(int error, std::uint64_t done, std::uint64_t all, const Message& why) {
  Message()
      .text("warning: a heap of ")
      .number(all)
      .text(" bytes could not be made, after ")
      .number(done)
      .text(" of them: ")
      .text(why.c_str())
      .warn();
  return error;
}

// How memory is taken for one call of create or grow.
struct Taking {
  PageKind pages;
  std::size_t alignment;  // of addresses and lengths
  std::size_t most_bytes;
};

// Of a heap that asks for no page size, by RDMALLOC_HUGE. False: plainly, since it is not set, or
// since whole pages of that size would be more than an eighth above what is taken else.
bool is_wished(const RegionLimits& limits, std::uint64_t bytes, Taking* wish) {
  PageKind pages = options().huge == HugeMode::k2M   ? PageKind::kHuge2M
                   : options().huge == HugeMode::k1G ? PageKind::kHuge1G
                                                     : PageKind::kAny;
  std::size_t page_bytes = pool_page_bytes(pages);
  if (limits.pages != PageKind::kAny || page_bytes == 0) return false;
  std::size_t alignment = page_bytes > limits.alignment ? page_bytes : limits.alignment;
  *wish = {pages, alignment, limits.most_bytes & ~(alignment - 1)};
  return round_up(bytes, alignment) - round_up(bytes, limits.alignment) <= bytes / 8;
}

// RDMALLOC_HUGE could not be followed; once is enough.
void warn_of_ordinary_pages(std::uint64_t bytes, const Message& why) {
  static constinit std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true, std::memory_order_relaxed)) return;
  Message()
      .text("warning: RDMALLOC_HUGE: ")
      .number(bytes)
      .text(" bytes of a heap, and perhaps of others after it, are on ordinary pages: ")
      .text(why.c_str())
      .warn();
}

// Gives a region back. Its pages may stay where they are, unless they are not the arena's own, but
// the next ones come from anywhere.
void end_region(const Heap& heap, std::uint32_t index, bool is_kept) {
  const HeapRegion& region = heap.regions[index];
  is_kept |= region.is_kept;
  if (region.pages != PageKind::kAny && !is_kept) {
    page_heap_region_retire(region.first, region.slices);
    return;
  }
  if (heap.region_limits.node != 0)
    os::unbind(arena.address_of(region.first), std::size_t{region.slices} << kSliceShift);
  page_heap_region_end(region.first, region.slices, is_kept);
}

// Puts pages of that kind into a region that has none of its heap's blocks yet, and backs them.
int back_region(const RegionLimits& limits, PageKind pages, HeapRegion* region, Message* why) {
  std::uintptr_t base = arena.address_of(region->first);
  std::size_t bytes = std::size_t{region->slices} << kSliceShift;
  bool is_of_pool = pool_page_bytes(pages) != 0;
  if (pages != PageKind::kAny) {
    bool is_changed = false;
    int error = region_pages_put(region->first, region->slices, pages, &is_changed);
    if (is_changed) region->pages = pages;
    if (error == -EBUSY)
      why->text("purging is paused, or an observer of page events keeps what lies there");
    else if (error == -EDEADLK)
      why->text("its pages can't be exchanged inside a page event");
    else if (error == -ENOTSUP)
      why->text("pages of this size need a kernel with a pool of them, Linux 5.16 or newer: see ")
          .text("/sys/kernel/mm/hugepages");
    else if (error != 0 && is_of_pool)
      region_pages_explain(*why, pages, bytes, limits.node);
    else if (error != 0)
      why->text("the kernel has no mapping for it; check vm.max_map_count and RLIMIT_DATA");
    if (error != 0) return error;
  }
  if (limits.node != 0) {
    if (int error = os::bind_to_node(base, bytes, limits.node - 1)) {
      why->text(
          "the kernel does not bind memory to that NUMA node; /sys/devices/system/node/has_memory "
          "says which there are");
      return error;
    }
  }
  int error = os::populate_pages(base, bytes);
  if (error == 0) return 0;
  if (!is_of_pool) {
    why->text("the kernel has no pages for it; ask for less");
    return error;
  }
  // They were promised by all nodes together; -EFAULT is what touching one would be a SIGBUS for.
  region_pages_explain(*why, pages, bytes, limits.node);
  return error == -EFAULT ? -ENOMEM : error;
}

// Why the heap's registrar did not register a region.
void explain_refusal(int error, Message* why) {
  if (error == -ECHILD)
    why->text(
           "the heap is of the process that this one was forked from, and registered only there; ")
        .text("make another one here");
  else if (error == -EDEADLK)
    why->text("this is inside a page event, where nothing can be registered; ")
        .text("call again when that has returned");
  else if (error == -ENODEV)
    why->text("a domain is lost, its device is gone; make another heap with domains that are open");
  else if (error != 0)
    why->text("a domain refused to register it (error ")
        .signed_number(error)
        .text("); ask for less, or raise the limit that it names");
}

// The heap's next region, not yet in its lists. After an error it is there if `*is_held`.
int add_region(Heap& heap, std::uint64_t handle, std::uint32_t index, std::size_t bytes,
               const Taking& taking, bool* is_held, Message* why) {
  auto slices = static_cast<std::uint32_t>(bytes >> kSliceShift);
  bool is_zero = false;
  SliceIndex slice = 0;
  TakeBack take_back;
  do {
    slice = page_heap_take_large(
        kNoShard, slices, taking.alignment, &is_zero, 0,
        taking.pages != PageKind::kAny ? TakenFor::kRegion : TakenFor::kBuffer);
  } while (slice == 0 && take_back.again(slices));
  if (slice == 0) {
    why->text("there is no such run of addresses, or RDMALLOC_LIMIT is lower");
    return -ENOMEM;
  }
  page_heap_region_make(slice, slot_of(heap));
  HeapRegion& region = heap.regions[index];
  region = {slice, slices, PageKind::kAny, false};
  int error = back_region(heap.region_limits, taking.pages, &region, why);
  if (std::uint32_t place = heap.place.load(std::memory_order_relaxed); error == 0 && place != 0) {
    // Acquire: pairs with the release of the registration cache.
    error = heap_registrar.load(std::memory_order_acquire)
                ->add(place, handle, arena.address_of(slice), bytes, &region.is_kept, is_held);
    explain_refusal(error, why);
  }
  if (error != 0 && !*is_held) end_region(heap, index, false);
  return error;
}

// Under the span lock.
void count_huge_pages(Heap& heap) {
  std::uint64_t slices_2m = 0, slices_1g = 0;
  std::uint32_t count = heap.region_count.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i) {
    const HeapRegion& region = heap.regions[i];
    if (region.pages == PageKind::kHuge2M) slices_2m += region.slices;
    if (region.pages == PageKind::kHuge1G) slices_1g += region.slices;
  }
  heap.huge_2m_slices.store(slices_2m, std::memory_order_relaxed);
  heap.huge_1g_slices.store(slices_1g, std::memory_order_relaxed);
}

// Undoes the regions from `first` to `end`, which are not in the heap's lists. Where they can't be
// deregistered, since a caller has got a registration of one by an address that it has no block at,
// they stay the heap's until it is destroyed, and nothing of them is handed out (I13).
void remove_regions(Heap& heap, std::uint64_t handle, std::uint32_t first, std::uint32_t end) {
  std::uint64_t kept = 0;
  std::uint32_t place = heap.place.load(std::memory_order_relaxed);
  if (place != 0 && end > first &&
      heap_registrar.load(std::memory_order_acquire)->end(place, handle, first, &kept) != 0) {
    LockGuard guard(heap.span_lock);
    // Release: as in regions_add().
    heap.region_count.store(end, std::memory_order_release);
    count_huge_pages(heap);
    return;
  }
  for (std::uint32_t i = first; i < end; ++i) end_region(heap, i, (kept >> i & 1) != 0);
  if (page_heap_retired_slices() != 0) region_pages_restore();
}

// Takes regions of `bytes` together behind those that the heap has, up to *end, and enters them in
// no list. 0, or a negative errno with nothing left behind; `*done` is how far it came.
int take_regions(Heap& heap, std::uint64_t handle, std::uint64_t bytes, const Taking& taking,
                 std::uint32_t* end, std::uint64_t* done, Message* why) {
  std::uint32_t before = heap.region_count.load(std::memory_order_relaxed);
  int error = 0;
  *done = 0;
  *end = before;
  while (error == 0 && *done != bytes) {
    std::uint64_t length = bytes - *done < taking.most_bytes ? bytes - *done : taking.most_bytes;
    if (*end == heap.region_limits.most || length == 0) {
      error = -EMSGSIZE;
      why->text(
          "its domains register too little at once for it: open them with a larger `largest`, or "
          "make several heaps");
    } else {
      bool is_held = false;
      error = add_region(heap, handle, *end, length, taking, &is_held, why);
      if (is_held) ++*end;
    }
    if (error != 0) break;
    *done += length;
    ++*end;
  }
  if (error == 0) return 0;
  remove_regions(heap, handle, before, *end);
  purge_note_dirty();  // what had been backed, the one that failed too
  return error;
}

}  // namespace

SliceIndex region_take(Heap& heap, std::uint32_t slices, std::size_t alignment) {
  std::uint32_t align_slices = static_cast<std::uint32_t>(alignment >> kSliceShift);
  if (align_slices == 0) align_slices = 1;
  if (slices + std::uint64_t{align_slices} > UINT32_MAX) return 0;
  Alignment of_slices(align_slices, arena.base >> kSliceShift);
  SliceIndex found = heap.free_spans.find_best(slices, of_slices);
  if (found == 0) return 0;
  std::uint32_t length = slices_of(found);
  SliceIndex at = fit_in(found, length, slices, of_slices);
  heap.free_spans.remove(found, length);
  page_heap_region_cut(found, at, slices);
  if (at != found) heap.free_spans.insert(found, at - found);
  if (at + slices != found + length)
    heap.free_spans.insert(at + slices, found + length - at - slices);
  return at;
}

void region_free(Heap& heap, SliceIndex slice) {
  page_heap_region_free(slice);
  enter_free(heap, slice);
}

bool region_grow(Heap& heap, SliceIndex slice, std::uint32_t slices) {
  SliceIndex old_end = slice + slices_of(slice), end = slice + slices;
  if (end > region_of(heap, slice).end() || !is_free_for_heap(old_end)) return false;
  std::uint32_t length = slices_of(old_end);
  if (old_end + length < end) return false;
  heap.free_spans.remove(old_end, length);
  page_heap_region_grow(slice, slices);
  if (old_end + length != end) heap.free_spans.insert(end, old_end + length - end);
  return true;
}

void region_shrink(Heap& heap, SliceIndex slice, std::uint32_t slices) {
  page_heap_region_shrink(slice, slices);
  enter_free(heap, slice + slices);
}

void regions_rebuild(Heap& heap) {
  heap.free_spans.clear();
  std::uint32_t count = heap.region_count.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i) {
    const HeapRegion& region = heap.regions[i];
    for (SliceIndex slice = region.first; slice < region.end(); slice += slices_of(slice))
      if (is_free_for_heap(slice)) heap.free_spans.insert(slice, slices_of(slice));
  }
  count_huge_pages(heap);
}

int regions_add(Heap& heap, std::uint64_t handle, std::uint64_t bytes) {
  assert_no_lock_held("taking memory for a heap");
  const RegionLimits& limits = heap.region_limits;
  Message why, why_ordinary;
  if (bytes > arena.extent())
    return refuse(-ENOMEM, 0, bytes,
                  why.text("the arena has ")
                      .number(arena.extent())
                      .text(" bytes; ask for less, or raise RDMALLOC_ARENA"));
  std::uint32_t end = 0;
  std::uint64_t done = 0;
  int error = 0;
  Taking wish = {};
  bool is_wish = is_wished(limits, bytes, &wish);
  if (is_wish)
    error = take_regions(heap, handle, round_up(bytes, wish.alignment), wish, &end, &done,
                         &why_ordinary);
  // Whatever it failed for: what can be had without the setting can be had with it.
  if (!is_wish || error != 0) {
    Taking plain = {limits.pages, limits.alignment, limits.most_bytes};
    std::uint64_t all = round_up(bytes, limits.alignment);
    if ((error = take_regions(heap, handle, all, plain, &end, &done, &why)))
      return refuse(error, done, all, why);
    if (is_wish) warn_of_ordinary_pages(all, why_ordinary);
  }
  LockGuard guard(heap.span_lock);
  std::uint32_t before = heap.region_count.load(std::memory_order_relaxed);
  for (std::uint32_t i = before; i < end; ++i)
    heap.free_spans.insert(heap.regions[i].first, heap.regions[i].slices);
  heap.budget_slices.store(
      heap.budget_slices.load(std::memory_order_relaxed) + (done >> kSliceShift),
      std::memory_order_relaxed);
  // Release: pairs with the acquire of readers of the regions without the lock.
  heap.region_count.store(end, std::memory_order_release);
  count_huge_pages(heap);
  return 0;
}

void regions_bind_again(Heap& heap) {
  std::uint32_t node = 0;  // plus 1
  int error = 0;
  {
    LockGuard guard(heap.span_lock);
    // One that is being destroyed ends what is bound, when it has this lock.
    if (is_live(heap.handle.load(std::memory_order_relaxed))) node = heap.region_limits.node;
    std::uint32_t count = node != 0 ? heap.region_count.load(std::memory_order_relaxed) : 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const HeapRegion& region = heap.regions[i];
      int failed = os::bind_to_node(arena.address_of(region.first),
                                    std::size_t{region.slices} << kSliceShift, node - 1);
      if (error == 0) error = failed;
    }
  }
  if (error == 0) return;
  Message()
      .text("warning: rdmalloc_resume: a heap could not be bound to NUMA node ")
      .number(node - 1)
      .text(" again (error ")
      .signed_number(error)
      .text("): it works, with pages of any node")
      .warn();
}

void regions_end(Heap& heap, std::uint64_t kept) {
  LockGuard guard(heap.span_lock);
  std::uint32_t count = heap.region_count.load(std::memory_order_relaxed);
  heap.free_spans.clear();
  heap.grower.store(0, std::memory_order_relaxed);
  heap.place.store(0, std::memory_order_relaxed);
  for (std::uint32_t i = count; i-- != 0;) {
    // The child of a fork goes on with those that are whole; it may lose the one under way.
    heap.region_count.store(i, std::memory_order_relaxed);
    order_for_fork();
    end_region(heap, i, (kept >> i & 1) != 0);
  }
  count_huge_pages(heap);
}

}  // namespace rdmalloc
