// SPDX-License-Identifier: BSD-3-Clause
//
// I9_foreign_memory_is_watched_in_place_of_hooks_that_are_off
//
//   foreign_preloaded opal|ucx watched|not|late
//
// Memory that is not rdmalloc's goes in every way there is, and the library's own callback must
// hear of it, before the pages are gone: it reads them. `not`: the same with a setting that leaves
// watching to the library, where nothing may come from us. `late`: without a preload; librdmalloc
// is loaded after the library, so that no munmap() is ours, and may not say that it watches. Seen
// to fail: with tell() behind the call in foreign.cc (the callback dies), with set(7) and with
// set() left out of watching.cc, with forget() forgetting all, with munmap's and shmdt's
// tell() left out, with attached_bytes() taking a failed read for the end of the file; without one
// of the advices, the second range of process_madvise(), or the rounding of shmat(), and with errno
// as a callback left it; `late`, when rdmalloc said that it watches without a look whose munmap()
// is found.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rdmalloc/notifier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/uio.h>

#include <algorithm>
#include <string>

#include "tests/notifiers/preloaded.h"

namespace {

using rdmalloc_test::expect;
using rdmalloc_test::failures;
using rdmalloc_test::find;

void expect(bool holds, const std::string& what) {
  expect(holds, what.c_str());
}

constexpr size_t kBytes = size_t{256} << 10u;
constexpr char kContent = 'f';

// What the library's callbacks were told. Fixed, since they run inside munmap.
struct Told {
  char* base;
  size_t length;
  char content;
};
Told told[64];
int told_count = 0;
char* expected_base = nullptr;

void note(void* base, size_t length) {
  errno = EDOM;  // which no caller may see
  if (told_count == 64) return;
  auto* bytes = static_cast<char*>(base);
  // Only pages of ours are read; other libraries may unmap things meanwhile.
  char content = bytes == expected_base ? *static_cast<volatile char*>(bytes) : '\0';
  told[told_count++] = {bytes, length, content};
}

void opal_callback(void* base, size_t length, void*, bool) {
  note(base, length);
}
struct UcmUnmapped {  // ucm_event_t.vm_unmapped
  void* address;
  size_t size;
};
void ucm_callback(int, UcmUnmapped* event, void*) {
  note(event->address, event->size);
}

// Sets the library up as its own users do. Whether it says that memory is watched.
void* library = nullptr;
bool begin_opal() {
  void* opal = library = rdmalloc_test::open_or_skip("libopen-pal.so.40", "Open MPI 4");
  find<int (*)()>("opal_mem_hooks_init", opal)();
  bool is_supported = find<int (*)()>("opal_mem_hooks_support_level", opal)() == 7;
  // Where no library watches the callback is registered all the same: it must not hear of anything.
  if (!is_supported) find<void (*)(int)>("opal_mem_hooks_set_support", opal)(7);
  using Register = int (*)(void (*)(void*, size_t, void*, bool), void*);
  expect(find<Register>("opal_mem_hooks_register_release", opal)(opal_callback, nullptr) == 0,
         "OPAL takes a callback");
  return is_supported;
}

bool begin_ucx() {
  void* ucm = library = rdmalloc_test::open_or_skip("libucs.so.0", "UCX");
  constexpr int kUnmapped = 1 << 17;
  using Handle = int (*)(int, int, void (*)(int, UcmUnmapped*, void*), void*);
  // With its hooks off UCX takes a handler only for what is declared external.
  return find<Handle>("ucm_set_event_handler", ucm)(kUnmapped, 0, ucm_callback, nullptr) == 0;
}

char* map() {
  void* block = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) abort();
  memset(block, kContent, kBytes);
  return static_cast<char*>(block);
}

// What is lost at `base` by `act` must have been told, whole and before it was lost.
template <typename Act>
void lose(const char* what, char* base, bool is_watched, Act act) {
  told_count = 0;
  expected_base = base;
  errno = 0;
  act();
  expect(errno != EDOM, std::string(what) + ": errno is the call's own");
  expected_base = nullptr;
  auto* end = told + told_count;
  auto* found = std::find_if(
      told, end, [&](const Told& one) { return one.base == base && one.length >= kBytes; });
  expect((found != end) == is_watched, std::string(what) + (is_watched ? ": told" : ": not told"));
  if (found != end) expect(found->content == kContent, std::string(what) + ": told beforehand");
}

void lose_all(bool is_watched) {
  char* block = map();
  lose("munmap", block, is_watched, [&] { munmap(block, kBytes); });
  char* advised = map();
  // The latter two are refused for such memory, or by the kernel, and told of all the same.
  constexpr int kDontneedLocked = 24;
  for (int advice : {MADV_DONTNEED, MADV_FREE, MADV_REMOVE, kDontneedLocked}) {
    memset(advised, kContent, kBytes);
    lose("madvise", advised, is_watched, [&] { madvise(advised, kBytes, advice); });
  }
  lose("advice that takes nothing", advised, false,
       [&] { madvise(advised, kBytes, MADV_WILLNEED); });
  memset(advised, kContent, kBytes);
#if __GLIBC_PREREQ(2, 36)
  iovec ranges[] = {{map(), kBytes}, {advised, kBytes}};
  lose("process_madvise's second range", advised, is_watched,
       [&] { process_madvise(-1, ranges, 2, MADV_DONTNEED, 0); });
#endif
  void* moved = nullptr;
  lose("mremap", advised, is_watched,
       [&] { moved = mremap(advised, kBytes, 4 * kBytes, MREMAP_MAYMOVE); });
  expect(moved != MAP_FAILED && *static_cast<char*>(moved) == kContent, "mremap works");
  char* target = map();
  lose("mremap's target", target, is_watched,
       [&] { moved = mremap(moved, 4 * kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_FIXED, target); });
  expect(moved == target && *target == kContent, "mremap to a fixed place works");
  lose("mmap over it", target, is_watched, [&] {
    mmap(target, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  });
  lose("mmap elsewhere", target, false, [&] { munmap(map(), kBytes / 2); });
  int segment = shmget(IPC_PRIVATE, kBytes, IPC_CREAT | 0600);
  auto* shared = static_cast<char*>(shmat(segment, nullptr, 0));
  expect(segment >= 0 && shared != reinterpret_cast<char*>(-1), "shared memory is to be had");
  memset(shared, kContent, kBytes);
  char* place = map();
  lose("shmat over it, from within a page", place, is_watched, [&] {
    expect(shmat(segment, place + 100, SHM_REMAP | SHM_RND) == place, "it is attached there");
  });
  shmdt(place);
  shmctl(segment, IPC_RMID, nullptr);
  // In two mappings: the length told is still that of the segment.
  mprotect(shared + kBytes / 2, kBytes / 4, PROT_READ);
  lose("shmdt", shared, is_watched, [&] { shmdt(shared); });
  for (int i = 0; i < told_count; i++)
    if (told[i].base == shared) expect(told[i].length == kBytes, "shmdt: the segment's length");
}

// shmdt() is none of the functions at which a thread is cancelled. Seen to fail, with the segment
// attached for ever, when the mappings were read by libc's read().
void lose_in_a_canceled_thread() {
  static char* shared = nullptr;
  static int error = 0;
  int segment = shmget(IPC_PRIVATE, kBytes, IPC_CREAT | 0600);
  shared = static_cast<char*>(shmat(segment, nullptr, 0));
  expect(segment >= 0 && shared != reinterpret_cast<char*>(-1), "shared memory is to be had");
  memset(shared, kContent, kBytes);
  lose("shmdt by a thread that is canceled", shared, true, [] {
    pthread_t thread;
    auto body = [](void*) -> void* {
      pthread_cancel(pthread_self());
      errno = kContent;
      shmdt(shared);
      error = errno;
      for (;;) pthread_testcancel();
    };
    if (pthread_create(&thread, nullptr, body, nullptr) != 0) abort();
    pthread_join(thread, nullptr);
  });
  expect(error == kContent, "shmdt leaves errno alone");
  shmid_ds status = {};
  expect(shmctl(segment, IPC_STAT, &status) == 0 && status.shm_nattch == 0, "it is detached");
  shmctl(segment, IPC_RMID, nullptr);
}

// A segment in 64 mappings, each read of /proc/self/maps failing in its turn: too much may be told,
// but not too little.
void lose_what_can_not_be_read(const char* site) {
  auto arm = find<int (*)(const char*, uint64_t)>("rdmalloc_fault_arm");
  uint64_t before = 0, nth = 0;
  do {
    before = rdmalloc_test::counter("stats.faults");
    int segment = shmget(IPC_PRIVATE, kBytes, IPC_CREAT | 0600);
    auto* shared = static_cast<char*>(shmat(segment, nullptr, 0));
    expect(segment >= 0 && shared != reinterpret_cast<char*>(-1), "shared memory is to be had");
    shmctl(segment, IPC_RMID, nullptr);
    memset(shared, kContent, kBytes);
    for (size_t at = 0; at < kBytes; at += 8192) mprotect(shared + at, 4096, PROT_READ);
    expect(arm(site, ++nth) != 0, "the site is known");
    lose((std::string("shmdt, ") + site + ":" + std::to_string(nth)).c_str(), shared, true,
         [&] { shmdt(shared); });
  } while (rdmalloc_test::counter("stats.faults") != before && nth < 1000);
  arm(site, 0);
  expect(nth > 1 && nth < 1000, std::string(site) + " was met, and not for ever");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool is_opal = strcmp(argv[1], "opal") == 0, is_watched = strcmp(argv[2], "watched") == 0;
  if (strcmp(argv[2], "late") == 0) {
    dlopen(is_opal ? "libopen-pal.so.40" : "libucs.so.0", RTLD_NOW);
    expect(dlopen(RDMALLOC_LIBRARY, RTLD_NOW | RTLD_GLOBAL) != nullptr, "librdmalloc is loaded");
  }
  bool says_so = is_opal ? begin_opal() : begin_ucx();
  expect(says_so == is_watched, "the library was told whether rdmalloc watches");
  // Who patches libc looks for its text so, and must not find us in front of it.
  Dl_info place = {};
  expect(dladdr(dlsym(RTLD_DEFAULT, "munmap"), &place) != 0 &&
             strstr(place.dli_fname, "libc.so") != nullptr,
         "dlsym finds libc's munmap");
  lose_all(is_watched);
  if (is_watched) lose_in_a_canceled_thread();
  if (is_watched)
    for (const char* site : {"open_file", "read_file"}) lose_what_can_not_be_read(site);
  // What a library unmaps as it is closed, and after the watched one was.
  void* other = dlopen(UNMAPS_AT_END, RTLD_NOW);
  expect(other != nullptr, "the library that unmaps at its end is there");
  if (other == nullptr) return 1;
  char* block = map();
  *static_cast<void**>(dlsym(other, "to_unmap_at_end")) = block;
  *static_cast<size_t*>(dlsym(other, "to_unmap_at_end_bytes")) = kBytes;
  lose("munmap inside dlclose", block, is_watched, [&] { dlclose(other); });
  dlclose(library);
  if (is_watched) lose_all(is_watched);
  // Seen to fail, by 0, when AUTO told of libfabric's -EBUSY only.
  auto detach = find<decltype(&rdmalloc_notifier_detach)>("rdmalloc_notifier_detach");
  if (is_watched) expect(detach(RDMALLOC_NOTIFIER_AUTO) == -EBUSY, "who relies on us stays");
  rdmalloc_notifier_info info =
      rdmalloc_test::state_of(is_opal ? RDMALLOC_NOTIFIER_OPAL : RDMALLOC_NOTIFIER_UCX);
  expect((info.watches_foreign != 0) == is_watched, "the state says who watches");
  expect((info.foreign_notified >= 7) == is_watched, "and counts");
  return failures != 0;
}
