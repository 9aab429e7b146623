#pragma once

#include <thread>
#include <vector>

namespace rdmalloc::bench {

// Runs work(number) in so many threads and waits for them.
template <typename Work>
void in_threads(unsigned count, Work work) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < count; ++i) threads.emplace_back([=] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace rdmalloc::bench
