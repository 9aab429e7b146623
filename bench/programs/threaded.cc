#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "bench/programs/programs.h"
#include "bench/programs/threads.h"

namespace rdmalloc::bench {
namespace {

// A server: each thread replaces random objects; then its objects go to a new thread: larson.
void larson(unsigned threads, double scale) {
  const auto generations = static_cast<unsigned>(60 * scale + 1);
  in_threads(threads, [=](unsigned number) {
    std::vector<char*> objects(4000);
    for (unsigned generation = 0; generation < generations; ++generation)
      std::thread([&] {
        Random random(number * 1000 + generation + 1);
        for (int i = 0; i < 100'000; ++i) {
          char*& object = objects[random.below(objects.size())];
          std::free(object);
          object = allocate(random.between(8, 1000));
        }
      }).join();
    for (char* object : objects) std::free(object);
  });
}

// Half of the threads only allocate, the other half only free, batch by batch: xmalloc-test.
class Batches {
 public:
  void put(std::vector<char*> batch) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [&] { return batches_.size() < 64; });
    batches_.push_back(std::move(batch));
    filled_.notify_one();
  }
  // False when everything was put and taken.
  bool take(std::vector<char*>& batch) {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [&] { return !batches_.empty() || ended_; });
    if (batches_.empty()) return false;
    batch = std::move(batches_.front());
    batches_.pop_front();
    room_.notify_one();
    return true;
  }
  void end() {
    std::unique_lock lock(mutex_);
    ended_ = true;
    filled_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::condition_variable room_;
  std::deque<std::vector<char*>> batches_;
  bool ended_ = false;
};

void xmalloc(unsigned threads, double scale) {
  const unsigned pairs = std::max(1u, threads / 2);
  const auto count = static_cast<std::size_t>(60'000 * scale / pairs + 1);
  Batches batches;
  std::vector<std::thread> consumers;
  for (unsigned i = 0; i < pairs; ++i)
    consumers.emplace_back([&] {
      for (std::vector<char*> batch; batches.take(batch);)
        for (char* block : batch) std::free(block);
    });
  in_threads(pairs, [&](unsigned number) {
    Random random(number + 1);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<char*> batch(120);
      for (char*& block : batch) block = allocate(random.between(16, 400));
      batches.put(std::move(batch));
    }
  });
  batches.end();
  for (std::thread& consumer : consumers) consumer.join();
}

// Mixed sizes, most freed soon, some exchanged between threads through shared places: mstress.
void mstress(unsigned threads, double scale) {
  static std::array<std::atomic<char*>, 1000> shared{};
  const auto count = static_cast<std::size_t>(6e6 * scale / threads);
  in_threads(threads, [=](unsigned number) {
    Random random(number + 11);
    std::vector<char*> own;
    for (std::size_t i = 0; i < count; ++i) {
      if (random.below(100) < 55 || own.empty()) {
        const std::size_t step = random.below(100);
        const std::size_t most = step < 90 ? 256 : step < 99 ? 4096 : 65536;
        own.push_back(allocate(random.between(8, most)));
      } else {
        std::swap(own[random.below(own.size())], own.back());
        std::free(own.back());
        own.pop_back();
      }
      // acq_rel: the block's bytes go over with its address.
      if (random.below(10) == 0 && !own.empty())
        own.back() =
            shared[random.below(shared.size())].exchange(own.back(), std::memory_order_acq_rel);
      if (own.size() > 20'000) {
        for (char* block : own) std::free(block);
        own.clear();
      }
    }
    for (char* block : own) std::free(block);
  });
  for (auto& place : shared) std::free(place.exchange(nullptr));
}

// Each thread frees what its neighbour allocated in the round before: sh8bench, rptest.
void neighbours(unsigned threads, double scale, std::size_t least, std::size_t most,
                std::size_t count) {
  const auto rounds = static_cast<unsigned>(300 * scale + 1);
  std::vector<std::vector<char*>> batches(threads);
  for (unsigned round = 0; round < rounds; ++round) {
    std::vector<std::vector<char*>> before(threads);
    before.swap(batches);
    batches.resize(threads);
    in_threads(threads, [&, least, most, count](unsigned number) {
      Random random(number * 7919 + round + 1);
      std::vector<char*>& mine = batches[number];
      std::vector<char*>& others = before[(number + 1) % threads];
      for (std::size_t i = 0; i < count; ++i) {
        mine.push_back(allocate(random.between(least, most)));
        std::free(allocate(random.between(least, most)));
        if (!others.empty()) {
          std::free(others.back());
          others.pop_back();
        }
      }
    });
  }
  for (auto& batch : batches)
    for (char* block : batch) std::free(block);
}

void sh8(unsigned threads, double scale) {
  neighbours(threads, scale, 1, 500, 15'000 / threads);
}
void rptest(unsigned threads, double scale) {
  neighbours(threads, scale / 3, 16, 16'000, 12'000 / threads);
}

// Threads that live shortly: start, a few hundred blocks, end.
void thread_churn(unsigned threads, double scale) {
  const auto waves = static_cast<unsigned>(5000 * scale / threads + 1);
  for (unsigned wave = 0; wave < waves; ++wave)
    in_threads(threads, [=](unsigned number) {
      Random random(wave * 31 + number);
      std::array<char*, 300> blocks;
      for (char*& block : blocks) block = allocate(random.between(16, 2000));
      for (char* block : blocks) std::free(block);
    });
}

}  // namespace

const std::vector<Program>& threaded_programs() {
  static const std::vector<Program> programs = {
      {"larson", "larson: a server whose objects outlive their threads", larson},
      {"xmalloc", "xmalloc-test: some threads allocate, others free", xmalloc},
      {"mstress", "mstress: mixed sizes, exchanged between threads", mstress},
      {"sh8", "sh8bench: small blocks freed by a neighbour", sh8},
      {"rptest", "rptest: up to 16 KB, freed by a neighbour", rptest},
      {"thread-churn", "threads that live for a few hundred blocks", thread_churn},
  };
  return programs;
}

}  // namespace rdmalloc::bench
