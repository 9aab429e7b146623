// librecord.so, a preload: writes what a program asks of malloc, from all its threads, to the file
// $BENCH_RECORD_TO.PROCESS.NUMBER (format.h). Each process below writes one of its own.
//
// Events go straight into shared mappings of the file: whatever ends the process, nothing is lost
// that was recorded, and nothing has to be flushed. No file descriptor is kept, since programs
// close all, and nothing here allocates.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "bench/traces/format.h"

using namespace rdmalloc::bench;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// ------------------------------------------------------------------ the real ones

struct Real {
  void* (*malloc)(size_t);
  void* (*calloc)(size_t, size_t);
  void* (*realloc)(void*, size_t);
  void* (*memalign)(size_t, size_t);
  void (*free)(void*);
  int (*pthread_create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  int (*pthread_join)(pthread_t, void**);
};
Real real;
std::atomic<bool> is_resolving{false};

template <typename Function>
void resolve(Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// For what dlsym() itself may ask for meanwhile.
alignas(16) char early_memory[16384];
std::atomic<size_t> early_used{0};
void* early(size_t bytes) {
  const size_t at = early_used.fetch_add((bytes + 15) & ~size_t{15});
  return at + bytes <= sizeof early_memory ? early_memory + at : nullptr;
}
bool is_early(const void* block) {
  return block >= early_memory && block < early_memory + sizeof early_memory;
}

// False while they are being looked for.
bool real_is_there() {
  if (real.pthread_join != nullptr) return true;
  if (is_resolving.exchange(true)) return false;
  resolve(real.malloc, "malloc");
  resolve(real.calloc, "calloc");
  resolve(real.realloc, "realloc");
  resolve(real.memalign, "memalign");
  resolve(real.free, "free");
  resolve(real.pthread_create, "pthread_create");
  resolve(real.pthread_join, "pthread_join");
  is_resolving.store(false);
  return true;
}

// ------------------------------------------------------------------ the recording of this process

// A recording this long takes no more.
constexpr unsigned kMaxChunks = 16384;

enum class Phase : unsigned { unopened, opening, open, off };

// On a page of its own, which a fork child finds wiped: it opens a recording anew.
struct Recording {
  std::atomic<Phase> phase;
  unsigned generation;  // never 0 once open; what threads hold of an older one is the parent's
  std::atomic<uint64_t> sequence;
  std::atomic<unsigned> threads;
  std::atomic<unsigned> chunks;
  RecordingHead* head;
  char path[4096 - 64];
};
static_assert(sizeof(Recording) <= 4096);
std::atomic<Recording*> recording_page{nullptr};
std::atomic<bool> was_opened{false};  // survives a fork, unlike the page

struct Thread {
  unsigned generation;
  unsigned number;
  RecordedEvent* next;
  RecordedEvent* end;
  char* chunk;
};
__attribute__((tls_model("initial-exec"))) thread_local Thread self;
pthread_key_t end_of_thread;

Recording* recording() {
  Recording* page = recording_page.load(std::memory_order_acquire);
  if (page != nullptr) return page;
  void* fresh = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED || madvise(fresh, 4096, MADV_WIPEONFORK) != 0) return nullptr;
  // Pairs with the load above: a page, once seen, is mapped and zero.
  if (recording_page.compare_exchange_strong(page, static_cast<Recording*>(fresh)))
    return static_cast<Recording*>(fresh);
  munmap(fresh, 4096);
  return page;
}

void* map_part(const char* path, int flags, size_t offset, size_t bytes) {
  const int file = open(path, O_RDWR | O_CLOEXEC | flags, 0644);
  if (file < 0) return nullptr;
  // A byte at the end makes the file as long as needed and never shorter.
  void* part = MAP_FAILED;
  if (pwrite(file, "", 1, static_cast<off_t>(offset + bytes - 1)) == 1)
    part =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  close(file);
  return part == MAP_FAILED ? nullptr : part;
}

void close_chunk(void*) {
  if (self.chunk != nullptr) munmap(self.chunk, kChunkBytes);
  self.chunk = nullptr;
  self.next = self.end = nullptr;
}

bool open_recording(Recording* page) {
  const char* prefix = getenv("BENCH_RECORD_TO");
  if (prefix == nullptr || *prefix == '\0') return false;
  void* head = nullptr;
  for (int number = 0; number < 100 && head == nullptr; ++number) {
    snprintf(page->path, sizeof page->path, "%s.%d.%d", prefix, getpid(), number);
    head = map_part(page->path, O_CREAT | O_EXCL, 0, kHeadBytes);
    if (head == nullptr && errno != EEXIST) return false;
  }
  if (head == nullptr) return false;
  page->head = static_cast<RecordingHead*>(head);
  memcpy(page->head->magic, kRecordingMagic, sizeof kRecordingMagic);
  strncpy(page->head->program, program_invocation_short_name, sizeof page->head->program - 1);
  page->head->process = static_cast<uint32_t>(getpid());
  page->head->is_forked = was_opened.exchange(true) ? 1 : 0;
  if (page->head->is_forked == 0) pthread_key_create(&end_of_thread, close_chunk);
  page->sequence = 1;
  page->generation = page->head->process;
  return true;
}

bool is_open(Recording* page) {
  if (page == nullptr) return false;
  for (;;) {
    // Pairs with the store below: who sees `open` sees all that opening wrote.
    Phase phase = page->phase.load(std::memory_order_acquire);
    if (phase == Phase::open || phase == Phase::off) return phase == Phase::open;
    if (phase == Phase::opening) {
      sched_yield();
      continue;
    }
    if (!page->phase.compare_exchange_strong(phase, Phase::opening)) continue;
    const bool opened = open_recording(page);
    page->phase.store(opened ? Phase::open : Phase::off, std::memory_order_release);
  }
}

bool open_chunk(Recording* page) {
  close_chunk(nullptr);
  const unsigned number = page->chunks.fetch_add(1);
  char* chunk = nullptr;
  if (number < kMaxChunks)
    chunk = static_cast<char*>(
        map_part(page->path, 0, kHeadBytes + size_t{number} * kChunkBytes, kChunkBytes));
  if (chunk == nullptr) {
    page->head->full_at = page->sequence.load();
    page->phase.store(Phase::off);
    return false;
  }
  reinterpret_cast<ChunkHead*>(chunk)->thread = self.number;
  self.next = reinterpret_cast<RecordedEvent*>(chunk) + 1;
  self.chunk = chunk;
  self.end = self.next + kChunkEvents;
  pthread_setspecific(end_of_thread, page);
  return true;
}

bool is_ready(Recording* page) {
  if (!is_open(page)) return false;
  if (self.generation != page->generation) {  // new here, or the copy of one in the parent
    self.number = page->threads.fetch_add(1);
    self.generation = page->generation;
    close_chunk(nullptr);
  }
  return self.next != self.end || open_chunk(page);
}

void record(Operation operation, const void* address, size_t size, size_t alignment = 1) {
  const int error = errno;
  Recording* page = recording();
  if (is_ready(page)) {
    RecordedEvent event{};
    event.address = reinterpret_cast<uintptr_t>(address);
    event.what.size = size;
    event.what.alignment_log2 = static_cast<unsigned>(__builtin_ctzl(alignment));
    event.what.operation = static_cast<unsigned>(operation);
    event.sequence = page->sequence.fetch_add(1);
    *self.next++ = event;
  }
  errno = error;
}

void* born(Operation operation, void* block, size_t size, size_t alignment = 1) {
  if (block != nullptr) record(operation, block, size, alignment);
  return block;
}

void end(Operation operation, void* block) {
  if (block == nullptr || is_early(block) || !real_is_there()) return;
  record(operation, block, 0);
  real.free(block);
}

void* aligned(Operation operation, size_t alignment, size_t size) {
  if (!real_is_there()) return nullptr;
  return born(operation, real.memalign(alignment, size), size, alignment);
}

bool is_power_of_two(size_t number) {
  return number != 0 && (number & (number - 1)) == 0;
}

// ------------------------------------------------------------------ threads

// What a new thread is to run; from a table, since nothing here allocates.
struct Beginning {
  std::atomic<bool> is_taken;
  void* (*function)(void*);
  void* argument;
  unsigned number;
  unsigned generation;
};
Beginning beginnings[1024];

void* begin(void* argument) {
  auto* beginning = static_cast<Beginning*>(argument);
  self.number = beginning->number;
  self.generation = beginning->generation;
  void* (*function)(void*) = beginning->function;
  argument = beginning->argument;
  beginning->is_taken.store(false, std::memory_order_release);
  return function(argument);
}

Beginning* take_beginning() {
  for (Beginning& beginning : beginnings)
    if (!beginning.is_taken.exchange(true, std::memory_order_acquire)) return &beginning;
  return nullptr;
}

}  // namespace

// ------------------------------------------------------------------ C

EXPORT void* malloc(size_t size) {
  if (!real_is_there()) return early(size);
  return born(Operation::malloc, real.malloc(size), size);
}

EXPORT void* calloc(size_t count, size_t size) {
  if (!real_is_there()) return early(count * size);
  return born(Operation::calloc, real.calloc(count, size), count * size);
}

EXPORT void* realloc(void* block, size_t size) {
  if (!real_is_there()) return early(size);
  if (is_early(block)) {
    void* moved = malloc(size);
    const auto left =
        static_cast<size_t>(early_memory + sizeof early_memory - static_cast<char*>(block));
    if (moved != nullptr) memcpy(moved, block, size < left ? size : left);
    return moved;
  }
  record(Operation::realloc_begins, block, 0);
  void* grown = real.realloc(block, size);
  record(Operation::realloc, grown, size);
  return grown;
}

EXPORT void free(void* block) {
  end(Operation::free, block);
}

EXPORT void* memalign(size_t alignment, size_t size) {
  if (!is_power_of_two(alignment)) alignment = sizeof(void*);
  return aligned(Operation::aligned, alignment, size);
}

EXPORT void* aligned_alloc(size_t alignment, size_t size) {
  return memalign(alignment, size);
}

EXPORT int posix_memalign(void** block, size_t alignment, size_t size) {
  if (!is_power_of_two(alignment) || alignment % sizeof(void*) != 0) return EINVAL;
  const int error = errno;
  void* memory = aligned(Operation::aligned, alignment, size);
  errno = error;
  if (memory == nullptr) return ENOMEM;
  *block = memory;
  return 0;
}

// ------------------------------------------------------------------ C++
// By their linker names: a C program has no libstdc++. When memory is short, the real operator has
// its say: handlers, exceptions.

namespace {

void* new_or(const char* symbol, size_t size) {
  if (real_is_there())
    if (void* block = real.malloc(size)) return born(Operation::op_new, block, size);
  auto next = reinterpret_cast<void* (*)(size_t)>(dlsym(RTLD_NEXT, symbol));
  return next(size);
}

void* new_aligned_or(const char* symbol, size_t size, size_t alignment) {
  if (void* block = aligned(Operation::op_new_aligned, alignment, size)) return block;
  auto next = reinterpret_cast<void* (*)(size_t, size_t)>(dlsym(RTLD_NEXT, symbol));
  return next(size, alignment);
}

void* new_or_null(size_t size) {
  return real_is_there() ? born(Operation::op_new, real.malloc(size), size) : nullptr;
}

}  // namespace

EXPORT void* _Znwm(size_t size) {
  return new_or("_Znwm", size);
}
EXPORT void* _Znam(size_t size) {
  return new_or("_Znam", size);
}
EXPORT void* _ZnwmRKSt9nothrow_t(size_t size, const void*) {
  return new_or_null(size);
}
EXPORT void* _ZnamRKSt9nothrow_t(size_t size, const void*) {
  return new_or_null(size);
}
EXPORT void* _ZnwmSt11align_val_t(size_t size, size_t alignment) {
  return new_aligned_or("_ZnwmSt11align_val_t", size, alignment);
}
EXPORT void* _ZnamSt11align_val_t(size_t size, size_t alignment) {
  return new_aligned_or("_ZnamSt11align_val_t", size, alignment);
}
EXPORT void* _ZnwmSt11align_val_tRKSt9nothrow_t(size_t size, size_t alignment, const void*) {
  return aligned(Operation::op_new_aligned, alignment, size);
}
EXPORT void* _ZnamSt11align_val_tRKSt9nothrow_t(size_t size, size_t alignment, const void*) {
  return aligned(Operation::op_new_aligned, alignment, size);
}
EXPORT void _ZdlPv(void* block) {
  end(Operation::op_delete, block);
}
EXPORT void _ZdaPv(void* block) {
  end(Operation::op_delete, block);
}
EXPORT void _ZdlPvRKSt9nothrow_t(void* block, const void*) {
  end(Operation::op_delete, block);
}
EXPORT void _ZdaPvRKSt9nothrow_t(void* block, const void*) {
  end(Operation::op_delete, block);
}
EXPORT void _ZdlPvm(void* block, size_t) {
  end(Operation::op_delete_sized, block);
}
EXPORT void _ZdaPvm(void* block, size_t) {
  end(Operation::op_delete_sized, block);
}
EXPORT void _ZdlPvSt11align_val_t(void* block, size_t) {
  end(Operation::op_delete_aligned, block);
}
EXPORT void _ZdaPvSt11align_val_t(void* block, size_t) {
  end(Operation::op_delete_aligned, block);
}
EXPORT void _ZdlPvmSt11align_val_t(void* block, size_t, size_t) {
  end(Operation::op_delete_aligned, block);
}
EXPORT void _ZdaPvmSt11align_val_t(void* block, size_t, size_t) {
  end(Operation::op_delete_aligned, block);
}

// ------------------------------------------------------------------ threads

EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*function)(void*), void* argument) {
  if (!real_is_there()) return EAGAIN;
  Recording* page = recording();
  Beginning* beginning = is_ready(page) ? take_beginning() : nullptr;
  if (beginning == nullptr) return real.pthread_create(thread, attributes, function, argument);
  beginning->function = function;
  beginning->argument = argument;
  beginning->number = page->threads.fetch_add(1);
  beginning->generation = page->generation;
  const unsigned number = beginning->number;
  const int error = real.pthread_create(thread, attributes, begin, beginning);
  if (error != 0)
    beginning->is_taken.store(false, std::memory_order_release);
  else
    record(Operation::thread_started, reinterpret_cast<void*>(*thread), number);
  return error;
}

EXPORT int pthread_join(pthread_t thread, void** result) {
  if (!real_is_there()) return EAGAIN;
  const int error = real.pthread_join(thread, result);
  if (error == 0) record(Operation::thread_joined, reinterpret_cast<void*>(thread), 0);
  return error;
}
