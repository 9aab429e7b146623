// Seen to fail: with the package left out, with the checkout left out, with the exit status of git
// not looked at, without the time of HEAD, and without --dirty.
#include "bench/support/build_of.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bench/support/process.h"

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;

// A folder with a file that is called a library.
struct Folder {
  Folder() {
    std::string name = fs::temp_directory_path() / "build_of_XXXXXX";
    path = mkdtemp(name.data());
    std::ofstream(library()) << "none";
  }
  ~Folder() { fs::remove_all(path); }
  fs::path library() const { return path / "libnone.so"; }
  std::string build() const { return build_of({"none", library().string(), {}}); }
  void git(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(),
                     {"git", "-C", path.string(), "-c", "user.name=a", "-c", "user.email=a@b"});
    Command command;
    command.arguments = std::move(arguments);
    ASSERT_TRUE(run(command).ok());
  }
  fs::path path;
};

TEST(BuildOf, a_library_of_debian_s_names_package_and_version) {
  if (find_program("dpkg-query").empty()) GTEST_SKIP() << "SKIP: no dpkg-query: not Debian";
  EXPECT_EQ(build_of({"glibc", "", {}}).rfind("libc6 2.", 0), 0);
  const fs::path library = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
  if (!fs::exists(library)) GTEST_SKIP() << "SKIP: no libjemalloc2";
  EXPECT_EQ(build_of({"jemalloc", library.string(), {}}).rfind("libjemalloc2 5.", 0), 0);
}

TEST(BuildOf, a_library_in_a_checkout_names_its_tag) {
  if (find_program("git").empty()) GTEST_SKIP() << "SKIP: no git here";
  const Folder folder;
  EXPECT_EQ(folder.build(), "");
  folder.git({"init", "-q"});
  folder.git({"commit", "-q", "--allow-empty", "-m", "one"});
  folder.git({"tag", "v1.2"});
  EXPECT_EQ(folder.build(), "git v1.2");
}

TEST(BuildOf, a_library_that_need_not_be_of_the_commit_is_not_called_so) {
  if (find_program("git").empty()) GTEST_SKIP() << "SKIP: no git here";
  const Folder folder;
  std::ofstream(folder.path / "source") << "one";
  folder.git({"init", "-q"});
  folder.git({"add", "source"});
  folder.git({"commit", "-q", "-m", "one"});
  folder.git({"tag", "v1.2"});
  fs::last_write_time(folder.library(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(folder.build(), "git v1.2 or before");
  fs::last_write_time(folder.library(), fs::file_time_type::clock::now());
  std::ofstream(folder.path / "source") << "another";
  EXPECT_EQ(folder.build(), "git v1.2-dirty");
}

}  // namespace
}  // namespace rdmalloc::bench
