// Seen to fail: without the loop that kills the tree in end_tree(); without note_end(); with the
// launcher left out of launched(); with the group not killed, at an end and at the limit; with
// SIGHUP not taken.
#include "bench/support/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

namespace rdmalloc::bench {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

Outcome shell(const std::string& script, milliseconds limit = milliseconds(20'000)) {
  Command command;
  command.arguments = {"sh", "-c", script};
  command.limit = limit;
  return run(command);
}

TEST(Process, output_error_and_exit_status_arrive) {
  const Outcome outcome = shell("echo out; echo err >&2; exit 7");
  EXPECT_EQ(outcome.standard_output, "out\n");
  EXPECT_EQ(outcome.standard_error, "err\n");
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_FALSE(outcome.ok());
}

TEST(Process, lines_arrive_whole_also_the_last_without_an_end) {
  Command command;
  command.arguments = {"sh", "-c", "printf 'a\\nb'; sleep 0.1; printf 'c\\nd'"};
  std::vector<std::string> lines;
  command.on_line = [&](std::string_view line) { lines.emplace_back(line); };
  EXPECT_TRUE(run(command).ok());
  EXPECT_EQ(lines, (std::vector<std::string>{"a", "bc", "d"}));
}

TEST(Process, a_signal_is_named) {
  const Outcome outcome = shell("kill -SEGV $$");
  EXPECT_EQ(outcome.signal, SIGSEGV);
  EXPECT_THAT(outcome.describe(), HasSubstr("Segmentation fault"));
}

TEST(Process, what_does_not_exist_is_said) {
  Command command;
  command.arguments = {"/nowhere/program"};
  EXPECT_THAT(run(command).describe(), HasSubstr("/nowhere/program"));
}

TEST(Process, the_environment_is_added_to_ours) {
  Command command;
  command.arguments = {"sh", "-c", "echo \"$HOME $ADDED\""};
  command.environment["ADDED"] = "yes";
  const char* home = std::getenv("HOME");
  EXPECT_EQ(run(command).standard_output, std::string(home != nullptr ? home : "") + " yes\n");
}

// Ended by its limit, once it has said a line: on a machine that is too busy for that it is given
// twice the time. What never comes is ended by the test's own limit.
Outcome at_limit(Command command) {
  command.limit = milliseconds(500);
  Outcome outcome = run(command);
  for (; outcome.timed_out && outcome.standard_output.empty(); outcome = run(command))
    command.limit *= 2;
  return outcome;
}

// Returns once the process runs no more. It is init's to reap: as a zombie it has ended.
void wait_for_end(pid_t process) {
  for (char state = '?'; state != 'Z' && !process_tree(process).empty();) {
    std::this_thread::sleep_for(milliseconds(20));
    FILE* stat = std::fopen(("/proc/" + std::to_string(process) + "/stat").c_str(), "r");
    if (stat == nullptr) continue;
    if (std::fscanf(stat, "%*d (%*[^)]) %c", &state) != 1) state = '?';
    std::fclose(stat);
  }
}

TEST(Process, the_limit_ends_grandchildren_in_groups_of_their_own) {
  Command command;
  // As Open MPI's launcher does: each child leads a session. It ignores SIGTERM on top.
  command.arguments = {
      "sh", "-c", "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.05; done' & wait"};
  pid_t grandchild = 0;
  command.on_line = [&](std::string_view line) {
    grandchild = std::atoi(std::string(line).c_str());
  };
  command.on_limit = [](pid_t pid) { return "tree of " + std::to_string(pid); };
  const Outcome outcome = at_limit(command);
  EXPECT_TRUE(outcome.timed_out);
  EXPECT_THAT(outcome.limit_report, HasSubstr("tree of"));
  ASSERT_GT(grandchild, 0);
  wait_for_end(grandchild);
}

TEST(Process, nothing_is_left_running_in_its_group) {
  const Outcome outcome = shell("sleep 100 >/dev/null 2>&1 & echo $!");
  EXPECT_TRUE(outcome.ok());
  const pid_t left = std::atoi(outcome.standard_output.c_str());
  ASSERT_GT(left, 0);
  wait_for_end(left);
}

// One that init has adopted is below the command no more, but in its group.
TEST(Process, the_limit_ends_an_orphan_in_its_group) {
  Command command;
  command.arguments = {"sh", "-c", "(sleep 100 >/dev/null 2>&1 & echo $!); exec sleep 100"};
  const Outcome outcome = at_limit(command);
  EXPECT_TRUE(outcome.timed_out);
  const pid_t orphan = std::atoi(outcome.standard_output.c_str());
  ASSERT_GT(orphan, 0);
  wait_for_end(orphan);
}

TEST(ProcessDeathTest, a_terminal_that_hangs_up_ends_the_running_command) {
  EXPECT_EXIT(
      {
        end_children_on_interrupt();
        std::thread hang_up([] {
          std::this_thread::sleep_for(milliseconds(200));
          kill(getpid(), SIGHUP);
        });
        const Outcome outcome = shell("sleep 20");
        hang_up.join();
        _exit(outcome.interrupted ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// What this process holds must not be taken for the child's.
class Launched : public testing::Test {
 protected:
  static constexpr std::size_t kBallastBytes = std::size_t{64} << 20;
  Launched() : ballast_(kBallastBytes, 'x') {}
  std::string ballast_;
};

TEST_F(Launched, peak_memory_is_that_of_the_program_alone) {
  Command command;
  command.arguments = {"true"};
  EXPECT_GE(run(command).peak_rss_kib, static_cast<long>(kBallastBytes / 1024))
      << "then no launcher is needed any more";
  command.launcher = BENCH_LAUNCH;
  const Outcome outcome = run(command);
  EXPECT_TRUE(outcome.ok()) << outcome.describe();
  EXPECT_GT(outcome.peak_rss_kib, 100);
  EXPECT_LT(outcome.peak_rss_kib, 8 * 1024);
}

TEST_F(Launched, peak_memory_is_what_the_program_says_of_itself) {
  Command command;
  command.arguments = {"sh", "-c", "grep VmHWM /proc/self/status; exec cat /proc/self/status"};
  command.launcher = BENCH_LAUNCH;
  const Outcome outcome = run(command);
  const std::size_t at = outcome.standard_output.rfind("VmHWM:");
  ASSERT_NE(at, std::string::npos);
  const long said = std::atol(outcome.standard_output.c_str() + at + 6);
  // The kernel counts a process's pages by processor (since Linux 6.2), each up to a batch behind
  // the sum, and getrusage(2) need not say the same as /proc: proc(5) calls it a scalability
  // optimization. Seen: 48 KiB less.
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  const long behind_kib =
      processors * std::max(32L, 2 * processors) * (sysconf(_SC_PAGESIZE) / 1024);
  EXPECT_GE(outcome.peak_rss_kib, said - behind_kib);
  // It went on for a moment after it looked.
  EXPECT_LE(outcome.peak_rss_kib, said + 2048);
}

TEST_F(Launched, the_programs_end_is_told_and_not_the_launchers) {
  Command command;
  command.launcher = BENCH_LAUNCH;
  command.arguments = {"sh", "-c", "exit 7"};
  EXPECT_EQ(run(command).exit_code, 7);
  command.arguments = {"sh", "-c", "kill -SEGV $$"};
  EXPECT_EQ(run(command).signal, SIGSEGV);
  command.arguments = {"/nowhere/program"};
  EXPECT_THAT(run(command).describe(), HasSubstr("/nowhere/program"));
  command.arguments = {"sleep", "100"};
  command.limit = milliseconds(300);
  EXPECT_TRUE(run(command).timed_out);
}

TEST_F(Launched, system_calls_are_counted) {
  Command command;
  command.launcher = BENCH_LAUNCH;
  command.calls_counted = CallsCounted::all;
  command.arguments = {"true"};
  const auto of_true = nlohmann::json::parse(run(command).launch_report).at("calls").get<long>();
  command.arguments = {"sh", "-c", "true; (:); (:)"};
  const Outcome more = run(command);
  EXPECT_TRUE(more.ok()) << more.describe();
  EXPECT_GT(of_true, 5);
  EXPECT_GT(nlohmann::json::parse(more.launch_report).at("calls").get<long>(), of_true);
}

TEST(Process, programs_are_found_in_PATH) {
  EXPECT_THAT(find_program("sh"), HasSubstr("/sh"));
  EXPECT_EQ(find_program("no-such-program"), "");
}

}  // namespace
}  // namespace rdmalloc::bench
