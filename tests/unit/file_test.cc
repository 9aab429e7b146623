// SPDX-License-Identifier: BSD-3-Clause
//
// Small files of /proc, read by raw system calls: whatever fails, no descriptor stays open. Seen to
// fail with each close_file() and SYS_close of alloc/os/file.cc left out.
#include "alloc/os/file.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "alloc/os/fault.h"

namespace {

using rdmalloc::os::Site;

// What this process has open, but for the folder that tells.
int open_files() {
  int count = 0;
  rdmalloc::os::each_open_file([](int, const char*, void* to) { ++*static_cast<int*>(to); },
                               &count);
  return count;
}

bool is_known(const char*) {
  return true;
}
int strangers() {
  return rdmalloc::os::threads_but_those(is_known);
}
int named() {
  return rdmalloc::os::threads_named("no such name");
}
int listed() {
  return rdmalloc::os::each_open_file([](int, const char*, void*) {}, nullptr);
}
int read_one() {
  char text[64];
  return rdmalloc::os::read_file("/proc/self/comm", text) != 0 ? 0 : -1;
}

struct Failure {
  int (*call)();
  Site site;
  uint64_t nth;
  int answer;
};

TEST(Files, of_proc_are_closed_whatever_fails) {
  const int before = open_files();
  ASSERT_GT(before, 0);
  // The first thread's name is not asked for: that is the second file, of a process of one thread.
  const Failure failures[] = {
      {strangers, Site::kOpenFile, 0, 0},     {strangers, Site::kOpenFile, 1, -1},
      {strangers, Site::kListFiles, 1, -1},   {strangers, Site::kListFiles, 2, -1},
      {strangers, Site::kReadFile, 1, 0},     {named, Site::kReadFile, 0, 0},
      {named, Site::kReadFile, 1, 0},         {named, Site::kOpenFile, 2, 0},
      {named, Site::kListFiles, 2, 0},        {listed, Site::kReadLink, 0, 0},
      {listed, Site::kReadLink, 1, 0},        {listed, Site::kOpenFile, 1, -EMFILE},
      {listed, Site::kListFiles, 1, -ENOMEM}, {listed, Site::kListFiles, 2, -ENOMEM},
      {read_one, Site::kReadFile, 0, 0},      {read_one, Site::kReadFile, 1, -1},
  };
  for (const Failure& one : failures) {
    SCOPED_TRACE(&one - failures);
    uint64_t fired = rdmalloc::os::faults_fired();
    rdmalloc::os::arm_fault(one.site, one.nth);
    EXPECT_EQ(one.call(), one.answer);
    rdmalloc::os::arm_fault(one.site, 0);
    EXPECT_EQ(rdmalloc::os::faults_fired() - fired, one.nth != 0 ? 1u : 0u);
    EXPECT_EQ(open_files(), before);
  }
}

TEST(Files, made_anew_are_closed_and_made_once) {
  const int before = open_files();
  std::string folder = testing::TempDir() + "rdmalloc-files-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/file";
  EXPECT_EQ(rdmalloc::os::make_file(file.c_str()), 0);
  EXPECT_EQ(open_files(), before);
  EXPECT_EQ(rdmalloc::os::make_file(file.c_str()), -EEXIST);
  EXPECT_EQ(open_files(), before);
  std::filesystem::remove_all(folder);
}

// Seen to fail with the low number left open beside the high one.
TEST(Files, moved_away_leave_their_number) {
  const int before = open_files();
  for (uint64_t nth : {uint64_t{0}, uint64_t{1}}) {
    const int fd = rdmalloc::os::open_to_read("/proc/self/comm");
    ASSERT_GE(fd, 0);
    rdmalloc::os::arm_fault(Site::kMoveDescriptor, nth);
    const int moved = rdmalloc::os::moved_away(fd);
    rdmalloc::os::arm_fault(Site::kMoveDescriptor, 0);
    EXPECT_EQ(moved == fd, nth != 0);
    EXPECT_EQ(open_files(), before + 1);
    rdmalloc::os::close_file(moved);
    EXPECT_EQ(open_files(), before);
  }
}

}  // namespace
