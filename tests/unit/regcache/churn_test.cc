// Records and their numbers used again and again, by one domain after the other (record_window.h,
// pool.h, registration.h): what a key or a registration says is checked whenever one is handed out.
// The threads' meetings are random, what must hold of them is not. TEST_SECONDS says how long; by
// default it is a number of steps.
#include <errno.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <random>
#include <shared_mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "regcache/core/stripes.h"
#include "tests/unit/regcache/fixture.h"

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSlice = fake::kSlice;
constexpr unsigned kThreads = 4;
constexpr std::size_t kForeignPages = 64;
constexpr std::size_t kHomeSlices = 32;
// More than RegistrationPlaces spreads, so that both kinds of places are in use.
constexpr std::size_t kMany = 9000;

// A registrar whose keys tell what they are of: where, how long, and of which opening of which
// domain. A key that was put together of two shows by its sum.
class Book {
 public:
  struct Range {
    std::uintptr_t base;
    std::size_t length;
  };

  static std::atomic<std::uint64_t> wrong;

  std::atomic<std::uint64_t> opening{0};
  std::atomic<std::uint64_t> calls{0};

  static Range range_of(const rdmalloc_key& key) {
    return {reinterpret_cast<std::uintptr_t>(key.handle), key.rkey & (kMostLength - 1)};
  }
  // Whether the key is one that this book gave in its present opening.
  bool is_own(const rdmalloc_key& key) const {
    return key.rkey >> kLengthBits == opening &&
           (key.lkey & kSumMask) == sum_of(key.lkey >> kSumBits, key.rkey, key.handle) &&
           key.generation != 0;
  }
  // Whether it is registered now, and was given out with no other generation.
  bool is_live(const rdmalloc_key& key) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = live_.find(key.lkey);
    return found != live_.end() && has_generation(found->second, key.generation);
  }
  bool touches(std::uintptr_t base, std::size_t length) {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto& [serial, entry] : live_)
      if (entry.range.base < base + length && entry.range.base + entry.range.length > base)
        return true;
    return false;
  }
  std::size_t live() {
    std::lock_guard<std::mutex> guard(mutex_);
    return live_.size();
  }

  rdmalloc_registrar_ops ops(std::uint32_t flags) {
    rdmalloc_registrar_ops made = {};
    made.size = sizeof made;
    made.name = "book";
    made.flags = flags;
    made.register_ = [](void* book, void* addr, size_t length, uint32_t, rdmalloc_key* key) {
      return static_cast<Book*>(book)->enter(addr, length, key);
    };
    made.deregister = [](void* book, void* addr, size_t length, const rdmalloc_key* key) {
      return static_cast<Book*>(book)->leave(addr, length, *key);
    };
    return made;
  }

 private:
  struct Entry {
    Range range;
    std::uint64_t generation;  // 0: not seen yet
  };
  static constexpr unsigned kSumBits = 24, kLengthBits = 24;
  static constexpr std::uint64_t kSumMask = (1 << kSumBits) - 1, kMostLength = 1 << kLengthBits;

  static std::uint64_t sum_of(std::uint64_t serial, std::uint64_t rkey, const void* handle) {
    std::uint64_t mixed = serial * 0x9e3779b97f4a7c15 ^ rkey * 0xc2b2ae3d27d4eb4f ^
                          reinterpret_cast<std::uintptr_t>(handle) * 0x165667b19e3779f9;
    return mixed >> (64 - kSumBits);
  }
  static bool has_generation(Entry& entry, std::uint64_t generation) {
    if (entry.generation == 0) {
      if (!is_new(generation)) return false;
      entry.generation = generation;
    }
    return entry.generation == generation;
  }
  // Whether no registration of any book has had it.
  static bool is_new(std::uint64_t generation) {
    constexpr std::size_t kMost = std::size_t{1} << 32;  // bits; as much is backed as is used
    static auto* const given = static_cast<std::atomic<std::uint64_t>*>(
        mmap(nullptr, kMost / 8, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    std::uint64_t bit = std::uint64_t{1} << generation % 64;
    return generation < kMost && (given[generation / 64].fetch_or(bit) & bit) == 0;
  }
  int enter(void* addr, std::size_t length, rdmalloc_key* key) {
    // A refusal now and then: the record goes back unused.
    if (++calls % 61 == 0) return -ENOMEM;
    static std::atomic<std::uint64_t> serials{0};
    std::uint64_t serial = ++serials;
    key->rkey = opening << kLengthBits | length;
    key->handle = addr;
    key->lkey = serial << kSumBits | sum_of(serial, key->rkey, addr);
    std::lock_guard<std::mutex> guard(mutex_);
    live_[key->lkey] = {{reinterpret_cast<std::uintptr_t>(addr), length}, 0};
    return 0;
  }
  int leave(void* addr, std::size_t length, const rdmalloc_key& key) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = live_.find(key.lkey);
    if (found == live_.end() || key.handle != addr || !is_own(key) ||
        range_of(key).length != length || !has_generation(found->second, key.generation)) {
      ++wrong;
      return -EINVAL;
    }
    live_.erase(found);
    return 0;
  }

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, Entry> live_;
};
std::atomic<std::uint64_t> Book::wrong{0};

// Where a domain is, and another after it.
struct Place {
  Book book;
  rdmalloc_domain* domain = nullptr;
  std::atomic<bool> is_gone{false};  // closed, and not opened again yet
  std::mutex closing;                // by whom it is closed and opened
  std::size_t number = 0;

  int open() {
    constexpr std::uint32_t kFlags =
        RDMALLOC_REGISTRAR_SYNC_DEREG | RDMALLOC_REGISTRAR_EXACT_ACCESS;
    rdmalloc_domain_attr attr = {};
    attr.size = sizeof attr;
    if (number % 3 == 1) attr.max_count = 24;
    if (number % 3 == 2) attr.max_bytes = 24 * kSlice;
    static std::atomic<std::uint64_t> openings{0};
    book.opening = ++openings;
    // One whose registrations the threads that call in must drop.
    rdmalloc_registrar_ops ops =
        book.ops(number == 4 ? kFlags : kFlags | RDMALLOC_REGISTRAR_ANY_THREAD);
    return rdmalloc_domain_open(&ops, &book, &attr, &domain);
  }
};

// A thread that calls into a domain is inside; domains are opened while none is, since a handle
// that was closed may be the next one's. They are closed with others inside.
class Gate {
 public:
  void enter() {
    while (waiting_ != 0) std::this_thread::yield();
    mutex_.lock_shared();
  }
  void leave() { mutex_.unlock_shared(); }
  template <class Body>
  void alone(Body body) {
    ++waiting_;
    std::lock_guard<std::shared_mutex> guard(mutex_);
    --waiting_;
    body();
  }

 private:
  std::shared_mutex mutex_;
  std::atomic<int> waiting_{0};  // or it would wait for ever for a moment without readers
};

// Stops threads where they happen to be, between any two instructions, so that others get far
// meanwhile. (Under TSan only where it lets a signal through.)
class Disturber {
 public:
  explicit Disturber(std::vector<std::thread>& threads) : threads_(threads) {
    struct sigaction sleep = {};
    sleep.sa_handler = [](int) {
      int saved = errno;
      const timespec pause = {0, 100000};
      nanosleep(&pause, nullptr);
      errno = saved;
    };
    sigaction(SIGUSR1, &sleep, &before_);
    thread_ = std::thread([this, &threads] {
      for (std::size_t i = 0; !must_stop_; ++i) {
        pthread_kill(threads[i % threads.size()].native_handle(), SIGUSR1);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  Disturber(const Disturber&) = delete;
  Disturber& operator=(const Disturber&) = delete;
  // Joins them, between the last signal and the handler's end: one that has ended but has not been
  // joined can be sent a signal, and one that has yet to take its last would end the process.
  ~Disturber() {
    must_stop_ = true;
    thread_.join();
    for (std::thread& thread : threads_) thread.join();
    sigaction(SIGUSR1, &before_, nullptr);
  }

 private:
  std::vector<std::thread>& threads_;
  std::atomic<bool> must_stop_{false};
  std::thread thread_;
  struct sigaction before_ = {};
};

class Churn : public testing::Test {
 protected:
  RecordsAtOnce at_once;
  static constexpr std::size_t kPlaces = 6;
  struct Shared {
    char* base;
    std::size_t slices;
    // A key asked for beside an invalidation may be anything (rdmalloc_invalidate()).
    std::shared_mutex invalidating;
  };

  void SetUp() override {
    Book::wrong = 0;
    for (std::size_t i = 0; i < kPlaces; ++i) {
      places[i].number = i;
      ASSERT_EQ(places[i].open(), 0);
    }
    for (std::size_t i = 0; i < std::size(shared); ++i) {
      shared[i].slices = 1 + i;
      shared[i].base = fake::span(100 * (i + 1), 1 + i);
    }
    fake::set_decommit_check([this](void* base, std::size_t length) {
      for (Place& place : places)
        if (place.book.touches(reinterpret_cast<std::uintptr_t>(base), length)) ++Book::wrong;
    });
  }
  void TearDown() override {
    for (Place& place : places) {
      auto* inside = rdmalloc::regcache::domain_of(place.domain);
      {
        rdmalloc::regcache::WholeGuard guard(*inside);
        EXPECT_TRUE(rdmalloc::regcache::domain_is_valid(*inside));
      }
      EXPECT_EQ(rdmalloc_domain_close(place.domain), 0);
      EXPECT_EQ(place.book.live(), 0U);
    }
    fake::set_decommit_check({});
    for (Shared& one : shared) fake::free_span(one.base);
    EXPECT_EQ(Book::wrong, 0U);
  }
  // Makes so many records that some are packed, and has them given back in no order.
  void spread_records(char* foreign) {
    std::vector<rdmalloc_reg*> held;
    while (held.size() < kMany) {
      rdmalloc_reg* reg = nullptr;
      int error = rdmalloc_reg_get(places[0].domain, foreign, kPage, RDMALLOC_ACCESS_LOCAL, &reg);
      if (error == 0) held.push_back(reg);
    }
    std::shuffle(held.begin(), held.end(), std::mt19937(1));
    for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
  }

  Place places[kPlaces];
  Shared shared[3];
  Gate gate;
  std::atomic<std::uint64_t> reopened{0}, moved{0}, keys{0}, gets{0};
};

// One thread's memory, and what it does with it.
class Worker {
 public:
  Worker(unsigned number, char* foreign) : random_(number + 1), foreign_(foreign) {
    home_ = 2000 * std::size_t{number + 1};
    EXPECT_EQ(rdmalloc_adopt(foreign_, kAdopted), 0);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  std::uint64_t moved() const { return moved_; }
  std::uint64_t keys() const { return keys_; }
  std::uint64_t gets() const { return gets_; }
  std::size_t below(std::size_t limit) { return random_() % limit; }

  // Spans of its own, by keys and by references, local and remote.
  void use_owned(Place& place) {
    std::size_t slices = 1 + below(6), at = home_ + below(kHomeSlices - slices);
    char* block = fake::span(at, slices);
    for (int i = 0; i < 3; ++i) {
      std::size_t offset = below(slices * kSlice - 100);
      std::size_t what = below(4);
      if (what == 0)
        hold(place, block + offset, 100, RDMALLOC_ACCESS_REMOTE_READ);
      else if (what == 1)
        hold(place, block + offset, 100, RDMALLOC_ACCESS_LOCAL);
      else
        take_key(place, block + offset, 100);
    }
    fake::free_span(block);
    if (below(3) == 0) fake::purge(home_, kHomeSlices);
  }
  // Again and again, so that it is here where a thread is stopped most times.
  void use_shared(Place& place, char* base, std::size_t length, std::shared_mutex& invalidating) {
    std::size_t offset = below(length - 8);
    if (below(2) == 0) {
      for (int i = 0; i < 200; ++i) glance(place, base + offset, 8);
      return hold(place, base + offset, 8, RDMALLOC_ACCESS_LOCAL);
    }
    std::shared_lock<std::shared_mutex> guard(invalidating);
    for (int i = 0; i < 200; ++i) {
      rdmalloc_key key;
      if (rdmalloc_reg_key(place.domain, base + offset, 8, RDMALLOC_ACCESS_LOCAL, &key) == 0)
        check(place.book.is_own(key) && covers(key, base + offset, 8));
    }
    take_key(place, base + offset, 8);
  }
  // Some at once, adopted or for one use; given back in any order.
  void use_foreign(Place& place) {
    rdmalloc_reg* held[40] = {};
    for (rdmalloc_reg*& reg : held) {
      std::size_t page = below(kForeignPages - 4);
      char* base = foreign_ + page * kPage;
      std::size_t length = kPage * (1 + below(4));
      if (rdmalloc_reg_get(place.domain, base, length, RDMALLOC_ACCESS_LOCAL, &reg) != 0) {
        reg = nullptr;
        continue;
      }
      check_held(place, reg, base, length);
      // One for a single use has just been made, and nothing before it in its stripe is younger.
      if (base >= foreign_ + kAdopted) is_younger(place, reg);
    }
    std::shuffle(std::begin(held), std::end(held), random_);
    for (rdmalloc_reg* reg : held) rdmalloc_reg_put(reg);
    if (below(8) == 0) disown_for_a_moment();
  }

 private:
  static constexpr std::size_t kAdopted = kForeignPages / 2 * kPage;

  void check(bool is_right) {
    if (!is_right) ++Book::wrong;
  }
  static bool covers(const rdmalloc_key& key, const char* addr, std::size_t length) {
    Book::Range range = Book::range_of(key);
    auto low = reinterpret_cast<std::uintptr_t>(addr);
    return low >= range.base && low + length <= range.base + range.length;
  }
  // Of this range, this domain and this opening of it, and there as long as it is held.
  void check_held(Place& place, rdmalloc_reg* reg, const char* addr, std::size_t length) {
    rdmalloc_key key;
    rdmalloc_reg_key_of(reg, &key);
    Book::Range range = Book::range_of(key);
    check(place.book.is_own(key) && covers(key, addr, length) && place.book.is_live(key));
    check(rdmalloc_reg_addr(reg) == key.handle && rdmalloc_reg_length(reg) == range.length);
    ++gets_;
    std::uint64_t& last = openings_[reg];
    if (last != 0 && last != place.book.opening) ++moved_;
    last = place.book.opening;
  }
  void glance(Place& place, char* addr, std::size_t length) {
    rdmalloc_reg* reg = nullptr;
    if (rdmalloc_reg_get(place.domain, addr, length, RDMALLOC_ACCESS_LOCAL, &reg) != 0) return;
    rdmalloc_key key;
    rdmalloc_reg_key_of(reg, &key);
    check(place.book.is_own(key) && covers(key, addr, length));
    rdmalloc_reg_put(reg);
  }
  void is_younger(Place& place, rdmalloc_reg* reg) {
    rdmalloc_key key;
    rdmalloc_reg_key_of(reg, &key);
    Book::Range range = Book::range_of(key);
    std::size_t stripe = rdmalloc::regcache::stripe_of(range.base, range.base + range.length);
    std::uint64_t& youngest = youngest_[place.book.opening << 8 | stripe];
    check(key.generation > youngest);
    youngest = key.generation;
  }
  void hold(Place& place, char* addr, std::size_t length, std::uint32_t access) {
    rdmalloc_reg* reg = nullptr;
    if (rdmalloc_reg_get(place.domain, addr, length, access, &reg) != 0) return;
    check_held(place, reg, addr, length);
    if ((access & RDMALLOC_ACCESS_REMOTE) != 0) check(rdmalloc_reg_length(reg) == length);
    if (below(4) == 0) std::this_thread::yield();
    check_held(place, reg, addr, length);
    rdmalloc_reg_put(reg);
  }
  // Registered until the block goes or the domain is closed.
  void take_key(Place& place, char* addr, std::size_t length) {
    rdmalloc_key key;
    if (rdmalloc_reg_key(place.domain, addr, length, RDMALLOC_ACCESS_LOCAL, &key) != 0) return;
    check(place.book.is_own(key) && covers(key, addr, length));
    bool is_live = place.book.is_live(key);
    check(is_live || rdmalloc_domain_flush(place.domain) == -EINVAL);
    ++keys_;
  }
  void disown_for_a_moment() {
    // Not held, but another thread may be about to drop one for want of room.
    int error = rdmalloc_disown(foreign_, kAdopted);
    check(error == 0 || error == -EBUSY);
    check(rdmalloc_adopt(foreign_, kAdopted) == 0);
  }

  std::mt19937 random_;
  char* foreign_;
  std::size_t home_ = 0;
  std::uint64_t moved_ = 0, keys_ = 0, gets_ = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> youngest_;  // of each opening and stripe
  std::unordered_map<rdmalloc_reg*, std::uint64_t> openings_;  // where a record was last seen
};

// Fails in a moment when withdraw() leaves sticky slots, when numbers have 14 bits, or generations
// repeat; crashes, once of three times, when Pool::give() takes no lock. Fails within 20 seconds
// when rdmalloc_reg_get() doesn't look at the domain of what it holds, or rdmalloc_reg_key() at the
// slot again. It hung in minutes, by which a close that waited for no drop was found
// (Threads.closing_beside_a_put_ends). Does not show that take_found() looks at the domain.
TEST_F(Churn, no_record_is_found_for_another_range_or_in_another_domain) {
  constexpr std::size_t kForeign = kForeignPages * kPage;
  void* mapped = mmap(nullptr, kThreads * kForeign, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* foreign = static_cast<char*>(mapped);
  spread_records(foreign);
  const char* seconds = getenv("TEST_SECONDS");
  auto end = std::chrono::steady_clock::now() +
             std::chrono::seconds(seconds != nullptr ? atoi(seconds) : 0);
  auto may_go_on = [&](int step) {
    if (seconds == nullptr) return step < 5000;
    return std::chrono::steady_clock::now() < end && Book::wrong == 0;
  };

  // Closed beside all others' calls, opened when they are out.
  auto close_and_open = [&](Place& place) {
    std::unique_lock<std::mutex> mine(place.closing, std::try_to_lock);
    if (!mine.owns_lock()) return;
    gate.enter();
    int error = rdmalloc_domain_close(place.domain);
    if (error == 0) {
      place.is_gone = true;
      if (place.book.live() != 0) ++Book::wrong;
    }
    gate.leave();
    if (error != 0) return;
    gate.alone([&] {
      if (place.open() != 0) ++Book::wrong;
      place.is_gone = false;
    });
    ++reopened;
  };
  auto invalidate = [&](Worker& worker, rdmalloc_domain* domain) {
    Shared& one = shared[worker.below(std::size(shared))];
    std::lock_guard<std::shared_mutex> guard(one.invalidating);
    rdmalloc_invalidate(domain, one.base, one.slices * kSlice, nullptr, nullptr);
  };
  std::atomic<unsigned> running{kThreads};
  auto body = [&](unsigned number) {
    Worker worker(number, foreign + number * kForeign);
    for (int step = 0; may_go_on(step); ++step) {
      Place& place = places[worker.below(kPlaces)];
      std::size_t what = worker.below(64);
      if (what < 4) {
        close_and_open(place);
        continue;
      }
      gate.enter();
      if (!place.is_gone) {
        if (what < 8) {
          invalidate(worker, what < 6 ? place.domain : nullptr);
        } else if (what < 10) {
          rdmalloc_domain_flush(place.domain);
        } else if (what < 16) {
          worker.use_foreign(place);
        } else if (what < 40) {
          Shared& one = shared[worker.below(std::size(shared))];
          worker.use_shared(place, one.base, one.slices * kSlice, one.invalidating);
        } else {
          worker.use_owned(place);
        }
      }
      gate.leave();
    }
    moved += worker.moved();
    keys += worker.keys();
    gets += worker.gets();
    --running;
    running.notify_one();
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(body, i);
  {
    Disturber disturber(threads);
    for (unsigned left = running; left != 0; left = running) running.wait(left);
  }
  for (Place& place : places) rdmalloc_domain_flush(place.domain);
  EXPECT_EQ(rdmalloc_disown(mapped, kThreads * kForeign), 0);
  munmap(mapped, kThreads * kForeign);
  printf("%llu keys, %llu gets, %llu domains opened, %llu times a record in another domain\n",
         static_cast<unsigned long long>(keys), static_cast<unsigned long long>(gets),
         static_cast<unsigned long long>(reopened), static_cast<unsigned long long>(moved));
  EXPECT_EQ(Book::wrong, 0U);
  // Or the test shows nothing.
  EXPECT_GT(keys, 1000U);
  EXPECT_GT(gets, 1000U);
  EXPECT_GT(reopened, 10U);
  EXPECT_GT(moved, 100U);
}

}  // namespace
