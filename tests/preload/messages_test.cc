// SPDX-License-Identifier: BSD-3-Clause
//
// Where messages go: to standard error, and nowhere else where that is closed or another file.
//
// Seen to fail with messages to descriptor 2 whatever it is; the fatal one with none to anything
// but standard error; the one of a pipe by SIGPIPE, and with exit code 5 where the signal was
// blocked and left pending.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace {

using rdmalloc_test::ChildOptions;
using rdmalloc_test::ChildResult;

class Messages : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/rdmalloc-messages-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  ChildResult run(const char* what, std::vector<std::string> more = {},
                  std::function<void()> before_exec = nullptr) {
    ChildOptions options;
    options.environment = {"LD_PRELOAD=" RDMALLOC_LIBRARY, "RDMALLOC_FAULT=thread_create:1"};
    options.environment.insert(options.environment.end(), more.begin(), more.end());
    options.before_exec = std::move(before_exec);
    return rdmalloc_test::run_child({MESSAGES, what, file()}, options);
  }
  std::string file() const { return folder_ + "/file"; }
  std::string text() const {
    std::ostringstream text;
    text << std::ifstream(file()).rdbuf();
    return text.str();
  }

 private:
  std::string folder_;
};

TEST_F(Messages, go_into_no_file_that_has_standard_errors_number) {
  for (const char* statistics : {"0", "1"}) {
    ChildResult result = run("data", {std::string("RDMALLOC_STATS=") + statistics});
    EXPECT_TRUE(result.clean()) << result.describe();
    EXPECT_EQ(text(), "");
    EXPECT_EQ(result.errors, "");
  }
}

// Only before an abort: a process that ends must say why.
TEST_F(Messages, go_there_all_the_same_where_the_process_ends_for_it) {
  ChildResult result = run("fatal");
  EXPECT_FALSE(result.clean());
  EXPECT_EQ(text().rfind("rdmalloc: ", 0), 0u) << text();
  EXPECT_EQ(text().find("warning"), std::string::npos) << text();
}

TEST_F(Messages, go_nowhere_where_standard_error_was_closed_at_the_start) {
  ChildResult result = run("data", {}, [] { close(2); });
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_EQ(text(), "");
}

TEST_F(Messages, go_into_a_log_that_output_and_errors_were_turned_to) {
  ChildResult result = run("log");
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_NE(text().find("rdmalloc: warning: the purge thread"), std::string::npos) << text();
}

void turn_errors_to_a_pipe_without_a_reader() {
  int ends[2];
  if (pipe(ends) != 0 || dup2(ends[1], 2) != 2) _exit(6);
  close(ends[0]);
  close(ends[1]);
  signal(SIGPIPE, SIG_DFL);
}

void allow_files_no_byte() {
  const rlimit none = {0, 0};
  if (setrlimit(RLIMIT_FSIZE, &none) != 0) _exit(7);
  signal(SIGXFSZ, SIG_DFL);
}

// RLIMIT_FSIZE. Seen to fail by SIGXFSZ, the warning in a log and the statistics in a file.
TEST_F(Messages, end_no_program_whose_files_may_be_no_longer) {
  for (const std::string& setting :
       {std::string("RDMALLOC_STATS=0"), std::string("RDMALLOC_STATS=1"),
        "RDMALLOC_STATS=" + file() + ".json"}) {
    ChildResult result = run("log", {setting}, allow_files_no_byte);
    EXPECT_TRUE(result.clean()) << setting << ": " << result.describe();
    EXPECT_EQ(text(), "");
  }
}

TEST_F(Messages, end_no_program_where_the_pipe_has_no_reader) {
  for (const char* setting : {"RDMALLOC_LOG=quiet", "RDMALLOC_DEKAY_MS=1", "RDMALLOC_STATS=1"}) {
    ChildResult result = run("pipe", {setting}, turn_errors_to_a_pipe_without_a_reader);
    EXPECT_TRUE(result.clean()) << setting << ": " << result.describe();
  }
}

}  // namespace
