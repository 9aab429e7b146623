// Seen to fail: with is_served_by() always true; with a missing library put into `found`;
// with add_built_peers() looking at no folder below, and with a link that leads nowhere found as a
// library without a name; with whatever begins with "libc" taken for libc.
#include "bench/support/allocators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace rdmalloc::bench {
namespace {

using testing::HasSubstr;

TEST(Allocators, an_unknown_name_is_refused_with_the_names_there_are) {
  const AllocatorChoice choice = choose_allocators({.names = {"nomalloc"}});
  EXPECT_THAT(choice.error, HasSubstr("nomalloc"));
  EXPECT_THAT(choice.error, HasSubstr("mimalloc"));
}

TEST(Allocators, a_library_that_is_not_there_is_left_out_by_name) {
  const AllocatorChoice choice =
      choose_allocators({.names = {"glibc", "rdmalloc"}, .rdmalloc_library = "/nowhere/lib.so"});
  EXPECT_EQ(choice.error, "");
  ASSERT_EQ(choice.found.size(), 1u);
  EXPECT_EQ(choice.found[0].name, "glibc");
  ASSERT_EQ(choice.left_out.size(), 1u);
  EXPECT_EQ(choice.left_out[0].what, "rdmalloc");
  EXPECT_THAT(choice.left_out[0].why, HasSubstr("/nowhere/lib.so"));
}

TEST(Allocators, a_further_peer_needs_a_name_and_a_file) {
  EXPECT_THAT(choose_allocators({.names = {"glibc"}, .peers = {"/lib/x.so"}}).error,
              HasSubstr("NAME=PATH"));
  EXPECT_THAT(choose_allocators({.names = {"glibc"}, .peers = {"x=/nowhere/x.so"}}).error,
              HasSubstr("No such file"));
  EXPECT_THAT(choose_allocators({.names = {"glibc"}, .peers = {"glibc=/proc/self/exe"}}).error,
              HasSubstr("already"));
}

TEST(Allocators, peers_are_found_in_the_folders_where_they_were_built) {
  // A folder of its own: nothing that was there before is touched.
  std::string name = testing::TempDir() + "rdmalloc-peers-XXXXXX";
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const std::filesystem::path folder = name;
  std::filesystem::create_directories(folder / "build");
  std::ofstream(folder / "build" / "libsnmallocshim.so") << "x";
  AllocatorSearch search{.names = {"glibc"}, .peer_folders = {folder.string()}};
  const AllocatorChoice choice = choose_allocators(search);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(choice.error, "");
  ASSERT_EQ(choice.found.size(), 2u);
  EXPECT_EQ(choice.found[1].name, "snmalloc");
  EXPECT_THAT(choice.found[1].library, HasSubstr("build/libsnmallocshim.so"));
  EXPECT_EQ(choice.left_out.size(), built_peer_names().size() - 1);
  search.peer_folders = {"/nowhere"};
  EXPECT_THAT(choose_allocators(search).error, HasSubstr("/nowhere"));
}

// Without a library its column would be measured with libc's malloc.
TEST(Allocators, a_link_that_leads_nowhere_is_no_peer) {
  std::string name = testing::TempDir() + "rdmalloc-peers-XXXXXX";
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const std::filesystem::path folder = name;
  std::filesystem::create_directories(folder / "build");
  std::filesystem::create_symlink("nowhere.so", folder / "libsnmallocshim.so");
  std::filesystem::create_symlink("nowhere.so", folder / "librpmalloc.so");
  std::ofstream(folder / "build" / "librpmalloc.so") << "x";
  const AllocatorChoice choice =
      choose_allocators({.names = {"glibc"}, .peer_folders = {folder.string()}});
  std::filesystem::remove_all(folder);
  ASSERT_EQ(choice.found.size(), 2u);
  EXPECT_EQ(choice.found[1].name, "rpmalloc");
  EXPECT_THAT(choice.found[1].library, HasSubstr("build/librpmalloc.so"));
}

TEST(Allocators, mimalloc_3_is_known_by_its_library) {
  EXPECT_TRUE(is_mimalloc_3({"a", "/lib/libmimalloc.so.3.1", {}}));
  EXPECT_FALSE(is_mimalloc_3({"a", "/lib/libmimalloc.so.2.0", {}}));
  EXPECT_FALSE(is_mimalloc_3({"a", "/lib/libmimalloc.so.3.1", {{"MIMALLOC_PURGE_DELAY", "-1"}}}));
}

TEST(Allocators, a_label_must_match_what_serves_malloc) {
  const Allocator glibc{"glibc", "", {}};
  const Allocator other{"other", "/proc/self/exe", {}};
  EXPECT_FALSE(is_served_by(glibc, "/nowhere/libc.so.6"));
  EXPECT_FALSE(is_served_by(glibc, "/proc/self/exe"));
  EXPECT_FALSE(is_served_by(other, "/usr/bin/env"));
  // The label of libc's malloc: by the name of the file, of which there may be several.
  std::string name = testing::TempDir() + "rdmalloc-served-XXXXXX";
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  for (const auto& [file, is_libc] : {std::pair{"libc.so.6", true},
                                      {"libc-2.31.so", true},
                                      {"libclang_rt.scudo_standalone-x86_64.so", false}}) {
    std::ofstream(name + "/" + file) << "x";
    EXPECT_EQ(is_served_by(glibc, name + "/" + file), is_libc) << file;
  }
  std::filesystem::remove_all(name);
}

TEST(Allocators, settings_and_preload_reach_the_environment) {
  const Environment environment = preload_environment({"x", "/lib/x.so", {{"X_CONF", "1"}}});
  EXPECT_EQ(environment.at("LD_PRELOAD"), "/lib/x.so");
  EXPECT_EQ(environment.at("X_CONF"), "1");
  EXPECT_TRUE(preload_environment({"glibc", "", {}}).empty());
}

}  // namespace
}  // namespace rdmalloc::bench
