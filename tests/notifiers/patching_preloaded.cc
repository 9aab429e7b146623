// SPDX-License-Identifier: BSD-3-Clause
//
// Purging keeps out of libc's text while a library writes there, with librdmalloc.so preloaded and
// RDMALLOC_DECAY_MS=0: whatever is freed is purged at once.
//
//   patching_preloaded hold       text made writable: no purge until it is done
//   patching_preloaded says|mute  what is said once madvise is patched: RDMALLOC_NOTIFY decides
//   patching_preloaded cycles N   purges at 1 kHz through N initialisations and finalisations of
//                                 libfabric and UCX
//
// Seen to fail: all three with interpose/patching.cc left out of the library, `cycles` also with
// notifiers_hold() left out of dlopen and dlclose.
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdmalloc/notifier.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "tests/notifiers/preloaded.h"

namespace {

using rdmalloc_test::Churn;
using rdmalloc_test::expect;
using rdmalloc_test::failures;
using rdmalloc_test::open_or_skip;

rdmalloc_notifier_info state() {
  return rdmalloc_test::state_of(RDMALLOC_NOTIFIER_UCX);
}

int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000} + now.tv_nsec / 1000000;
}

struct Text {
  Text() {
    first = static_cast<unsigned char*>(dlsym(RTLD_DEFAULT, "madvise"));
    auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(first) & ~(page_bytes - 1));
  }
  void begin() const {
    expect(mprotect(page, kBytes, kWritable) == 0, "text can be made writable");
  }
  void end() const { expect(mprotect(page, kBytes, PROT_READ | PROT_EXEC) == 0, "and not again"); }
  static constexpr size_t kBytes = 4096;
  static constexpr int kWritable = PROT_READ | PROT_WRITE | PROT_EXEC;
  unsigned char* first;
  void* page;
};

void test_hold() {
  Text text;
  Churn churn;
  // The hold is of 100 ms; a round in which this thread was kept from running for longer shows
  // nothing, so another is tried. One of them must be quick enough, however loaded the machine.
  for (bool is_shown = false; !is_shown;) {
    Churn::wait_for_purges(20);
    uint64_t holds = state().holds;
    int64_t begin = now_ms();
    text.begin();
    uint64_t before = Churn::purges();
    usleep(20000);
    uint64_t after = Churn::purges();
    is_shown = now_ms() - begin < 80;
    text.end();
    expect(state().holds == holds + 1, "the hold is counted");
    if (is_shown) expect(after == before, "nothing is purged while text is writable");
  }
  // Elsewhere it makes no difference.
  uint64_t holds = state().holds;
  void* other = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(other, 4096, Text::kWritable);
  expect(state().holds == holds, "other pages may be made writable as one likes");
}

void test_says(bool is_said) {
  FILE* errors = tmpfile();
  if (errors == nullptr) return expect(false, "a temporary file");
  int before[] = {dup(1), dup(2)};
  // Both: descriptor 2 alone would be a file that is not standard error.
  for (int fd : {1, 2}) dup2(fileno(errors), fd);
  Text text;
  const unsigned char jump[] = {0x49, 0xbb};  // what OPAL and libfabric begin with on x86-64
  unsigned char original[sizeof jump];
  memcpy(original, text.first, sizeof jump);
  text.begin();
  memcpy(text.first, jump, sizeof jump);
  text.end();
  expect(state().is_madvise_patched != 0, "the state says that madvise is patched");
  text.begin();
  memcpy(text.first, original, sizeof jump);
  text.end();
  for (int fd : {1, 2}) dup2(before[fd - 1], fd);
  char said[4096] = {};
  rewind(errors);
  (void)!fread(said, 1, sizeof said - 1, errors);
  expect((strstr(said, "patched libc's madvise") != nullptr) == is_said, said);
  fclose(errors);
}

// A domain of libfabric's and a UCP context, made and taken down.
void cycle_libfabric() {
  fi_info* hints = fi_allocinfo();
  hints->fabric_attr->prov_name = strdup("tcp");
  hints->caps = FI_MSG;
  fi_info* info = nullptr;
  int error = fi_getinfo(FI_VERSION(1, 14), nullptr, nullptr, 0, hints, &info);
  fi_freeinfo(hints);
  if (error != 0) return expect(false, "libfabric has tcp");
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
  expect(fi_fabric(info->fabric_attr, &fabric, nullptr) == 0, "a fabric opens");
  expect(fi_domain(fabric, info, &domain, nullptr) == 0, "a domain opens");
  fi_close(&domain->fid);
  fi_close(&fabric->fid);
  fi_freeinfo(info);
}

void cycle_ucx() {
  void* ucp = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (ucp == nullptr) return expect(false, dlerror());
  // ucp_params_t begins with its mask of fields; 1, the first, are the features, and 1 is tags.
  uint64_t parameters[64] = {1, 1};
  void* context = nullptr;
  void* configuration = nullptr;
  using Read = int (*)(const char*, const char*, void**);
  using Init = int (*)(unsigned, unsigned, const uint64_t*, void*, void**);
  using Free = void (*)(void*);
  auto find = [&](const char* name) { return dlsym(ucp, name); };
  expect(reinterpret_cast<Read>(find("ucp_config_read"))(nullptr, nullptr, &configuration) == 0,
         "UCX reads its configuration");
  expect(reinterpret_cast<Init>(find("ucp_init_version"))(1, 10, parameters, configuration,
                                                          &context) == 0,
         "UCX initialises");
  reinterpret_cast<Free>(find("ucp_config_release"))(configuration);
  if (context != nullptr) reinterpret_cast<Free>(find("ucp_cleanup"))(context);
  dlclose(ucp);
}

void test_cycles(int count) {
  dlclose(open_or_skip("libucp.so.0", "UCX"));
  Churn churn;
  uint64_t begin = Churn::purges();
  for (int i = 0; i < count; i++) {
    Churn::wait_for_purges(20);  // so that each begins in the midst of them
    uint64_t holds = state().holds;
    if (i % 2 == 0) cycle_libfabric();
    cycle_ucx();
    expect(state().holds > holds, "purging was held");
  }
  printf("%d cycles, %llu purges, %llu holds\n", count,
         static_cast<unsigned long long>(Churn::purges() - begin),
         static_cast<unsigned long long>(state().holds));
}

}  // namespace

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  if (dlsym(RTLD_DEFAULT, "rdmalloc_ctl") == nullptr) {
    printf("librdmalloc.so must be preloaded\n");
    return 2;
  }
  if (strcmp(what, "hold") == 0) {
    test_hold();
  } else if (strcmp(what, "says") == 0 || strcmp(what, "mute") == 0) {
    test_says(strcmp(what, "says") == 0);
  } else if (strcmp(what, "cycles") == 0 && argc == 3) {
    test_cycles(atoi(argv[2]));
  } else {
    return 2;
  }
  return failures != 0;
}
