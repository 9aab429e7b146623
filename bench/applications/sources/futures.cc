// application_futures THREADS TASKS: a pool of C++ threads that are given tasks and give futures
// back, as services and build systems use them: every task, its closure, its result and its error
// is an allocation in one thread that ends in another.
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/marks.h"

namespace {

using rdmalloc::bench::Mark, rdmalloc::bench::mark;

class Pool {
 public:
  explicit Pool(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    filled_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  template <typename Work>
  auto give(Work work) {
    auto task = std::make_shared<std::packaged_task<std::invoke_result_t<Work>()>>(std::move(work));
    auto result = task->get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.emplace_back([task] { (*task)(); });
    }
    filled_.notify_one();
    return result;
  }

 private:
  void work() {
    mark(Mark::begin);
    for (unsigned long done = 0;; ++done) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        filled_.wait(lock, [this] { return ended_ || !tasks_.empty(); });
        if (tasks_.empty()) return mark(Mark::end, done);
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<std::function<void()>> tasks_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

using Record = std::map<std::string, std::vector<std::string>>;

// Takes a request apart and makes an answer, as a service does.
Record answer(const std::string& request) {
  Record record;
  std::string word;
  for (const char letter : request) {
    if (letter != ' ') {
      word += letter;
      continue;
    }
    record[word.substr(0, 3)].push_back(word + " with what was found about it");
    word.clear();
  }
  return record;
}

std::string request_of(std::size_t number) {
  std::string request;
  for (std::size_t i = 0; i < 24; ++i)
    request += "key" + std::to_string((number * 7919 + i * 104729) % 100000) + " ";
  return request;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc == 3 ? std::atoi(argv[1]) : 0;
  const int tasks = argc == 3 ? std::atoi(argv[2]) : 0;
  if (threads < 1 || threads > 256 || tasks < 1) {
    std::fputs("usage: application_futures THREADS TASKS\n", stderr);
    return 2;
  }
  constexpr std::size_t kInFlight = 512;
  std::size_t answered = 0;
  Pool pool(static_cast<unsigned>(threads));
  mark(Mark::begin);
  std::deque<std::future<Record>> waiting;
  for (std::size_t i = 0; i < static_cast<std::size_t>(tasks) || !waiting.empty(); ++i) {
    if (i < static_cast<std::size_t>(tasks))
      waiting.push_back(pool.give([request = request_of(i)] { return answer(request); }));
    if (waiting.size() < kInFlight && i < static_cast<std::size_t>(tasks)) continue;
    answered += waiting.front().get().empty() ? 0 : 1;
    waiting.pop_front();
  }
  mark(Mark::end);
  std::printf("%zu answered\n", answered);
  return answered == static_cast<std::size_t>(tasks) ? 0 : 1;
}
