// SPDX-License-Identifier: BSD-3-Clause
//
// A thread that calls rdmalloc_purge(0) without pause, while the program does what it is there for.
#pragma once
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>

namespace lab {

class PurgeLoop {
 public:
  // Looked up, so that one program runs under every malloc.
  void start() {
    purge_ = reinterpret_cast<int64_t (*)(size_t)>(dlsym(RTLD_DEFAULT, "rdmalloc_purge"));
    if (purge_ == nullptr || pthread_create(&thread_, nullptr, body, this) != 0) {
      fprintf(stderr, "purge_loop: no rdmalloc_purge, or no thread\n");
      exit(3);
    }
  }

  // How many calls there were; 0 of a loop that was never started.
  uint64_t stop() {
    if (purge_ == nullptr) return 0;
    is_over_ = true;
    pthread_join(thread_, nullptr);
    return calls_;
  }

 private:
  static void* body(void* self) {
    auto* loop = static_cast<PurgeLoop*>(self);
    for (; !loop->is_over_; ++loop->calls_) loop->purge_(0);
    return nullptr;
  }

  int64_t (*purge_)(size_t) = nullptr;
  pthread_t thread_ = {};
  std::atomic<bool> is_over_{false};
  std::atomic<uint64_t> calls_{0};
};

}  // namespace lab
