// SPDX-License-Identifier: BSD-3-Clause
//
// The library loaded late, by dlopen into a process that runs on libc's malloc: beside threads that
// are there already, when others have used up the room for thread-local variables, and unloaded.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Library {
  void* handle = nullptr;
  void* (*malloc)(size_t) = nullptr;
  void (*free)(void*) = nullptr;
  bool (*owns)(const void*) = nullptr;

  bool open() {
    handle = dlopen(RDMALLOC_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    malloc = reinterpret_cast<void* (*)(size_t)>(dlsym(handle, "rdmalloc_malloc"));
    free = reinterpret_cast<void (*)(void*)>(dlsym(handle, "rdmalloc_free"));
    owns = reinterpret_cast<bool (*)(const void*)>(dlsym(handle, "rdmalloc_owns"));
    return malloc != nullptr && free != nullptr && owns != nullptr;
  }
  // Blocks of all sizes, each ours and writable to its end.
  bool works() const {
    std::vector<unsigned char*> blocks;
    bool good = true;
    for (size_t bytes = 1; bytes < 3000000; bytes = bytes * 3 / 2 + 1) {
      auto* block = static_cast<unsigned char*>(malloc(bytes));
      if (block == nullptr || !owns(block)) return false;
      memset(block, static_cast<int>(bytes & 0xFF), bytes);
      blocks.push_back(block);
    }
    size_t bytes = 1;
    for (unsigned char* block : blocks) {
      good = good && block[0] == (bytes & 0xFF) && block[bytes - 1] == (bytes & 0xFF);
      free(block);
      bytes = bytes * 3 / 2 + 1;
    }
    return good;
  }
};

// Copies of one file are libraries of their own to the loader.
class Copies {
 public:
  Copies() {
    char name[] = "/tmp/rdmalloc-tls-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~Copies() { std::filesystem::remove_all(folder_); }
  // nullptr when the loader refuses.
  void* load(const char* file) {
    std::string copy = folder_ + "/" + std::to_string(count_++) + ".so";
    std::filesystem::copy_file(file, copy);
    return dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
  }

 private:
  std::string folder_;
  int count_ = 0;
};

char* variables_of(void* library) {
  return reinterpret_cast<char* (*)()>(dlsym(library, "tls_hog"))();
}

class MallocLate : public ::testing::Test {
 protected:
  // Each in a process of its own: what was loaded stays.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(MallocLate, dlopen_beside_running_threads_serves_each_of_them) {
  std::atomic<int> stage{0}, good{0};
  Library library;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; i++) {
    threads.emplace_back([&] {
      while (stage.load() == 0) usleep(100);
      good += library.works();
    });
  }
  ASSERT_TRUE(library.open()) << dlerror();
  stage = 1;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good.load(), 8);
  // The process keeps its own malloc, and each block goes back where it came from.
  void* theirs = malloc(100);
  EXPECT_FALSE(library.owns(theirs));
  free(theirs);
}

TEST_F(MallocLate, dlopen_after_many_libraries_used_up_static_tls) {
  EXPECT_EXIT(
      {
        Copies copies;
        std::vector<void*> hogs;
        // Dynamic ones first: the loader puts a part of them into the static block too.
        for (int i = 0; i < 60; i++) {
          void* hog = copies.load(TLS_HOG_DYNAMIC);
          if (hog == nullptr) _exit(3);
          variables_of(hog)[0] = 2;
          hogs.push_back(hog);
        }
        // Then until the loader refuses one of 64 bytes: less than that is left.
        int taken = 0;
        for (void* hog = nullptr; (hog = copies.load(TLS_HOG_STATIC)) != nullptr; taken++) {
          if (taken == 1000) _exit(4);
          variables_of(hog)[0] = 2;
          hogs.push_back(hog);
        }
        fprintf(stderr, "%d libraries with static TLS, then: %s\n", taken, dlerror());
        // With nothing left there is an error and no harm; with the last one's 64 bytes we fit.
        Library library;
        if (!library.open() && strstr(dlerror(), "static TLS") == nullptr) _exit(5);
        dlclose(hogs.back());
        if (library.handle == nullptr && !library.open()) {
          fprintf(stderr, "%s\n", dlerror());
          _exit(7);
        }
        bool good = library.works();
        std::thread([&] { good = library.works() && good; }).join();
        _exit(good ? 0 : 6);
      },
      ::testing::ExitedWithCode(0), "libraries with static TLS, then: .*static TLS");
}

TEST_F(MallocLate, dlclose_leaves_blocks_and_threads_whole) {
  Library library;
  ASSERT_TRUE(library.open()) << dlerror();
  std::vector<void*> blocks;
  for (size_t bytes = 1; bytes < 300000; bytes = bytes * 2 + 1) {
    blocks.push_back(library.malloc(bytes));
    memset(blocks.back(), 5, bytes);
  }
  std::atomic<bool> closed{false};
  bool good = false;
  std::thread thread([&] {
    good = library.works();
    while (!closed.load()) usleep(100);
    // Its cache is flushed at its end, by code of a library that was closed.
    good = good && library.works();
  });
  EXPECT_EQ(dlclose(library.handle), 0);
  closed = true;
  thread.join();
  EXPECT_TRUE(good);
  for (void* block : blocks) {
    EXPECT_EQ(*static_cast<char*>(block), 5);
    library.free(block);
  }
  for (int i = 0; i < 20; i++) {
    Library again;
    ASSERT_TRUE(again.open());
    EXPECT_TRUE(again.works());
    EXPECT_EQ(dlclose(again.handle), 0);
  }
}

}  // namespace
