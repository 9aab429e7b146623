// A stand-in for the allocator as the registration cache sees it: a reserved arena, spans made and
// freed by hand, and purges whose steps the test drives. Being linked into the test program, its
// functions take the place of the library's, and the races between the two become deterministic.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace fake {

constexpr std::size_t kArenaBytes = std::size_t{8} << 30;
constexpr std::size_t kSlice = RDMALLOC_SLICE_BYTES;

// A span of `slices` slices at the `at`-th slice of the arena, in use from now on. Blocks of
// `block_bytes` (0: one block). Pages never touched are never backed.
char* span(std::size_t at, std::size_t slices, std::size_t block_bytes = 0);
// Makes it as long as that, in place, as realloc() may.
void resize_span(void* base, std::size_t slices);
// Takes it out of use; its pages stay.
void free_span(void* base);

// The whole of I3 for slices [at, at+slices), none of them in use: in flight, observers,
// decommit, end, back. Returns 0 or the refusal. `while_in_flight` runs between the agreement
// and the end.
int purge(std::size_t at, std::size_t slices, const std::function<void()>& while_in_flight = {});
// The same for pages [first, first+count) of a slab in use, on which by the test's word no block
// lives.
int purge_pages_of(char* slab, std::size_t first, std::size_t count,
                   enum rdmalloc_purge_reason reason,
                   const std::function<void()>& while_in_flight = {});
// Decommits and notifies no cache: what the tests of the tests need.
void purge_silently(std::size_t at, std::size_t slices);

// Called with each range about to be decommitted, after every observer agreed.
void set_decommit_check(std::function<void(void*, std::size_t)> check);

// How often the purge thread was asked to give everything back.
extern std::atomic<int> purge_requests;

// How often it was asked whether a range is idle.
extern std::atomic<std::uint64_t> idle_questions;

// Called once whether a range is idle has been found out, before the cache hears of it.
void set_idle_hook(std::function<void()> hook);

// How often the pages at an address were given back.
unsigned page_generation(const void* address);

}  // namespace fake
