// SPDX-License-Identifier: BSD-3-Clause
//
// I10: initialisation and its end, in any order and number. I14: what a caller does wrong is an
// error code, never the end of the process. Seen to fail: with a last rdmalloc_fini() that does not
// look whether another thread's rdmalloc_init() found the purge thread still there.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "alloc/purge/purge.h"
#include "tests/support/counters.h"
#include "tests/support/observer.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::thread_count;
using rdmalloc_test::wait_until;

constexpr size_t kMiB = size_t{1} << 20u;

// Sanitizers have threads of their own, some from the first std::thread on: only differences to
// after that are looked at.
int threads_before() {
  std::thread([] {}).join();
  usleep(20000);  // a joined thread is counted a little longer
  return thread_count();
}

TEST(LifeCycle, I10_init_and_fini_a_thousand_times_leave_no_thread_behind) {
  int before = threads_before();
  for (int round = 0; round < 1000; round++) {
    ASSERT_EQ(rdmalloc_init(), 0) << round;
    void* block = rdmalloc_malloc(100000);
    memset(block, 1, 100000);
    ASSERT_EQ(rdmalloc_fini(), 0) << round;
    rdmalloc_free(block);  // after the end
  }
  wait_until([before] { return thread_count() <= before; });
}

TEST(LifeCycle, I10_init_is_counted) {
  int before = threads_before();
  ASSERT_EQ(rdmalloc_init(), 0);
  ASSERT_EQ(rdmalloc_init(), 0);
  EXPECT_EQ(counter("stats.purge_thread_runs"), 1u);
  ASSERT_EQ(rdmalloc_fini(), 0);
  EXPECT_EQ(counter("stats.purge_thread_runs"), 1u) << "ended by the first of two fini";
  ASSERT_EQ(rdmalloc_fini(), 0);
  EXPECT_EQ(counter("stats.purge_thread_runs"), 0u);
  wait_until([before] { return thread_count() <= before; });
}

TEST(LifeCycle, I10_fini_without_init_is_harmless) {
  for (int i = 0; i < 1000; i++) EXPECT_EQ(rdmalloc_fini(), -EALREADY);
  ASSERT_EQ(rdmalloc_init(), 0);
  ASSERT_EQ(rdmalloc_fini(), 0);
  EXPECT_EQ(rdmalloc_fini(), -EALREADY);
  rdmalloc_free(rdmalloc_malloc(100));
}

// Most values have several causes, by the headers. Seen to fail: "nothing to undo" of a domain that
// was lost before, "not rdmalloc's" of memory that can't be adopted since it is.
TEST(LifeCycle, the_sentence_of_an_error_fits_all_its_causes) {
  struct Sentence {
    int error;
    const char *has, *has_not;
  };
  for (Sentence one : {Sentence{-EALREADY, "already", "undo"},
                       {-EFAULT, "another owner", "not rdmalloc's"},
                       {-ENODEV, "gone", "success"},
                       {-EMFILE, "pools", "success"},
                       {-ECHILD, "fork", "errno"},
                       {-ENOENT, "adopted", "success"},
                       {-EAGAIN, "buffers", "success"},
                       {-EMSGSIZE, "buffer", "success"}}) {
    std::string text = rdmalloc_strerror(one.error);
    EXPECT_NE(text.find(one.has), std::string::npos) << text;
    EXPECT_EQ(text.find(one.has_not), std::string::npos) << text;
  }
}

TEST(LifeCycle, I10_threads_that_init_and_fini_at_once) {
  int before = threads_before();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; t++) {
    threads.emplace_back([] {
      for (int i = 0; i < 200; i++) {
        ASSERT_EQ(rdmalloc_init(), 0);
        rdmalloc_free(rdmalloc_malloc(static_cast<size_t>(i) * 1000));
        ASSERT_EQ(rdmalloc_fini(), 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  wait_until([before] { return thread_count() <= before; });
  EXPECT_EQ(rdmalloc_fini(), -EALREADY);
}

// The thread stands still in an observer, so that the end waits for it.
TEST(LifeCycle, I10_an_init_beside_the_last_fini_has_a_purge_thread) {
  uint64_t decay_ms = 1, was = counter("purge.decay_ms");
  ASSERT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &decay_ms, sizeof decay_ms), 0);
  std::atomic<bool> is_inside{false}, may_leave{false};
  ASSERT_EQ(rdmalloc_init(), 0);
  rdmalloc_test::Observer observer([&](char*, size_t) {
    is_inside = true;
    while (!may_leave) usleep(1000);
    return 0;
  });
  ASSERT_EQ(observer.added(), 0);
  rdmalloc_free(memset(rdmalloc_malloc(8 * kMiB), 1, 8 * kMiB));
  wait_until([&] { return is_inside.load(); });
  std::thread other([] { EXPECT_EQ(rdmalloc_fini(), 0); });
  wait_until([] { return counter("stats.purge_thread_runs") == 0; });
  EXPECT_EQ(rdmalloc_init(), 0);
  may_leave = true;
  other.join();
  EXPECT_EQ(counter("stats.purge_thread_runs"), 1u);
  EXPECT_EQ(rdmalloc_fini(), 0);
  EXPECT_EQ(counter("stats.purge_thread_runs"), 0u);
  ASSERT_EQ(observer.remove(), 0);
  ASSERT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &was, sizeof was), 0);
}

// It stands in an observer as it is told to end, has nothing to do afterwards, and no call wakes
// it: three times, of which the first may find it between two ticks. Seen to hang, in the second,
// where it does not look whether it is to end between saying that it sleeps and sleeping.
TEST(LifeCycle, I10_a_fini_amid_the_last_purge_ends_the_thread) {
  uint64_t decay_ms = 0, was = counter("purge.decay_ms");
  ASSERT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &decay_ms, sizeof decay_ms), 0);
  std::atomic<bool> is_inside{false}, may_leave{false};
  rdmalloc_test::Observer observer([&](char*, size_t) {
    is_inside = true;
    while (!may_leave) usleep(1000);
    return 0;
  });
  for (int round = 0; round < 3; round++) {
    is_inside = may_leave = false;
    ASSERT_EQ(rdmalloc_init(), 0);
    usleep(200000);  // then it sleeps without a limit: else this proves less
    rdmalloc_free(memset(rdmalloc_malloc(kMiB), 1, kMiB));
    wait_until([&] { return is_inside.load(); });
    std::atomic<pid_t> thread{0};
    std::thread other([&] {
      thread = gettid();
      EXPECT_EQ(rdmalloc_fini(), 0);
    });
    wait_until([] { return counter("stats.purge_thread_runs") == 0; });
    wait_until([&] { return rdmalloc_test::is_asleep(thread); });
    may_leave = true;
    other.join();
  }
  ASSERT_EQ(observer.remove(), 0);
  ASSERT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &was, sizeof was), 0);
}

// Every clone fails from here on, as under a full pids cgroup.
void forbid_threads() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
  };
  sock_fprog filter = {sizeof program / sizeof program[0], program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) _exit(9);
}

TEST(LifeCycle, I10_a_refused_purge_thread_means_manual_mode_and_one_warning) {
  int words[2];
  ASSERT_EQ(pipe(words), 0);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(words[1], 1);  // both, or it would be a file that is not standard error
    dup2(words[1], 2);
    forbid_threads();
    if (rdmalloc_init() != -EAGAIN) _exit(1);
    if (rdmalloc_init() != -EAGAIN) _exit(2);  // it can be tried again
    for (int i = 0; i < 100; i++) {            // and malloc works, with the ceiling passed
      void* block = rdmalloc_malloc(64 * kMiB);
      if (block == nullptr) _exit(3);
      memset(block, 1, i < 20 ? 64 * kMiB : 4096);
      rdmalloc_free(block);
    }
    if (rdmalloc_purge(0) <= 0) _exit(4);
    uint64_t failures = 0;
    size_t size = sizeof failures;
    rdmalloc_ctl("stats.purge_thread_failures", &failures, &size, nullptr, 0);
    if (failures == 0) _exit(5);
    _exit(0);
  }
  close(words[1]);
  std::string told;
  char buffer[512];
  for (ssize_t got; (got = read(words[0], buffer, sizeof buffer)) > 0;)
    told.append(buffer, static_cast<size_t>(got));
  close(words[0]);
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << " " << told;
  size_t warnings = 0;
  for (size_t at = 0; (at = told.find("rdmalloc: ", at)) != std::string::npos; at++) warnings++;
  EXPECT_EQ(warnings, 1u) << told;
}

// Where the program's own thread finds no room. Fails when the pause meanwhile has no end.
TEST(LifeCycle, a_purge_thread_that_makes_way_leaves_no_pause) {
  ASSERT_EQ(rdmalloc_init(), 0);
  ASSERT_TRUE(rdmalloc::purge_counters().thread_runs);
  rdmalloc_test::wait_until(rdmalloc::purge_thread_make_way);
  EXPECT_FALSE(rdmalloc::purge_counters().thread_runs);
  EXPECT_GE(rdmalloc_purge(0), 0);
  EXPECT_EQ(rdmalloc_fini(), 0);
}

// The caller of pthread_create() may hold what the observer of a purge under way waits for. Seen to
// hang where the thread is told to end before the purge is over.
TEST(LifeCycle, I2_a_purge_thread_in_an_observer_does_not_make_way) {
  uint64_t decay_ms = 1, was = counter("purge.decay_ms");
  ASSERT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &decay_ms, sizeof decay_ms), 0);
  ASSERT_EQ(rdmalloc_init(), 0);
  std::mutex callers;
  std::atomic<bool> is_inside{false};
  rdmalloc_test::Observer observer([&](char*, size_t) {
    is_inside = true;
    std::lock_guard guard(callers);
    return 0;
  });
  ASSERT_EQ(observer.added(), 0);
  {
    std::lock_guard guard(callers);
    rdmalloc_free(memset(rdmalloc_malloc(8 * kMiB), 1, 8 * kMiB));
    wait_until([&] { return is_inside.load(); });
    EXPECT_FALSE(rdmalloc::purge_thread_make_way());
    EXPECT_TRUE(rdmalloc::purge_counters().thread_runs);
  }
  EXPECT_EQ(rdmalloc_fini(), 0);
  ASSERT_EQ(observer.remove(), 0);
  ASSERT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &was, sizeof was), 0);
}

TEST(LifeCycle, I14_settings_and_counters_refuse_what_is_wrong) {
  uint64_t value = 0;
  size_t size = sizeof value;
  EXPECT_EQ(rdmalloc_ctl("no.such.name", &value, &size, nullptr, 0), -ENOENT);
  EXPECT_EQ(rdmalloc_ctl("", &value, &size, nullptr, 0), -ENOENT);
  EXPECT_EQ(rdmalloc_ctl(std::string(100000, 'x').c_str(), &value, &size, nullptr, 0), -ENOENT);
  EXPECT_EQ(rdmalloc_ctl(nullptr, &value, &size, nullptr, 0), -EINVAL);
  size = 3;
  EXPECT_EQ(rdmalloc_ctl("stats.dirty_bytes", &value, &size, nullptr, 0), -EINVAL);
  EXPECT_EQ(rdmalloc_ctl("stats.dirty_bytes", &value, nullptr, nullptr, 0), -EINVAL);
  value = 1;
  EXPECT_EQ(rdmalloc_ctl("stats.dirty_bytes", nullptr, nullptr, &value, sizeof value), -EPERM);
  EXPECT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &value, 3), -EINVAL);
  value = UINT64_MAX;
  EXPECT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &value, sizeof value), -EINVAL);
  EXPECT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, nullptr, 0), 0);
}

TEST(LifeCycle, I14_settings_are_read_back_as_they_were_set) {
  uint64_t old_value = 0;
  size_t size = sizeof old_value;
  uint64_t value = 1234;
  ASSERT_EQ(rdmalloc_ctl("purge.decay_ms", &old_value, &size, &value, sizeof value), 0);
  EXPECT_EQ(counter("purge.decay_ms"), 1234u);
  rdmalloc_test::set("purge.decay_ms", old_value);
  EXPECT_EQ(counter("purge.decay_ms"), old_value);
}

TEST(LifeCycle, I14_statistics_in_each_format_and_into_a_closed_file) {
  for (int format : {RDMALLOC_STATS_TEXT, RDMALLOC_STATS_JSON, RDMALLOC_STATS_PROMETHEUS}) {
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    EXPECT_EQ(rdmalloc_stats_print(pipe_ends[1], static_cast<rdmalloc_stats_format>(format)), 0);
    close(pipe_ends[1]);
    char text[65536];
    ssize_t length = read(pipe_ends[0], text, sizeof text);
    close(pipe_ends[0]);
    ASSERT_GT(length, 0);
    std::string all(text, static_cast<size_t>(length));
    EXPECT_NE(all.find("dirty_bytes"), std::string::npos) << all;
    if (format == RDMALLOC_STATS_JSON) {
      EXPECT_EQ(all.front(), '{');
      EXPECT_EQ(all.find_last_of('}'), all.find_last_not_of(" \n"));
    }
  }
  EXPECT_EQ(rdmalloc_stats_print(1, static_cast<rdmalloc_stats_format>(99)), -EINVAL);
  EXPECT_EQ(rdmalloc_stats_print(-1, RDMALLOC_STATS_TEXT), -EBADF);
}

TEST(LifeCycle, I14_every_error_has_words) {
  for (int error : {0, -EINVAL, -ENOMEM, -EBUSY, -EDEADLK, -ENOENT, -EPERM, -ENOSPC, -99999, 99999,
                    INT32_MIN, INT32_MAX}) {
    const char* words = rdmalloc_strerror(error);
    ASSERT_NE(words, nullptr) << error;
    EXPECT_NE(*words, 0) << error;
  }
  EXPECT_STREQ(rdmalloc_version(), std::to_string(RDMALLOC_VERSION_MAJOR)
                                       .append(".")
                                       .append(std::to_string(RDMALLOC_VERSION_MINOR))
                                       .append(".")
                                       .append(std::to_string(RDMALLOC_VERSION_PATCH))
                                       .c_str());
}

}  // namespace
