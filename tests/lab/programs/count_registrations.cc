// SPDX-License-Identifier: BSD-3-Clause
//
// Preloaded under tests: counts the registrations that a process makes with verbs, by any caller
// that makes them, and passes each on. Defines the three symbols by which memory is registered and
// the one by which that ends, with libibverbs' own versions, so that it is found before the library
// also by what was loaded locally (UCX).
//
//   rdmalloc_lab_registrations()   successful ibv_reg_mr, _iova and _iova2 so far
//   rdmalloc_lab_watch(ptr, bytes) and rdmalloc_lab_watched(): how many of those that came since
//                                  overlapped what was watched then
//   RDMALLOC_LAB_COUNT=1           says both counts on standard error at exit
//   RDMALLOC_LAB_LOG=1             says each on standard error as it comes: process, address, bytes
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#undef ibv_reg_mr  // macros that choose between the functions
#undef ibv_reg_mr_iova

namespace {

// All relaxed: statistics.
std::atomic<unsigned long> registered{0}, deregistered{0}, watched{0};
std::atomic<uintptr_t> watched_begin{0}, watched_end{0};

// Where libibverbs is loaded locally RTLD_NEXT does not see it.
template <typename Function>
Function real(const char* name, const char* version) {
  static void* library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  void* found = library != nullptr ? dlvsym(library, name, version) : nullptr;
  if (found == nullptr) {
    fprintf(stderr, "count_registrations: libibverbs has no %s@%s\n", name, version);
    abort();
  }
  return reinterpret_cast<Function>(found);
}

// With no stdio and no malloc: who registers may hold a lock that these want.
void log(const char* what, const void* address, size_t length) {
  static const bool wanted = getenv("RDMALLOC_LAB_LOG") != nullptr;
  if (!wanted) return;
  char line[96];
  int bytes = snprintf(line, sizeof line, "%s %d %p %zu\n", what, getpid(), address, length);
  if (write(STDERR_FILENO, line, static_cast<size_t>(bytes)) < 0) return;
}

// libibverbs' ibv_reg_mr calls its own ibv_reg_mr_iova2 by name, which is ours.
thread_local bool is_inside = false;

template <typename Function, typename... Arguments>
ibv_mr* counted(Function next, ibv_pd* pd, void* address, size_t length, Arguments... arguments) {
  if (is_inside) return next(pd, address, length, arguments...);
  is_inside = true;
  ibv_mr* registration = next(pd, address, length, arguments...);
  is_inside = false;
  auto begin = reinterpret_cast<uintptr_t>(address);
  if (registration != nullptr) {
    registered.fetch_add(1, std::memory_order_relaxed);
    if (begin < watched_end.load(std::memory_order_relaxed) &&
        begin + length > watched_begin.load(std::memory_order_relaxed))
      watched.fetch_add(1, std::memory_order_relaxed);
  }
  log(registration != nullptr ? "registered" : "refused", address, length);
  return registration;
}

}  // namespace

extern "C" {

unsigned long rdmalloc_lab_registrations() {
  return registered.load(std::memory_order_relaxed);
}

void rdmalloc_lab_watch(const void* memory, size_t bytes) {
  watched_begin.store(reinterpret_cast<uintptr_t>(memory), std::memory_order_relaxed);
  watched_end.store(reinterpret_cast<uintptr_t>(memory) + bytes, std::memory_order_relaxed);
}

unsigned long rdmalloc_lab_watched() {
  return watched.load(std::memory_order_relaxed);
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  static auto next = real<decltype(&ibv_reg_mr)>("ibv_reg_mr", "IBVERBS_1.1");
  return counted(next, pd, address, length, access);
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) {
  static auto next = real<decltype(&ibv_reg_mr_iova)>("ibv_reg_mr_iova", "IBVERBS_1.7");
  return counted(next, pd, address, length, iova, access);
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                         unsigned int access) {
  static auto next = real<decltype(&ibv_reg_mr_iova2)>("ibv_reg_mr_iova2", "IBVERBS_1.8");
  return counted(next, pd, address, length, iova, access);
}

int ibv_dereg_mr(ibv_mr* registration) {
  static auto next = real<decltype(&ibv_dereg_mr)>("ibv_dereg_mr", "IBVERBS_1.1");
  const void* address = registration->addr;
  size_t length = registration->length;
  int error = next(registration);
  log("deregistered", address, length);
  if (error == 0) deregistered.fetch_add(1, std::memory_order_relaxed);
  return error;
}

}  // extern "C"

namespace {

__attribute__((destructor)) void say() {
  if (getenv("RDMALLOC_LAB_COUNT") != nullptr)
    fprintf(stderr, "count_registrations: %lu registered, %lu deregistered\n",
            registered.load(std::memory_order_relaxed),
            deregistered.load(std::memory_order_relaxed));
}

}  // namespace
