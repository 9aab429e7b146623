// Lives through random histories of the registration cache, each in a process of its own, until the
// time is over; the first that fails is shrunk and printed.
//
//   regcache_model [--seconds N] [--seed N [--tries N]] [--aimed] [--demand-heaps] [--demand-ends]
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "tests/model/book.h"
#include "tests/model/history.h"

#if defined(__SANITIZE_ADDRESS__)
// Books and notes are kept for ever, and memory of the library's that points at them is not looked
// at. NOLINTNEXTLINE(readability-identifier-naming,bugprone-reserved-identifier): the sanitizer's
// name.
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0";
}
#endif

namespace {

using model::History;

// More than the histories of an hour.
constexpr unsigned long long kSeedsOfRun = 1000000;
constexpr const char* kFirstSeed = "MODEL_FIRST_SEED";

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// How the process ended that lived through it. A silent one that hangs is ended.
bool succeeds(const History& history, bool is_silent) {
  *model::failure = nullptr;
  fflush(nullptr);
  pid_t process = fork();
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (is_silent) {
      alarm(20);
      if (freopen("/dev/null", "w", stderr) == nullptr) _exit(0);
    }
    model::live(history);
  }
  int status = 0;
  while (waitpid(process, &status, 0) < 0) {
  }
  bool is_good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!is_good && !is_silent)
    fprintf(stderr, "seed %llu: status 0x%x\n", static_cast<unsigned long long>(history.seed),
            static_cast<unsigned>(status));
  return is_good;
}

// Whether it fails once in so many tries, for the same reason.
bool fails(const History& history, const char* why, unsigned tries, double end) {
  while (tries-- != 0 && now() < end)
    if (!succeeds(history, true) && *model::failure == why) return true;
  return false;
}

// Leaves out what the failure does not need.
History shrunk(History history, const char* why, unsigned tries, double seconds) {
  double end = now() + seconds;
  for (std::size_t thread = 0; thread < history.threads.size(); ++thread) {
    History less = history;
    less.threads[thread].clear();
    if (fails(less, why, tries, end)) history = less;
  }
  std::size_t longest = 0;
  for (auto& thread : history.threads) longest = std::max(longest, thread.size());
  for (std::size_t length = longest / 2; length != 0 && now() < end; length /= 2) {
    for (std::size_t thread = 0; thread < history.threads.size(); ++thread) {
      for (std::size_t at = 0; at < history.threads[thread].size() && now() < end;) {
        History less = history;
        auto& operations = less.threads[thread];
        auto begin = operations.begin() + static_cast<std::ptrdiff_t>(at);
        operations.erase(
            begin, begin + static_cast<std::ptrdiff_t>(std::min(length, operations.size() - at)));
        if (fails(less, why, tries, end))
          history = less;
        else
          at += length;
      }
    }
  }
  return history;
}

unsigned long long number_after(int count, char** words, const char* name,
                                unsigned long long otherwise) {
  for (int i = 1; i + 1 < count; ++i)
    if (strcmp(words[i], name) == 0) return strtoull(words[i + 1], nullptr, 10);
  return otherwise;
}

bool has(int count, char** words, const char* name) {
  for (int i = 1; i < count; ++i)
    if (strcmp(words[i], name) == 0) return true;
  return false;
}

}  // namespace

int main(int count, char** words) {
  unsigned long long only = number_after(count, words, "--seed", 0);
  // A new one each time, unless it is given.
  unsigned long long seed =
      only != 0 ? only : static_cast<unsigned long long>(time(nullptr)) * kSeedsOfRun;
  // Read before main(), so all histories of a run have the same.
  if (getenv("RDMALLOC_DECAY_MS") == nullptr) {
    constexpr const char* kTopologies[] = {"one", "auto", "1x4", "2x2"};
    setenv("RDMALLOC_TOPOLOGY", kTopologies[seed / kSeedsOfRun % std::size(kTopologies)], 0);
    setenv("RDMALLOC_DECAY_MS", "0", 1);
    setenv("RDMALLOC_ARENA", "2G", 1);
    setenv("RDMALLOC_LOG", "quiet", 1);
    char text[30];
    snprintf(text, sizeof text, "%llu", seed);
    setenv(kFirstSeed, text, 1);
    execv("/proc/self/exe", words);
    perror("execv");
    return 1;
  }
  if (const char* first = getenv(kFirstSeed)) seed = strtoull(first, nullptr, 10);
  void* common = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (common == MAP_FAILED) return 1;
  model::failure = new (common) std::atomic<const char*>();
  double seconds = static_cast<double>(number_after(count, words, "--seconds", 20));
  unsigned long long tries = number_after(count, words, "--tries", only != 0 ? 200 : UINT64_MAX);
  const char* topology = getenv("RDMALLOC_TOPOLOGY");
  printf("seeds from %llu, RDMALLOC_TOPOLOGY=%s\n", seed, topology != nullptr ? topology : "auto");
  bool is_aimed = has(count, words, "--aimed");
  model::demands_heaps = has(count, words, "--demand-heaps");
  model::demands_ends = has(count, words, "--demand-ends");
  double end = now() + seconds;
  unsigned long long histories = 0, operations = 0;
  for (; histories < tries && (only != 0 || now() < end); ++histories) {
    History history = History::of_seed(only != 0 ? only : seed + histories, is_aimed);
    operations += history.operations();
    if (succeeds(history, false)) continue;
    const char* why = *model::failure;  // NULL: it crashed
    if (getenv("NOSHRINK") != nullptr) return 1;
    // As often as this one failed, and then three times.
    unsigned runs = 0, failures = 0;
    double until = now() + 30;
    while (runs < 100 && failures < 5 && now() < until) {
      ++runs;
      failures += !succeeds(history, true) && *model::failure == why;
    }
    unsigned needed = failures != 0 ? 3 * runs / failures + 1 : 0;
    fprintf(stderr, "again: %u of %u runs failed\n", failures, runs);
    if (failures != 0) history = shrunk(history, why, needed, 120);
    fprintf(stderr, "a history that fails, %zu operations:\n%s", history.operations(),
            history.text().c_str());
    for (unsigned i = 0; i < 4 * needed && succeeds(history, false); ++i) {
    }
    fprintf(stderr, "regcache_model --seed %llu lives through it again\n",
            static_cast<unsigned long long>(history.seed));
    return 1;
  }
  printf("%llu histories, %llu operations\n", histories, operations);
  return histories == 0;
}
