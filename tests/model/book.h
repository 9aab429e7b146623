// The registrar of the random histories: it keeps books of what is registered and of which pages,
// and fails at random. A page's identity is a number that changes when the page goes back to the
// kernel.
#pragma once

#include <rdmalloc/regcache.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <vector>

namespace model {

constexpr std::size_t kPage = 4096;

// Ends the process with status kFailed, after a line that says where in the history. Which of all
// failures it was stays in *failure, which the processes share.
inline constexpr int kFailed = 3;
extern std::atomic<const char*>* failure;
[[noreturn, gnu::format(printf, 1, 2)]] void fail(const char* format, ...);
#define MUST(condition, ...) ((condition) ? (void)0 : ::model::fail(__VA_ARGS__))

inline std::atomic<unsigned> seed_of_the_librarys_threads{1};

// What one thread is at. Threads that are not the history's (the purge thread) have number -1.
struct Here {
  int number = -1;
  std::size_t operation = 0;
  std::minstd_rand random{seed_of_the_librarys_threads};
  bool makes_heaps = false;  // registrations made now are heaps' or pools'
  bool resumes = false;      // what can't be made now is lost with its domain
  bool is_dropping = false;

  unsigned below(unsigned limit) { return static_cast<unsigned>(random() % limit); }
};
Here& here();

// Counts all that happens, in one order.
extern std::atomic<std::uint64_t> ticks;
inline std::uint64_t tick() {
  return ticks.fetch_add(1) + 1;
}

// The identities of the arena's pages, and of memory that is not the library's.
class Pages {
 public:
  void begin(char* foreign, std::size_t foreign_bytes);
  // Sum of the identities, which only grow. `is_whole` is false when one of them is on its way out.
  std::uint64_t identity(std::uintptr_t base, std::size_t length, bool* is_whole = nullptr) const;
  void go(std::uintptr_t base, std::size_t length);    // odd from here on: on their way
  void gone(std::uintptr_t base, std::size_t length);  // even again: other pages

 private:
  std::atomic<std::uint32_t>* at(std::uintptr_t address) const;

  std::uintptr_t arena_ = 0, foreign_ = 0;
  std::size_t arena_bytes_ = 0, foreign_bytes_ = 0;
  std::atomic<std::uint32_t>* of_arena_ = nullptr;
  std::atomic<std::uint32_t>* of_foreign_ = nullptr;
};
extern Pages pages;

// Set by the history as a whole.
extern std::atomic<int> quiesced;  // quiesces that have returned and whose resume has not begun
extern std::atomic<bool> registrars_gone;  // the exit has come to the fabric's own handlers
extern std::atomic<bool> is_child;
extern std::atomic<unsigned> failure_rate;  // one call of so many fails; 0: none
// Two checks that demand more than the cache promises, to show what it looks like (README.md): that
// an invalidation spares no registration that was under way for a heap; that domains do not count
// what could not be deregistered.
extern bool demands_heaps, demands_ends;

struct Variant {
  std::uint32_t flags;
  std::size_t granularity, largest;
  bool refuses_overlaps;
  std::uint64_t max_bytes, max_count;
};

// One opening of one domain. Never freed, so that a call that comes too late is seen.
class Book {
 public:
  struct Entry {
    std::uintptr_t base;
    std::size_t length;
    std::uint64_t begun;  // when register_ was called
    std::uint64_t identity;
    bool is_heaps;
    bool is_quarantined;               // could not be undone, or not wholly made
    int maker = -1;                    // the thread that register_ was called on
    std::uint64_t known = UINT64_MAX;  // a heap's: when the call that made it had returned
  };

  Book(const Variant& variant, bool is_of_child);
  int open(int (*event)(rdmalloc_domain*, rdmalloc_domain_event, void*));

  const Variant variant;
  rdmalloc_domain* domain = nullptr;
  std::atomic<bool> is_lost{false};    // no later than its domain
  std::atomic<bool> is_closed{false};  // ops.close was called

  // The entry behind a key, which must be there.
  Entry entry_of(const rdmalloc_key& key, const char* what);
  // Whether anything is registered over the range that a purge, or the end of an invalidation that
  // began at `before`, must have seen the end of.
  bool holds(std::uintptr_t base, std::size_t length, std::uint64_t before, bool heaps_too,
             bool quarantined_too);
  struct Sum {
    std::uint64_t count = 0, bytes = 0, quarantined = 0, quarantined_bytes = 0;
  };
  Sum sum();
  // The same for one that may have ended: false then, or where it is in quarantine.
  bool find(const rdmalloc_key& key, Entry* entry);
  // A call that makes heaps has returned to this thread.
  void note_heaps();

 private:
  int enter(void* addr, std::size_t length, std::uint32_t access, rdmalloc_key* key);
  int leave(void* addr, std::size_t length, const rdmalloc_key* key);
  int device_closes();
  int device_opens();
  void check_call(const char* what);

  bool is_of_child_;
  std::atomic<bool> has_no_device_{false};
  std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;
};

// Of all openings so far.
std::vector<Book*> books_so_far();
void note_book(Book* book);

// Lets other threads go on, now and then for long.
void dawdle();

}  // namespace model
