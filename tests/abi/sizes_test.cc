// The rule of alloc/core/sized_struct.h, of each public struct that begins with its size. Fails for
// a struct whose reader or writer compares sizes by itself.
#include <errno.h>
#include <gtest/gtest.h>
#include <rdmalloc/notifier.h>
#include <rdmalloc/regcache.h>

#include <array>
#include <cstring>
#include <functional>

#include "alloc/core/sized_struct.h"

namespace {

// A struct of a size that the library does not know, between bytes that no call may touch.
template <class T>
class Sized {
 public:
  Sized(const T& known, std::size_t size) : size_(size) {
    bytes_.fill(kFill);
    std::memcpy(bytes_.data() + kGuard, &known, size < sizeof(T) ? size : sizeof(T));
    if (size > sizeof(T)) std::memset(bytes_.data() + kGuard + sizeof(T), 0, size - sizeof(T));
    std::memcpy(bytes_.data() + kGuard, &size, sizeof size);
  }
  T* get() { return reinterpret_cast<T*>(bytes_.data() + kGuard); }
  unsigned char& byte(std::size_t i) { return bytes_[kGuard + i]; }
  bool is_guarded() const {
    for (std::size_t i = 0; i < kGuard; ++i)
      if (bytes_[i] != kFill || bytes_[kGuard + size_ + i] != kFill) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr unsigned char kFill = 0xa5;
  std::size_t size_;
  alignas(T) std::array<unsigned char, 4104 + 2 * kGuard> bytes_;
};

template <class T>
using Call = std::function<int(T*)>;

// `call` gives the struct to the library, and ends what that began. What a caller does not know
// begins with the field at `unknown`.
template <class T>
void expect_reads(const T& known, std::size_t unknown, const Call<T>& call) {
  for (std::size_t size : {sizeof(T), unknown, sizeof(T) + 8, sizeof(T) + 800}) {
    Sized<T> given(known, size);
    EXPECT_EQ(call(given.get()), 0) << size << " of " << sizeof(T);
    EXPECT_TRUE(given.is_guarded());
  }
  Sized<T> newer(known, sizeof(T) + 24);
  newer.byte(sizeof(T) + 23) = 1;
  EXPECT_EQ(call(newer.get()), -E2BIG) << "something that is unknown was asked for";
  EXPECT_EQ(call(Sized<T>(known, 0).get()), -EINVAL);
  EXPECT_EQ(call(Sized<T>(known, 7).get()), -EINVAL);
  EXPECT_EQ(call(Sized<T>(known, 4104).get()), -E2BIG);
}

// `call` has the library fill in the struct. `unknown` as above; what lies before it is filled in.
template <class T>
void expect_writes(std::size_t unknown, const Call<T>& call) {
  T all = {};
  all.size = sizeof all;
  ASSERT_EQ(call(&all), 0);
  for (std::size_t size : {sizeof(T), unknown, sizeof(T) + 8, sizeof(T) + 800}) {
    Sized<T> wanted({}, size);
    if (size > sizeof(T)) wanted.byte(size - 1) = 9;
    EXPECT_EQ(call(wanted.get()), 0) << size << " of " << sizeof(T);
    EXPECT_EQ(wanted.get()->size, size);
    EXPECT_TRUE(wanted.is_guarded()) << "filled in what is not there: " << size;
    std::size_t part = size < sizeof(T) ? size : sizeof(T);
    const auto* expected = reinterpret_cast<const unsigned char*>(&all);
    for (std::size_t i = sizeof all.size; i < part; ++i)
      ASSERT_EQ(wanted.byte(i), expected[i]) << i;
    for (std::size_t i = part; i < size; ++i) ASSERT_EQ(wanted.byte(i), 0) << i;
  }
  EXPECT_EQ(call(nullptr), -EINVAL);
  EXPECT_EQ(call(Sized<T>({}, 0).get()), -EINVAL);
  EXPECT_EQ(call(Sized<T>({}, 4104).get()), -E2BIG);
}

rdmalloc_registrar_ops registrar() {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "sizes";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
              RDMALLOC_REGISTRAR_EXACT_ACCESS;
  ops.register_ = [](void*, void*, std::size_t, std::uint32_t, rdmalloc_key*) { return 0; };
  ops.deregister = [](void*, void*, std::size_t, const rdmalloc_key*) { return 0; };
  return ops;
}

class Sizes : public testing::Test {
 protected:
  void SetUp() override {
    rdmalloc_registrar_ops ops = registrar();
    ASSERT_EQ(rdmalloc_domain_open(&ops, nullptr, nullptr, &domain), 0);
  }
  void TearDown() override { EXPECT_EQ(rdmalloc_domain_close(domain), 0); }

  rdmalloc_domain* domain = nullptr;
};

int open_and_close(const rdmalloc_registrar_ops* ops, const rdmalloc_domain_attr* attr) {
  rdmalloc_domain* opened = nullptr;
  int error = rdmalloc_domain_open(ops, nullptr, attr, &opened);
  return error == 0 ? rdmalloc_domain_close(opened) : error;
}

TEST_F(Sizes, of_what_is_given) {
  rdmalloc_registrar_ops ops = registrar();
  expect_reads<rdmalloc_registrar_ops>(
      ops, offsetof(rdmalloc_registrar_ops, quiesce),
      [](rdmalloc_registrar_ops* given) { return open_and_close(given, nullptr); });
  expect_reads<rdmalloc_domain_attr>(
      {}, offsetof(rdmalloc_domain_attr, max_bytes),
      [&](rdmalloc_domain_attr* given) { return open_and_close(&ops, given); });
  expect_reads<rdmalloc_heap_attr>({}, offsetof(rdmalloc_heap_attr, domains),
                                   [](rdmalloc_heap_attr* given) {
                                     rdmalloc_heap* heap = nullptr;
                                     int error = rdmalloc_heap_create(given, &heap);
                                     return error == 0 ? rdmalloc_heap_destroy(heap) : error;
                                   });
  expect_reads<rdmalloc_observer_ops>({}, offsetof(rdmalloc_observer_ops, purge),
                                      [](rdmalloc_observer_ops* given) {
                                        rdmalloc_observer* one = nullptr;
                                        int error = rdmalloc_observer_add(given, nullptr, &one);
                                        return error == 0 ? rdmalloc_observer_remove(one) : error;
                                      });
  rdmalloc_pool_attr pool_attr = {};
  pool_attr.small_count = pool_attr.large_count = 1;
  expect_reads<rdmalloc_pool_attr>(pool_attr, offsetof(rdmalloc_pool_attr, access),
                                   [&](rdmalloc_pool_attr* given) {
                                     rdmalloc_pool* pool = nullptr;
                                     int error = rdmalloc_pool_create(&domain, 1, given, &pool);
                                     return error == 0 ? rdmalloc_pool_destroy(pool) : error;
                                   });
}

TEST_F(Sizes, unknown_flags_are_refused) {
  rdmalloc_registrar_ops ops = registrar();
  ops.flags |= 0x80000000u;
  EXPECT_EQ(open_and_close(&ops, nullptr), -EINVAL);
  ops = registrar();
  rdmalloc_domain_attr attr = {};
  attr.size = sizeof attr;
  attr.flags = 1;
  EXPECT_EQ(open_and_close(&ops, &attr), -EINVAL);
}

TEST_F(Sizes, of_what_is_filled_in) {
  expect_writes<rdmalloc_domain_counters>(
      offsetof(rdmalloc_domain_counters, quarantined),
      [&](rdmalloc_domain_counters* wanted) { return rdmalloc_domain_stats(domain, wanted); });
  expect_writes<rdmalloc_watch_counters>(offsetof(rdmalloc_watch_counters, stale),
                                         rdmalloc_watch_stats);
  expect_writes<rdmalloc_quiesce_counters>(offsetof(rdmalloc_quiesce_counters, refusals),
                                           rdmalloc_quiesce_stats);
  expect_writes<rdmalloc_notifier_info>(
      offsetof(rdmalloc_notifier_info, notified), [](rdmalloc_notifier_info* wanted) {
        return rdmalloc_notifier_state(RDMALLOC_NOTIFIER_UCX, wanted);
      });
  void* block = rdmalloc_malloc(100);
  expect_writes<rdmalloc_range>(offsetof(rdmalloc_range, generation), [&](rdmalloc_range* wanted) {
    return rdmalloc_range_of(block, wanted);
  });
  rdmalloc_free(block);
}

TEST_F(Sizes, of_what_heaps_and_pools_fill_in) {
  rdmalloc_heap_attr attr = {};
  attr.size = sizeof attr;
  attr.budget_bytes = std::size_t{2} << 20;
  attr.domains = &domain;
  attr.domain_count = 1;
  rdmalloc_heap* heap = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(&attr, &heap), 0);
  expect_writes<rdmalloc_heap_counters>(
      offsetof(rdmalloc_heap_counters, large_bytes),
      [&](rdmalloc_heap_counters* wanted) { return rdmalloc_heap_stats(heap, wanted); });
  expect_writes<rdmalloc_heap_region_info>(
      offsetof(rdmalloc_heap_region_info, domain_count),
      [&](rdmalloc_heap_region_info* wanted) { return rdmalloc_heap_region(heap, 0, wanted); });
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  rdmalloc_pool* pool = nullptr;
  rdmalloc_pool_attr pool_attr = {};
  pool_attr.size = sizeof pool_attr;
  pool_attr.small_count = pool_attr.large_count = 1;
  ASSERT_EQ(rdmalloc_pool_create(&domain, 1, &pool_attr, &pool), 0);
  expect_writes<rdmalloc_pool_counters>(
      offsetof(rdmalloc_pool_counters, memory_bytes),
      [&](rdmalloc_pool_counters* wanted) { return rdmalloc_pool_stats(pool, wanted); });
  EXPECT_EQ(rdmalloc_pool_destroy(pool), 0);
}

}  // namespace
