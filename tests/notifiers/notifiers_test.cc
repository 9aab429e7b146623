// SPDX-License-Identifier: BSD-3-Clause
//
// Notifiers on the libraries themselves. Attaching again was seen to fail (-EBUSY) while detach did
// not close the monitor's fid, and while libfabric was not initialised in between.
#include <dlfcn.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdmalloc/notifier.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "alloc/os/fault.h"

namespace {

rdmalloc_notifier_info state_of(rdmalloc_notifier which) {
  rdmalloc_notifier_info info = {};
  info.size = sizeof info;
  EXPECT_EQ(rdmalloc_notifier_state(which, &info), 0);
  return info;
}

// Frees something large and gives it back to the kernel: at least one range is told.
void purge_something() {
  void* block = rdmalloc_malloc(8u << 20u);
  ASSERT_NE(block, nullptr);
  memset(block, 1, 8u << 20u);
  rdmalloc_free(block);
  ASSERT_GT(rdmalloc_purge(0), 0);
}

// libfabric's own initialisation, which the import does not do.
void initialise_libfabric() {
  fi_info* info = nullptr;
  if (fi_getinfo(FI_VERSION(1, 9), nullptr, nullptr, 0, nullptr, &info) == 0) fi_freeinfo(info);
}

TEST(Notifiers, library_that_is_not_loaded_is_named_and_left_alone) {
  EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_OPAL), -ENOENT);
  EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_UCX), -ENOENT);
  EXPECT_EQ(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_UCX), -ENOENT);
  EXPECT_STREQ(state_of(RDMALLOC_NOTIFIER_UCX).explanation, "its library is not loaded");
}

TEST(Notifiers, bad_arguments_are_refused) {
  EXPECT_EQ(rdmalloc_notifier_attach(static_cast<rdmalloc_notifier>(77)), -EINVAL);
  EXPECT_EQ(rdmalloc_notifier_detach(static_cast<rdmalloc_notifier>(77)), -EINVAL);
  rdmalloc_notifier_info info = {};
  EXPECT_EQ(rdmalloc_notifier_state(RDMALLOC_NOTIFIER_UCX, &info), -EINVAL);
  info.size = sizeof info;
  EXPECT_EQ(rdmalloc_notifier_state(RDMALLOC_NOTIFIER_AUTO, &info), -EINVAL);
  EXPECT_EQ(rdmalloc_notifier_state(RDMALLOC_NOTIFIER_UCX, nullptr), -EINVAL);
}

TEST(Notifiers, libfabric_attaches_late_detaches_and_attaches_again) {
  initialise_libfabric();
  for (uint64_t round = 0; round < 50; round++) {
    EXPECT_EQ(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).attaches, round);
    ASSERT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), 0) << round;
    EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), -EALREADY);
    EXPECT_TRUE(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).is_attached);
    // Before start() libfabric's list is not there: a notification would crash in 1.17.
    purge_something();
    EXPECT_EQ(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).notified, 0U);
    ASSERT_EQ(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_LIBFABRIC), 0) << round;
  }
  EXPECT_EQ(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_LIBFABRIC), -ENOENT);
}

// Fails when attach() goes on with a libfabric that a dlclose() may unmap, or keeps the cache's fid
// after a refused import: the next one is refused too.
TEST(Notifiers, I10_an_attach_that_fails_is_undone_and_can_be_tried_again) {
  using rdmalloc::os::Site;
  initialise_libfabric();
  struct Failure {
    Site site;
    uint64_t nth;
    int expected;
  };
  for (const Failure& one :
       {Failure{Site::kOpenLibrary, 1, -ENOTSUP}, Failure{Site::kFindFunction, 1, -ENOTSUP},
        Failure{Site::kOpenLibrary, 2, -ENOMEM}, Failure{Site::kImportMonitor, 1, -ENOTSUP},
        Failure{Site::kImportMonitor, 2, -EBUSY}}) {
    SCOPED_TRACE(std::string(site_name(one.site)) + ":" + std::to_string(one.nth));
    uint64_t fired = rdmalloc::os::faults_fired();
    rdmalloc::os::arm_fault(one.site, one.nth);
    EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), one.expected);
    rdmalloc::os::arm_fault(one.site, 0);
    EXPECT_EQ(rdmalloc::os::faults_fired(), fired + 1);
    EXPECT_FALSE(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).is_attached);
    EXPECT_EQ(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).error, one.expected);
    EXPECT_EQ(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_LIBFABRIC), -ENOENT);
    purge_something();
    EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), 0);
    EXPECT_EQ(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_LIBFABRIC), 0);
  }
}

// Fails when detach() forgets the monitor before libfabric has: no program can import any more; and
// when AUTO leaves out libfabric's error.
TEST(Notifiers, I10_a_monitor_that_libfabric_does_not_give_up_stays_attached) {
  initialise_libfabric();
  for (rdmalloc_notifier which : {RDMALLOC_NOTIFIER_LIBFABRIC, RDMALLOC_NOTIFIER_AUTO}) {
    for (uint64_t nth : {1u, 2u}) {  // the cache's fid, the monitor
      ASSERT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), 0);
      rdmalloc::os::arm_fault(rdmalloc::os::Site::kCloseMonitor, nth);
      EXPECT_EQ(rdmalloc_notifier_detach(which), -EBUSY) << which;
      EXPECT_TRUE(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).is_attached);
      EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), -EALREADY);
      purge_something();
      EXPECT_EQ(rdmalloc_notifier_detach(which), 0);
    }
  }
  EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), 0);
  EXPECT_EQ(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_LIBFABRIC), 0);
}

// Another importer, as Open MPI is one.
int nothing(fid_mem_monitor*) {
  return 0;
}
void nothing_stop(fid_mem_monitor*) {}
int nothing_subscribe(fid_mem_monitor*, const void*, size_t) {
  return 0;
}
void nothing_unsubscribe(fid_mem_monitor*, const void*, size_t) {}
bool nothing_valid(fid_mem_monitor*, const void*, size_t) {
  return true;
}

TEST(Notifiers, libfabric_with_another_importer_is_busy_and_hooks_are_used) {
  initialise_libfabric();
  fid* cache = nullptr;
  ASSERT_EQ(fi_open(FI_VERSION(1, 13), "mr_cache", nullptr, 0, 0, &cache, nullptr), 0);
  fi_ops_mem_monitor operations = {sizeof operations,   nothing,
                                   nothing_stop,        nothing_subscribe,
                                   nothing_unsubscribe, nothing_valid};
  fid_mem_monitor other = {};
  other.fid.fclass = FI_CLASS_MEM_MONITOR;
  other.export_ops = &operations;
  ASSERT_EQ(fi_import_fid(cache, &other.fid, 0), 0);
  EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), -EBUSY);
  rdmalloc_notifier_info info = state_of(RDMALLOC_NOTIFIER_LIBFABRIC);
  EXPECT_EQ(info.error, -EBUSY);
  EXPECT_FALSE(info.is_attached);
  EXPECT_TRUE(info.calls_libc);
  // Once the other has gone, the slot is free.
  fi_close(cache);
  fi_close(&other.fid);
  EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), 0);
  EXPECT_EQ(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_LIBFABRIC), 0);
}

TEST(Notifiers, override_in_the_environment_is_recognised) {
  setenv("FI_MR_CACHE_MONITOR", "memhooks", 1);
  ASSERT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_LIBFABRIC), 0);
  EXPECT_NE(strstr(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).explanation, "FI_MR_CACHE_MONITOR"),
            nullptr);
  EXPECT_TRUE(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).calls_libc);
}

TEST(Notifiers, ucx_is_notified_of_each_purge) {
  void* ucp = dlopen("libucp.so.0", RTLD_NOW);
  if (ucp == nullptr) {
    const std::string error = dlerror();
    ASSERT_NE(error.find("No such file or directory"), std::string::npos) << error;
    GTEST_SKIP() << "SKIP: no UCX here: " << error;
  }
  ASSERT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_UCX), 0);
  EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_UCX), -EALREADY);
  uint64_t before = state_of(RDMALLOC_NOTIFIER_UCX).notified;
  purge_something();
  uint64_t after = state_of(RDMALLOC_NOTIFIER_UCX).notified;
  EXPECT_GT(after, before);
  ASSERT_EQ(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_UCX), 0);
  purge_something();
  EXPECT_EQ(state_of(RDMALLOC_NOTIFIER_UCX).notified, after);
}

// What OPAL passes on, seen by a callback registered with it, as libfabric's import by Open MPI is.
struct Seen {
  int calls = 0, others = 0;
  char* base = nullptr;
  size_t length = 0;
};
void see(void* address, size_t length, void* arg, bool) {
  auto* seen = static_cast<Seen*>(arg);
  // Not the page by which the first purge finds out that the kernel takes pages away.
  if (!rdmalloc_owns(address)) {
    seen->others++;
    return;
  }
  seen->calls++;
  seen->base = static_cast<char*>(address);
  seen->length = length;
}

TEST(Notifiers, opal_passes_on_notifications) {
  void* opal = dlopen("libopen-pal.so.40", RTLD_NOW);
  if (opal == nullptr) {
    const std::string error = dlerror();
    ASSERT_NE(error.find("No such file or directory"), std::string::npos) << error;
    GTEST_SKIP() << "SKIP: no Open MPI 4 here: " << error;
  }
  using Register = int (*)(void (*)(void*, size_t, void*, bool), void*);
  auto watch = reinterpret_cast<Register>(dlsym(opal, "opal_mem_hooks_register_release"));
  auto support = reinterpret_cast<void (*)(int)>(dlsym(opal, "opal_mem_hooks_set_support"));
  auto initialise = reinterpret_cast<int (*)()>(dlsym(opal, "opal_mem_hooks_init"));
  ASSERT_TRUE(watch != nullptr && support != nullptr && initialise != nullptr);
  initialise();
  support(7);
  Seen seen;
  ASSERT_EQ(watch(see, &seen), 0);
  ASSERT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_OPAL), 0);
  purge_something();
  EXPECT_GT(seen.calls, 0);
  EXPECT_LE(seen.others, 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(seen.base) % 65536, 0U);
  EXPECT_GT(seen.length, 0U);
  // AUTO leaves libfabric to Open MPI, whose import may come later.
  EXPECT_EQ(rdmalloc_notifier_attach(RDMALLOC_NOTIFIER_AUTO), 0);
  EXPECT_FALSE(state_of(RDMALLOC_NOTIFIER_LIBFABRIC).is_attached);
  ASSERT_EQ(rdmalloc_notifier_detach(RDMALLOC_NOTIFIER_OPAL), 0);
}

}  // namespace
