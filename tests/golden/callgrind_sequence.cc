// SPDX-License-Identifier: BSD-3-Clause
//
// A fixed sequence of calls for callgrind: each call collected by itself and dumped under its entry
// point's name, for callgrind.py to add up. Over the prefixed library, since valgrind puts its own
// malloc in the place of any other.
//
//     valgrind --tool=callgrind --collect-atstart=no --combine-dumps=yes … callgrind_sequence
//
// What a call costs is what runs in this program's file meanwhile: the library and step() below,
// whose own share is known from an empty call. libc's part (memset, memcpy) is another file, and is
// left out: which of its versions runs depends on the machine.
#include <pthread.h>
#include <rdmalloc/rdmalloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <valgrind/callgrind.h>

#include <initializer_list>

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

void begin() {
  CALLGRIND_TOGGLE_COLLECT;
}
void end(const char* name) {
  CALLGRIND_TOGGLE_COLLECT;
  CALLGRIND_DUMP_STATS_AT(name);
}

template <typename Call>
[[gnu::noinline]] void step(const char* name, Call call) {
  begin();
  call();
  end(name);
}

// The three ways through the allocator: of a magazine's block, of one whose slab is 512 KiB, of a
// block that is a span.
enum Kind { kSmall, kMedium, kLarge, kKinds };
constexpr size_t kLeast[kKinds] = {1, 1025, 40 * kKiB}, kMost[kKinds] = {1024, 32 * kKiB, 4 * kMiB};
constexpr const char* kMalloc[] = {"malloc, small", "malloc, medium", "malloc, large"};
constexpr const char* kCalloc[] = {"calloc, small", "calloc, medium", "calloc, large"};
constexpr const char* kRealloc[] = {"realloc, small", "realloc, medium", "realloc, large"};
constexpr const char* kAligned[] = {"aligned_alloc, small", "aligned_alloc, medium",
                                    "aligned_alloc, large"};
constexpr const char* kFree[] = {"free, small", "free, medium", "free, large"};
constexpr const char* kFreeSized[] = {"free_sized, small", "free_sized, medium",
                                      "free_sized, large"};
constexpr const char* kUsable[] = {"malloc_usable_size, small", "malloc_usable_size, medium",
                                   "malloc_usable_size, large"};
constexpr const char* kHeapMalloc[] = {"heap_malloc, small", "heap_malloc, medium",
                                       "heap_malloc, large"};
constexpr const char* kHeapFree[] = {"free in a heap, small", "free in a heap, medium",
                                     "free in a heap, large"};

struct Slot {
  void* block = nullptr;
  size_t bytes = 0;
  Kind kind = kSmall;
  bool is_in_heap = false;
};

uint64_t state = 1;
uint64_t random_number() {  // splitmix64, Steele et al., OOPSLA 2014
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

Kind any_kind() {
  uint64_t dice = random_number() % 100;
  return dice < 70 ? kSmall : dice < 92 ? kMedium : kLarge;
}
size_t any_size(Kind kind) {
  return kLeast[kind] + random_number() % (kMost[kind] - kLeast[kind] + 1);
}

void fill(Slot& slot, rdmalloc_heap* heap) {
  slot.kind = any_kind();
  slot.bytes = any_size(slot.kind);
  slot.is_in_heap = false;
  size_t bytes = slot.bytes;
  switch (random_number() % 8) {
    case 0:
      step(kCalloc[slot.kind], [&] { slot.block = rdmalloc_calloc(1, bytes); });
      break;
    case 1:
      step(kAligned[slot.kind], [&] { slot.block = rdmalloc_aligned_alloc(64, bytes); });
      break;
    case 2:
      slot.is_in_heap = true;
      step(kHeapMalloc[slot.kind], [&] { slot.block = rdmalloc_heap_malloc(heap, bytes); });
      break;
    default:
      step(kMalloc[slot.kind], [&] { slot.block = rdmalloc_malloc(bytes); });
  }
}

void resize(Slot& slot) {
  Kind kind = slot.kind;  // of the block that is there
  slot.kind = any_kind();
  slot.bytes = any_size(slot.kind);
  size_t bytes = slot.bytes;
  step(kRealloc[kind], [&] { slot.block = rdmalloc_realloc(slot.block, bytes); });
}

void empty(Slot& slot) {
  if (slot.is_in_heap) {
    step(kHeapFree[slot.kind], [&] { rdmalloc_free(slot.block); });
  } else if (random_number() % 4 == 0) {
    step(kFreeSized[slot.kind], [&] { rdmalloc_free_sized(slot.block, slot.bytes); });
  } else {
    step(kFree[slot.kind], [&] { rdmalloc_free(slot.block); });
  }
  slot.block = nullptr;
}

void mixed(int steps, rdmalloc_heap* heap) {
  constexpr size_t kSlots = 500;
  static Slot slots[kSlots];
  for (int i = 0; i < steps; i++) {
    Slot& slot = slots[random_number() % kSlots];
    if (slot.block == nullptr) {
      fill(slot, heap);
    } else if (random_number() % 8 == 0) {
      step(kUsable[slot.kind], [&] { (void)rdmalloc_malloc_usable_size(slot.block); });
    } else if (!slot.is_in_heap && random_number() % 8 == 0) {
      resize(slot);
    } else {
      empty(slot);
    }
  }
  for (Slot& slot : slots)
    if (slot.block != nullptr) empty(slot);
}

// Runs of one size: what refills, new slabs, full magazines and the depot cost in the worst call.
void runs() {
  static void* blocks[6000];
  for (size_t bytes : {size_t{32}, size_t{1000}, size_t{8000}}) {
    Kind kind = bytes <= kMost[kSmall] ? kSmall : kMedium;
    size_t count = bytes < 8000 ? 1500 : 300;
    for (size_t i = 0; i < count; i++)
      step(kMalloc[kind], [&] { blocks[i] = rdmalloc_malloc(bytes); });
    // Not in the order of their birth: the blocks of a magazine then lie in many slabs.
    for (size_t i = 0; i < count; i++) {
      void*& block = blocks[i * 7 % count];  // 7 divides no count
      step(kFree[kind], [&] { rdmalloc_free(block); });
    }
  }
}

// More blocks of 256 KiB than a thread and the depot keep; in the first round they take their
// places.
void spans() {
  static void* blocks[64];
  for (void*& block : blocks) block = rdmalloc_malloc(256 * kKiB);
  for (void*& block : blocks) rdmalloc_free(block);
  for (int round = 0; round < 4; round++) {
    for (void*& block : blocks)
      step("malloc, 256 KiB", [&] { block = rdmalloc_malloc(256 * kKiB); });
    for (void*& block : blocks) step("free, 256 KiB", [&] { rdmalloc_free(block); });
  }
}

void* nothing(void*) {
  begin();  // and to the end of the thread
  return nullptr;
}

// A thread with blocks of many classes in its cache.
void* work(void*) {
  step("a thread's first malloc", [] { rdmalloc_free(rdmalloc_malloc(64)); });
  void* blocks[40];
  for (size_t bytes = 16; bytes < 16 * kKiB; bytes += bytes / 4 + 16) {
    for (void*& block : blocks) block = rdmalloc_malloc(bytes);
    for (void* block : blocks) rdmalloc_free(block);
  }
  begin();
  return nullptr;
}

void thread_end(const char* name, void* (*body)(void*)) {
  pthread_t thread;
  if (pthread_create(&thread, nullptr, body, nullptr) != 0) abort();
  pthread_join(thread, nullptr);
  CALLGRIND_DUMP_STATS_AT(name);
}

}  // namespace

int main() {
  step("nothing", [] {});
  void* first = nullptr;
  step("the first malloc of all", [&] { first = rdmalloc_malloc(64); });
  rdmalloc_free(first);
  rdmalloc_heap* heap = nullptr;
  step("heap_create", [&] {
    if (rdmalloc_heap_create(nullptr, &heap) != 0) abort();
  });
  mixed(4000, heap);
  runs();
  step("free(NULL)", [] { rdmalloc_free(nullptr); });
  step("malloc_usable_size(NULL)", [] { (void)rdmalloc_malloc_usable_size(nullptr); });
  thread_end("nothing, a thread's end", nothing);
  for (int i = 0; i < 20; i++) thread_end("a thread's end", work);
  for (size_t bytes = 100; bytes < 100 * kKiB; bytes = bytes * 3 / 2)
    (void)rdmalloc_heap_malloc(heap, bytes);
  step("heap_destroy", [&] {
    if (rdmalloc_heap_destroy(heap) != 0) abort();
  });
  spans();
  return 0;
}
