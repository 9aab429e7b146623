// SPDX-License-Identifier: BSD-3-Clause
//
// The control: a malloc that gives pages back inside malloc and free, on the caller's thread,
// through libc's madvise. Whatever hooks madvise and takes a lock that the caller already holds
// hangs under it (docs/design.md, "The problem, in one chain"); tests that show rdmalloc not
// hanging show with this one that they would have seen it. For tests only: correct, and slow.
//
//   LD_PRELOAD=libmadvise_malloc.so program
//   MADVISE_MALLOC_EVERY=n   one madvise in n calls of malloc or free (default 1)
//
// A block is a power of two of bytes cut from one reserved region, its 16-byte header in front of
// what the caller gets:
//
//   raw                 ptr - 16         ptr
//   | link when free …  | Header         | the caller's
//
// A freed block of 64 KiB or more is handed to `pending` and only goes back to its free list once
// its pages, but for the first, were given back. When none is pending a spare block of our own is
// purged instead, so that each due call really makes a system call.
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace {

constexpr size_t kRegionBytes = size_t{256} << 30u;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kPageBytes = 4096;
constexpr unsigned kSmallestShift = 5;     // 32 bytes, 16 of them the caller's
constexpr unsigned kShifts = 38;           // 128 GiB and less
constexpr unsigned kPurgedFromShift = 16;  // 64 KiB
constexpr uint32_t kMagic = 0x6D616476;    // "madv"

struct Header {
  uint32_t shift;
  uint32_t magic;
  char* raw;
};
static_assert(sizeof(Header) == kHeaderBytes);

struct FreeBlock {
  FreeBlock* next;
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
char* next_fresh;
char* region_end;
char* spare;  // 64 KiB that no caller ever gets
FreeBlock* free_lists[kShifts];
FreeBlock* pending[kShifts];
unsigned calls;
unsigned purge_every = 1;
// A hook that allocates while it is told must not make the next purge.
thread_local bool is_purging = false;

bool start() {
  void* region = mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) return false;
  next_fresh = static_cast<char*>(region);
  region_end = next_fresh + kRegionBytes;
  spare = next_fresh;
  next_fresh += size_t{1} << kPurgedFromShift;
  if (const char* text = getenv("MADVISE_MALLOC_EVERY"))
    purge_every = atoi(text) > 0 ? atoi(text) : 1;
  return true;
}

// Under the lock.
char* take(unsigned shift) {
  if (next_fresh == nullptr && !start()) return nullptr;
  if (FreeBlock* block = free_lists[shift]) {
    free_lists[shift] = block->next;
    return reinterpret_cast<char*>(block);
  }
  size_t bytes = size_t{1} << shift;
  if (bytes > static_cast<size_t>(region_end - next_fresh)) return nullptr;
  char* raw = next_fresh;
  next_fresh += bytes;
  return raw;
}

FreeBlock* take_pending(unsigned* shift) {
  for (unsigned i = kPurgedFromShift; i < kShifts; i++) {
    if (FreeBlock* block = pending[i]) {
      pending[i] = block->next;
      *shift = i;
      return block;
    }
  }
  return nullptr;
}

// The whole point: madvise from inside malloc, on this thread, with none of our locks held.
// noinline: its name in a stack is what a test looks for.
__attribute__((noinline)) void purge_inside_malloc() {
  if (is_purging) return;
  pthread_mutex_lock(&lock);
  bool due = next_fresh != nullptr && ++calls % purge_every == 0;
  unsigned shift = 0;
  FreeBlock* block = due ? take_pending(&shift) : nullptr;
  pthread_mutex_unlock(&lock);
  if (!due) return;
  int saved = errno;
  is_purging = true;
  if (block != nullptr)  // the first page holds the link
    madvise(reinterpret_cast<char*>(block) + kPageBytes, (size_t{1} << shift) - kPageBytes,
            MADV_DONTNEED);
  else
    madvise(spare, size_t{1} << kPurgedFromShift, MADV_DONTNEED);
  is_purging = false;
  errno = saved;
  if (block == nullptr) return;
  pthread_mutex_lock(&lock);
  block->next = free_lists[shift];
  free_lists[shift] = block;
  pthread_mutex_unlock(&lock);
}

void* allocate(size_t alignment, size_t bytes) {
  purge_inside_malloc();
  if (alignment < 16) alignment = 16;
  size_t whole = bytes + kHeaderBytes + (alignment > 16 ? alignment : 0);
  if (bytes > kRegionBytes || alignment > kRegionBytes || whole > kRegionBytes / 2) {
    errno = ENOMEM;
    return nullptr;
  }
  unsigned shift = kSmallestShift;
  while ((size_t{1} << shift) < whole) shift++;
  pthread_mutex_lock(&lock);
  char* raw = take(shift);
  pthread_mutex_unlock(&lock);
  if (raw == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  uintptr_t start = reinterpret_cast<uintptr_t>(raw) + kHeaderBytes;
  auto* ptr = reinterpret_cast<char*>((start + alignment - 1) & ~(alignment - 1));
  *reinterpret_cast<Header*>(ptr - kHeaderBytes) = {shift, kMagic, raw};
  return ptr;
}

Header* header_of(void* ptr) {
  auto* header = reinterpret_cast<Header*>(static_cast<char*>(ptr) - kHeaderBytes);
  if (header->magic != kMagic) abort();
  return header;
}

size_t usable(void* ptr) {
  Header* header = header_of(ptr);
  return (size_t{1} << header->shift) - static_cast<size_t>(static_cast<char*>(ptr) - header->raw);
}

void release(void* ptr) {
  if (ptr == nullptr) return;
  Header* header = header_of(ptr);
  unsigned shift = header->shift;
  auto* block = reinterpret_cast<FreeBlock*>(header->raw);
  header->magic = 0;
  pthread_mutex_lock(&lock);
  FreeBlock** list = shift >= kPurgedFromShift ? &pending[shift] : &free_lists[shift];
  block->next = *list;
  *list = block;
  pthread_mutex_unlock(&lock);
  purge_inside_malloc();
}

// A fork must not find the lock held by a thread that the child does not have.
void before_fork() {
  pthread_mutex_lock(&lock);
}
void after_fork() {
  pthread_mutex_unlock(&lock);
}
__attribute__((constructor)) void watch_forks() {
  pthread_atfork(before_fork, after_fork, after_fork);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* malloc(size_t bytes) {
  return allocate(16, bytes);
}
EXPORT void free(void* ptr) {
  release(ptr);
}
EXPORT void* calloc(size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) {
    errno = ENOMEM;
    return nullptr;
  }
  void* ptr = allocate(16, total);
  if (ptr != nullptr) memset(ptr, 0, total);
  return ptr;
}
EXPORT void* realloc(void* ptr, size_t bytes) {
  if (ptr == nullptr) return allocate(16, bytes);
  if (bytes == 0) {
    release(ptr);
    return nullptr;
  }
  size_t old_bytes = usable(ptr);
  if (bytes <= old_bytes && bytes >= old_bytes / 4) return ptr;
  void* moved = allocate(16, bytes);
  if (moved == nullptr) return nullptr;
  memcpy(moved, ptr, old_bytes < bytes ? old_bytes : bytes);
  release(ptr);
  return moved;
}
EXPORT void* reallocarray(void* ptr, size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) {
    errno = ENOMEM;
    return nullptr;
  }
  return realloc(ptr, total);
}
EXPORT int posix_memalign(void** out, size_t alignment, size_t bytes) {
  if (alignment < sizeof(void*) || (alignment & (alignment - 1)) != 0) return EINVAL;
  void* ptr = allocate(alignment, bytes);
  if (ptr == nullptr) return ENOMEM;
  *out = ptr;
  return 0;
}
EXPORT void* memalign(size_t alignment, size_t bytes) {
  return allocate(alignment, bytes);
}
EXPORT void* aligned_alloc(size_t alignment, size_t bytes) {
  return allocate(alignment, bytes);
}
EXPORT void* valloc(size_t bytes) {
  return allocate(kPageBytes, bytes);
}
EXPORT void* pvalloc(size_t bytes) {
  return allocate(kPageBytes, (bytes + kPageBytes - 1) & ~(kPageBytes - 1));
}
EXPORT size_t malloc_usable_size(void* ptr) {
  return ptr == nullptr ? 0 : usable(ptr);
}
