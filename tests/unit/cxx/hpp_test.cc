// rdmalloc.hpp over the real allocator: what is owned ends exactly once.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <rdmalloc/rdmalloc.hpp>
#include <vector>

namespace {

struct Books {
  std::atomic<int> live{0}, closes{0};
  rdmalloc_registrar_ops ops = {};
  Books() {
    ops.size = sizeof ops;
    ops.name = "books";
    ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
                RDMALLOC_REGISTRAR_EXACT_ACCESS;
    ops.register_ = [](void* context, void*, size_t, uint32_t, rdmalloc_key* key) {
      key->lkey = static_cast<std::uint64_t>(++static_cast<Books*>(context)->live);
      return 0;
    };
    ops.deregister = [](void* context, void*, size_t, const rdmalloc_key*) {
      --static_cast<Books*>(context)->live;
      return 0;
    };
    ops.close = [](void* context) { ++static_cast<Books*>(context)->closes; };
  }
};

constexpr std::size_t kLength = 1 << 20;

// Fails when a move does not empty its source, or the destructor does not put.
TEST(Hpp, registrations_and_domains_end_once) {
  Books books;
  {
    auto opened = rdmalloc::domain::open(books.ops, &books);
    ASSERT_TRUE(opened) << opened.error().message();
    rdmalloc::domain domain = std::move(*opened);
    std::vector<std::byte> foreign(100);
    {
      auto held = domain.register_memory(std::span(foreign));
      ASSERT_TRUE(held);
      EXPECT_GE(held->bytes().size(), foreign.size());
      EXPECT_EQ(held->keys().lkey, 1u);
      rdmalloc::registration moved = std::move(*held);
      rdmalloc::registration again;
      again = std::move(moved);
      EXPECT_FALSE(moved);
      EXPECT_EQ(books.live, 1);
      EXPECT_EQ(domain.close(), std::errc::device_or_resource_busy);
    }
    EXPECT_EQ(books.live, 0);
    void* block = rdmalloc_malloc(kLength);
    auto key = domain.key_of(block, kLength);
    ASSERT_TRUE(key);
    EXPECT_EQ(domain.key_of(block, kLength, rdmalloc::access::remote_read).error(),
              std::errc::permission_denied);
    EXPECT_EQ(domain.key_of(foreign.data(), 8).error(), std::errc::bad_address);
    EXPECT_EQ(domain.counters()->sticky_count, 1u);
    rdmalloc_free(block);
    EXPECT_EQ(*domain.flush(), 1);
  }
  EXPECT_EQ(books.closes, 1);
  EXPECT_EQ(books.live, 0);
}

// Seen to fail with a close() that keeps the handle after EINVAL: the destructor closed the second
// domain, which has the first one's place.
TEST(Hpp, a_domain_that_was_closed_by_its_handle_closes_no_other) {
  Books books;
  rdmalloc_domain* place = nullptr;
  {
    rdmalloc::domain first = std::move(*rdmalloc::domain::open(books.ops, &books));
    place = first.get();
    ASSERT_EQ(rdmalloc_domain_close(place), 0);
    EXPECT_EQ(first.close(), std::errc::invalid_argument);
    EXPECT_FALSE(first);
    rdmalloc_domain* second = nullptr;
    ASSERT_EQ(rdmalloc_domain_open(&books.ops, &books, nullptr, &second), 0);
    EXPECT_EQ(second, place) << "the test is about one place";
  }
  EXPECT_EQ(books.closes, 1);
  EXPECT_EQ(rdmalloc_domain_close(place), 0);
}

// Seen to fail with a destructor, and an assignment, that forget a domain which is busy: neither
// was ever closed.
TEST(Hpp, a_domain_that_ends_while_something_is_held_is_closed_later) {
  Books books;
  std::vector<std::byte> foreign(100);
  {
    rdmalloc::registration held[2];
    rdmalloc::domain assigned;
    for (rdmalloc::registration& one : held) {
      rdmalloc::domain domain = std::move(*rdmalloc::domain::open(books.ops, &books));
      one = std::move(*domain.register_memory(std::span(foreign)));
      assigned = std::move(domain);
    }
  }
  EXPECT_EQ(books.live, 0);
  Books others;
  rdmalloc::domain next = std::move(*rdmalloc::domain::open(others.ops, &others));
  EXPECT_EQ(books.closes, 2);
}

// Fails when the callback's answer is not turned round.
TEST(Hpp, prefault_tells_a_lambda_and_stops_when_it_says_so) {
  Books books;
  auto opened = rdmalloc::domain::open(books.ops, &books);
  ASSERT_TRUE(opened);
  rdmalloc_domain* domains[] = {opened->get()};
  void* block = rdmalloc_malloc(kLength);
  iovec ranges[] = {{block, kLength}};
  int told = 0;
  auto stop = [&](const rdmalloc_prefault_progress&) { return ++told, false; };
  EXPECT_EQ(rdmalloc::prefault(domains, ranges, 1, stop), std::errc::operation_canceled);
  EXPECT_EQ(told, 1);
  std::uint64_t registered = 0;
  EXPECT_FALSE(rdmalloc::prefault(domains, ranges, 1, [&](const rdmalloc_prefault_progress& now) {
    registered = now.registered;
    return true;
  }));
  EXPECT_EQ(registered, 1u);
  EXPECT_EQ(books.live, 1);
  EXPECT_FALSE(rdmalloc::prefault(domains, ranges));
  EXPECT_EQ(books.live, 1);
  rdmalloc_free(block);
}

TEST(Hpp, errors_are_error_codes) {
  Books books;
  books.ops.flags = 0;
  EXPECT_EQ(rdmalloc::domain::open(books.ops, &books).error(), std::errc::not_supported);
}

// Fails when the observer's end does not remove it, or a refusal is not passed on.
TEST(Hpp, an_observer_hears_of_purges_and_may_refuse) {
  std::atomic<int> offers{0}, ends{0};
  std::atomic<bool> refuses{true};
  rdmalloc::page_events events;
  events.purge = [&](std::span<std::byte>, rdmalloc_purge_reason) {
    ++offers;
    return !refuses;
  };
  events.purged = [&](std::span<std::byte> range, std::error_code error) {
    if (!error && range.size() != 0) ++ends;
  };
  {
    auto added = rdmalloc::observer::add(std::move(events));
    ASSERT_TRUE(added) << added.error().message();
    rdmalloc::observer observer = std::move(*added);
    void* block = rdmalloc_malloc(kLength);
    memset(block, 1, kLength);
    rdmalloc_free(block);
    EXPECT_EQ(rdmalloc_purge(0), 0);
    EXPECT_GT(offers, 0);
    EXPECT_EQ(ends, 0);
    refuses = false;
    EXPECT_GT(rdmalloc_purge(0), 0);
    EXPECT_GT(ends, 0);
  }
  int heard = offers;
  rdmalloc_free(memset(rdmalloc_malloc(kLength), 1, kLength));
  rdmalloc_purge(0);
  EXPECT_EQ(offers, heard);
}

// Seen to fail (under AddressSanitizer, too) with a destructor that frees the functions although
// the observer could not be removed.
TEST(Hpp, an_observer_that_ends_in_its_own_event_is_told_no_more) {
  std::atomic<int> offers{0};
  std::optional<rdmalloc::observer> observer;
  std::vector<int> captured(1000, 1);
  rdmalloc::page_events events;
  events.purge = [&offers, &observer, captured](std::span<std::byte>, rdmalloc_purge_reason) {
    ++offers;
    observer.reset();
    return captured[999] == 1;
  };
  auto added = rdmalloc::observer::add(std::move(events));
  ASSERT_TRUE(added) << added.error().message();
  observer = std::move(*added);
  for (int round = 0; round < 2; ++round) {
    rdmalloc_free(memset(rdmalloc_malloc(kLength), 1, kLength));
    EXPECT_GT(rdmalloc_purge(0), 0);
    EXPECT_FALSE(observer);
    EXPECT_EQ(offers, 1);
  }
}

}  // namespace
