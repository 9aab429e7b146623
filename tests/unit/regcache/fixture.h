// What every test of the registration cache starts from: an empty arena, purges that check I3.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "regcache/core/registration.h"
#include "tests/unit/regcache/fake_allocator.h"
#include "tests/unit/regcache/stub_fabric.h"

// Records are another's as soon as they have ended.
class RecordsAtOnce {
 public:
  RecordsAtOnce() { rdmalloc::regcache::RegistrationPlaces::resting = 0; }
  ~RecordsAtOnce() { rdmalloc::regcache::RegistrationPlaces::resting = before_; }
  RecordsAtOnce(const RecordsAtOnce&) = delete;
  RecordsAtOnce& operator=(const RecordsAtOnce&) = delete;

 private:
  std::size_t before_ = rdmalloc::regcache::RegistrationPlaces::resting;
};

class Regcache : public ::testing::Test {
 protected:
  static constexpr std::size_t kSlice = fake::kSlice;
  static constexpr std::size_t kPage = 4096;

  void SetUp() override {
    // I3: at the moment of decommit nothing over the range is registered any more.
    fake::set_decommit_check([this](void* base, std::size_t length) {
      for (StubFabric* one : watched)
        if (one->touches(base, length)) ++decommits_under_a_registration;
    });
    watch(fabric);
  }
  void TearDown() override {
    EXPECT_EQ(decommits_under_a_registration, 0);
    for (StubFabric* one : watched) EXPECT_EQ(one->errors, 0) << "deregistered what is not there";
    fake::set_decommit_check({});
    for (char* span : spans) fake::free_span(span);
  }
  void watch(StubFabric& one) { watched.push_back(&one); }
  // One more fabric, which lives as long as the test's own.
  StubFabric& another_fabric(std::uint32_t flags) {
    others.push_back(std::make_unique<StubFabric>(flags));
    watch(*others.back());
    return *others.back();
  }
  char* span(std::size_t at, std::size_t slices, std::size_t block_bytes = 0) {
    spans.push_back(fake::span(at, slices, block_bytes));
    return spans.back();
  }
  void free_span(char* base) {
    fake::free_span(base);
    // From the end: the tests with many free the latest.
    spans.erase(std::find(spans.rbegin(), spans.rend(), base).base() - 1);
  }

  StubFabric fabric;
  std::vector<std::unique_ptr<StubFabric>> others;
  std::vector<StubFabric*> watched;
  std::vector<char*> spans;
  std::atomic<int> decommits_under_a_registration{0};
};
