// How the operations of a history are done, and what must hold of each. Above 600 lines: every
// public call of the cache is here, with the answers that it may give.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <shared_mutex>
#include <thread>

#include "tests/model/book.h"
#include "tests/model/history.h"

namespace model {
namespace {

constexpr std::size_t kPlaces = 4, kBlocks = 8, kHeld = 6, kShared = 4;
constexpr std::size_t kForeignBytes = 32 * kPage;  // of each thread; the first half may be adopted
constexpr std::size_t kMostThreads = 4;

// Something that makes other calls fail, or keys end, for as long as it goes on.
class Disturbance {
 public:
  void begin() { ++begun_; }
  void end() { ++ended_; }
  // Whether nothing of it went on since `since`, which now() returned.
  std::uint64_t now() const {
    std::uint64_t ended = ended_;
    return ended == begun_ ? ended : UINT64_MAX;
  }
  bool was_quiet(std::uint64_t since) const { return since != UINT64_MAX && begun_ == since; }

 private:
  std::atomic<std::uint64_t> begun_{0}, ended_{0};
};

// Where a domain is, and another after it.
struct Place {
  std::shared_mutex gate;  // shared: in a call with its handle
  std::atomic<Book*> book{nullptr};
  std::atomic<bool> is_usable{
      false};          // its handle is a domain's; written with the gate alone or by its closer
  std::mutex closing;  // by whom it is closed and opened
  Disturbance closes;
  std::atomic<std::uint64_t> all_invalid{0};  // tick before the latest invalidation of everything
};
Place places[kPlaces];
Disturbance freezes, ends_of_keys;
// Shared from before a close until no thread can use the handle: a domain that opens may get it, in
// another place too.
std::shared_mutex openings;

struct Block {
  char* base = nullptr;
  std::size_t length = 0;
  std::uint64_t invalid[kPlaces] = {};  // tick before the latest invalidation of it
};
struct Shared {
  char* base = nullptr;
  std::size_t length = 0;
  std::atomic<std::uint64_t> invalid[kPlaces] = {};
} shared[kShared];

// Blocks on their way from one thread to another.
constexpr std::size_t kHanded = 6;
std::mutex handing;
Block handed[kHanded];

struct Held {
  rdmalloc_reg* reg = nullptr;
  Book* book = nullptr;
  rdmalloc_key key = {};
  char* base = nullptr;
  std::size_t length = 0;
};

// Of an invalidation: told once, when all is gone.
struct Done {
  std::uintptr_t base;
  std::size_t length;
  std::uint64_t before;
  Book* only;  // NULL: all
  std::atomic<int> calls{0};
};
std::atomic<int> dones_due{0};

char* foreign = nullptr;

Variant variant_of(std::size_t place, std::uint64_t seed) {
  constexpr std::uint32_t kAny = RDMALLOC_REGISTRAR_ANY_THREAD,
                          kSync = RDMALLOC_REGISTRAR_SYNC_DEREG,
                          kExact = RDMALLOC_REGISTRAR_EXACT_ACCESS;
  switch (place) {
    case 0:
      return {kAny | kSync | kExact, 0, 0, false, 0, 0};
    case 1:
      return {kAny | kSync | kExact | RDMALLOC_REGISTRAR_REOPEN, 0, 0, false, 6u << 20, 12};
    case 2:
      if (seed % 2 != 0) return {kSync | kExact, 0, 4u << 20, false, 0, 0};
      return {kAny | kSync | kExact, 4096, 4u << 20, false, 0, 0};
    default:
      return {kAny | kSync,
              seed % 3 == 0 ? std::size_t{2} << 20 : std::size_t{65536},
              4u << 20,
              seed % 5 == 0,
              0,
              0};
  }
}

// With 0 all is purged at once, and no thread keeps a long block.
void set_decay(std::uint64_t how) {
  constexpr std::uint64_t kDecays[] = {0, 0, 1, 1, 20, 1000};
  std::uint64_t decay_ms = kDecays[how % std::size(kDecays)];
  int error = rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &decay_ms, sizeof decay_ms);
  MUST(error == 0, "purge.decay_ms: %d", error);
}

// ---- one thread ----

class Worker {
 public:
  Worker(int number, const History& history) : number_(number), history_(history) {
    foreign_ = foreign + static_cast<std::size_t>(number) * kForeignBytes;
  }
  void run();
  void settle();  // puts, frees and destroys all that is left

 private:
  void one(const Operation& operation);
  void quiesce(unsigned how);
  void fork_now();
  void child(unsigned how);
  void invalidate(unsigned which, char* base, std::size_t length, unsigned how,
                  std::uint64_t* invalid, std::atomic<std::uint64_t>* shared_invalid);
  void invalidate_around(const Operation& operation, const Block& block);
  void allocate(Block& block, std::size_t length);
  void drop(Block& block);
  void use(const Operation& operation, const Block& block);
  void row(const Operation& operation);
  void burst(const Operation& operation);
  bool get(Place& place, std::size_t at, char* base, std::size_t length, unsigned access,
           std::uint64_t invalid, bool is_heaps, Held* held);
  void check_held(const Held& held, const char* what);
  void put(Held& held);
  void key(Place& place, std::size_t at, const Block& block, std::uint64_t invalid);
  void heap(const Operation& operation);
  void end_heap();
  void pool(const Operation& operation);
  void foreign_memory(const Operation& operation);
  void close(Place& place, bool is_abandoned);
  void open(std::size_t at);
  void stats(Place& place);
  Held& free_place() {
    Held& held = held_[here().below(kHeld)];
    put(held);
    return held;
  }

  int number_;
  const History& history_;
  Block blocks_[kBlocks];
  Held held_[kHeld];
  char* foreign_;
  bool is_adopted_ = false;

  rdmalloc_heap* heap_ = nullptr;
  std::size_t heap_places_[2] = {}, heap_domains_ = 0;
  unsigned heap_access_ = 0;
  char* heap_blocks_[4] = {};
  std::size_t heap_lengths_[4] = {};
  rdmalloc_pool* pool_ = nullptr;
  rdmalloc_buffer* buffers_[3] = {};
};

// A call with a domain's handle.
class Inside {
 public:
  explicit Inside(Place& place) : closes(place.closes.now()), place_(place) {
    place.gate.lock_shared();
    book = place.is_usable ? place.book.load() : nullptr;
  }
  ~Inside() { place_.gate.unlock_shared(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  explicit operator bool() const { return book != nullptr; }

  const std::uint64_t closes;  // place.closes.now(), before it was looked whether it is open
  Book* book;

 private:
  Place& place_;
};

bool is_registrars(int error) {
  return error == -ENOMEM || error == -EIO || error == -EEXIST || error == -ENOTRECOVERABLE;
}

// What a call into a domain may say although nothing was wrong with the question.
void check_error(const char* what, int error, const Book* book, const Place& place,
                 std::uint64_t closes, std::uint64_t frozen) {
  if (is_registrars(error)) return;
  // Of a block of 3 MiB that touches three units of 2 MiB.
  if (error == -EMSGSIZE && book->variant.granularity > 65536) return;
  if (error == -ENODEV)
    return MUST(book->is_lost, "%s says that a domain is lost which is not", what);
  if (error == -EINVAL)
    return MUST(!place.closes.was_quiet(closes), "%s says -EINVAL of an open domain", what);
  if (error == -EAGAIN)
    return MUST(!freezes.was_quiet(frozen), "%s says -EAGAIN, and no quiesce is near", what);
  fail("%s of a live block returns %d", what, error);
}

bool Worker::get(Place& place, std::size_t at, char* base, std::size_t length, unsigned access,
                 std::uint64_t invalid, bool is_heaps, Held* held) {
  Inside inside(place);
  if (!inside) return false;
  Book* book = inside.book;
  bool is_remote = (access & RDMALLOC_ACCESS_REMOTE) != 0;
  std::uint64_t closes = inside.closes, frozen = freezes.now();
  std::uint64_t everything = rdmalloc_owns(base) ? place.all_invalid.load() : 0;
  rdmalloc_reg* reg = nullptr;
  int error = rdmalloc_reg_get(book->domain, base, length, access, &reg);
  if (error == -EACCES && is_remote) return false;
  if (error == -EINVAL && book->variant.granularity > kPage && !rdmalloc_owns(base)) return false;
  if (error != 0) {
    check_error("rdmalloc_reg_get", error, book, place, closes, frozen);
    return false;
  }
  *held = {reg, book, {}, base, length};
  rdmalloc_reg_key_of(reg, &held->key);
  Book::Entry entry = book->entry_of(held->key, "rdmalloc_reg_get");
  MUST(entry.base <= reinterpret_cast<std::uintptr_t>(base) &&
           entry.base + entry.length >= reinterpret_cast<std::uintptr_t>(base) + length,
       "rdmalloc_reg_get gives a registration of something else");
  MUST(!is_remote || is_heaps || entry.is_heaps || entry.length == length ||
           book->variant.granularity > 1,
       "a remote registration of %zu bytes is %zu long", length, entry.length);
  bool is_exempt =
      entry.is_heaps && (!demands_heaps || entry.known < std::max(invalid, everything));
  MUST(is_exempt || entry.begun >= std::max(invalid, everything),
       "rdmalloc_reg_get is served by a registration of before an invalidation: %zu, invalidated "
       "at %zu (place %zu)",
       static_cast<std::size_t>(entry.begun),
       static_cast<std::size_t>(std::max(invalid, everything)), at);
  check_held(*held, "rdmalloc_reg_get");
  return true;
}

void Worker::check_held(const Held& held, const char* what) {
  Book::Entry entry = held.book->entry_of(held.key, what);
  MUST(held.book->is_lost || entry.identity == pages.identity(entry.base, entry.length) ||
           held.book->is_lost,
       "%s: the pages of a held registration are others", what);
}

void Worker::put(Held& held) {
  if (held.reg == nullptr) return;
  check_held(held, "rdmalloc_reg_put");
  rdmalloc_reg_put(held.reg);
  held = {};
}

void Worker::key(Place& place, std::size_t at, const Block& block, std::uint64_t invalid) {
  Inside inside(place);
  if (!inside) return;
  Book* book = inside.book;
  std::uint64_t closes = inside.closes, frozen = freezes.now(), ends = ends_of_keys.now();
  std::uint64_t everything = place.all_invalid;
  char* base = block.base + here().below(static_cast<unsigned>(block.length));
  std::size_t length = 1 + here().below(static_cast<unsigned>(block.base + block.length - base));
  rdmalloc_key key = {};
  int error = rdmalloc_reg_key(book->domain, base, length, RDMALLOC_ACCESS_LOCAL, &key);
  bool is_quiet =
      ends_of_keys.was_quiet(ends) && place.closes.was_quiet(closes) && freezes.was_quiet(frozen);
  if (error == -EAGAIN && !is_quiet) return;
  if (error != 0) return check_error("rdmalloc_reg_key", error, book, place, closes, frozen);
  // Whatever ends keys of others' blocks in the same slab may have ended this one.
  for (int i = 0; i < 2; ++i) {
    if (!is_quiet || book->is_lost) return;
    Book::Entry entry;
    if (!book->find(key, &entry)) {
      MUST(!(ends_of_keys.was_quiet(ends) && place.closes.was_quiet(closes) &&
             freezes.was_quiet(frozen)) ||
               book->is_lost,
           "the key of a live block is of no registration");
      return;
    }
    bool is_same = entry.identity == pages.identity(entry.base, entry.length);
    bool is_inside = entry.base <= reinterpret_cast<std::uintptr_t>(base) &&
                     entry.base + entry.length >= reinterpret_cast<std::uintptr_t>(base) + length;
    is_quiet =
        ends_of_keys.was_quiet(ends) && place.closes.was_quiet(closes) && freezes.was_quiet(frozen);
    if (!is_quiet || book->is_lost) return;
    MUST(is_same, "the pages of the key of a live block are others");
    MUST(is_inside, "rdmalloc_reg_key gives a key of something else");
    MUST(entry.is_heaps || entry.begun >= std::max(invalid, everything),
         "rdmalloc_reg_key gives a key of before an invalidation (place %zu)", at);
    dawdle();
  }
}

void is_done(void* arg) {
  Done* done = static_cast<Done*>(arg);
  MUST(done->calls++ == 0, "an invalidation is done twice");
  --dones_due;
  for (Book* book : books_so_far())
    if (done->only == nullptr || done->only == book)
      MUST(!book->holds(done->base, done->length, done->before, false, false),
           "an invalidation is done, and a registration of before is there");
  rdmalloc_free(rdmalloc_malloc(100));
  if (here().below(16) == 0) {
    int error = rdmalloc_quiesce(0);
    MUST(error == -EDEADLK, "rdmalloc_quiesce() inside done: %d", error);
  }
}

void Worker::invalidate(unsigned which, char* base, std::size_t length, unsigned how,
                        std::uint64_t* invalid, std::atomic<std::uint64_t>* shared_invalid) {
  bool is_of_all = which % (kPlaces + 2) >= kPlaces;
  std::size_t at = which % kPlaces;
  ends_of_keys.begin();
  {
    Inside inside(places[at]);
    if (is_of_all || inside) {
      std::uint64_t before = tick();
      Done* done = nullptr;
      if (how % 2 == 0) {
        done = new Done{reinterpret_cast<std::uintptr_t>(base),
                        length,
                        before,
                        is_of_all ? nullptr : inside.book,
                        {}};
        ++dones_due;
      }
      std::int64_t count = rdmalloc_invalidate(is_of_all ? nullptr : inside.book->domain, base,
                                               length, done != nullptr ? is_done : nullptr, done);
      bool was_done = count >= 0;
      MUST(was_done || (!is_of_all && (count == -EINVAL || count == -ENODEV)),
           "rdmalloc_invalidate: %d", static_cast<int>(count));
      if (!was_done && done != nullptr) {
        MUST(done->calls == 0, "a refused invalidation is done");
        --dones_due;
      }
      for (std::size_t i = 0; was_done && i < kPlaces; ++i) {
        if (!is_of_all && i != at) continue;
        if (invalid != nullptr) invalid[i] = std::max(invalid[i], before);
        if (shared_invalid != nullptr) {
          std::uint64_t seen = shared_invalid[i];
          while (seen < before && !shared_invalid[i].compare_exchange_weak(seen, before)) {
          }
        }
      }
    }
  }
  ends_of_keys.end();
}

// Up to 8 MiB to each side of a block, within the arena.
void Worker::invalidate_around(const Operation& operation, const Block& block) {
  std::uintptr_t arena = 0;
  std::size_t arena_length = 0;
  rdmalloc_arena_extent(&arena, &arena_length);
  auto base = reinterpret_cast<std::uintptr_t>(block.base);
  std::uintptr_t before = std::min<std::uintptr_t>(base - arena, operation.c % (8u << 20));
  std::uintptr_t low = base - before;
  std::uintptr_t high =
      std::min(base + block.length + operation.a % (8u << 20), arena + arena_length);
  std::uint64_t invalid[kPlaces] = {};
  invalidate(operation.b, reinterpret_cast<char*>(low), high - low, operation.c / 2, invalid,
             nullptr);
  for (Block& one : blocks_) {
    auto at = reinterpret_cast<std::uintptr_t>(one.base);
    if (one.base == nullptr || at < low || at + one.length > high) continue;
    for (std::size_t i = 0; i < kPlaces; ++i) one.invalid[i] = std::max(one.invalid[i], invalid[i]);
  }
}

void Worker::allocate(Block& block, std::size_t length) {
  drop(block);
  block = {};
  block.base = static_cast<char*>(rdmalloc_malloc(length));
  MUST(block.base != nullptr, "malloc of %zu bytes", length);
  block.length = length;
  block.base[0] = block.base[length - 1] = 1;
}
void Worker::drop(Block& block) {
  rdmalloc_free(block.base);
  block = {};
}

std::size_t length_of(unsigned how) {
  switch (how % 8) {
    case 0:
    case 1:
      return 1 + how / 8 % 4000;
    case 2:
    case 3:
      return 4096 + how / 8 % 60000;
    case 4:
    case 5:
    case 6:
      return 65536 + how / 8 % 900000;
    default:
      return (1u << 20) + how / 8 % (2u << 20);
  }
}

// What a program does with a block before it frees it: in one of the domains, or not at all.
void Worker::use(const Operation& operation, const Block& block) {
  std::size_t at = (operation.b + here().below(2)) % kPlaces;
  switch (here().below(4)) {
    case 0:
      return key(places[at], at, block, 0);
    case 1: {
      Held now;
      get(places[at], at, block.base, block.length, RDMALLOC_ACCESS_LOCAL, 0, false, &now);
      return put(now);
    }
    default:
      return;
  }
}

// Of one length, each freed before the next is taken, so that the thread keeps it.
void Worker::row(const Operation& operation) {
  std::size_t length = (std::size_t{1} << 18) + (1 + operation.c % 60) * 65536;
  Block block;
  for (unsigned i = 0; i < 12; ++i) {
    allocate(block, length);
    use(operation, block);
    drop(block);
  }
  // The block's owner goes on with another, or with none, and what is kept stays.
  if (operation.a % 3 != 0) return;
  allocate(blocks_[operation.a / 3 % kBlocks], length);
}

// Of one length, and then freed in this order or that, so that the quick list has them: at times
// more than it may have. Of two lengths some are pushed out.
void Worker::burst(const Operation& operation) {
  std::size_t length = (1 + operation.c % 20) * 65536;
  bool is_long = operation.a % 32 == 0;
  std::size_t count = is_long ? 1100 : 8 + operation.a % 60;
  if (is_long) length = 327680;
  std::vector<Block> all(count);
  for (Block& block : all) {
    allocate(block, length);
    if (!is_long || here().below(16) == 0) use(operation, block);
  }
  unsigned order = operation.b % 3;
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t at = order == 0 ? i : order == 1 ? count - 1 - i : (i * 7) % count;
    drop(all[at]);
    if (operation.b % 5 == 0 && i % 16 == 0) {
      Block other;
      allocate(other, length + 65536);
      use(operation, other);
      drop(other);
    }
  }
  for (Block& block : all) drop(block);
}

// ---- domains ----

int event(rdmalloc_domain*, rdmalloc_domain_event what, void* book) {
  rdmalloc_free(rdmalloc_malloc(1000));
  dawdle();
  if (failure_rate == 0 || here().below(60) != 0) return 0;
  if (what == RDMALLOC_DOMAIN_OPEN) static_cast<Book*>(book)->is_lost = true;
  return -EIO;
}

void Worker::open(std::size_t at) {
  Place& place = places[at];
  std::unique_lock<std::mutex> closing(place.closing, std::try_to_lock);
  if (!closing || place.is_usable) return;
  Book* before = place.book;
  // One that was abandoned is the library's until it is closed.
  if (before != nullptr && !before->is_closed) return;
  // No thread that had a handle that was closed is in a call, since it may be the new one's.
  std::lock_guard<std::shared_mutex> alone(openings);
  for (Place& one : places) {
    one.gate.lock();
    one.gate.unlock();
  }
  Book* book = new Book(variant_of(at, history_.seed), false);
  std::uint64_t frozen = freezes.now();
  int error = book->open(event);
  if (error != 0) {
    MUST(error == -ENOMEM || error == -EMFILE || (error == -EAGAIN && !freezes.was_quiet(frozen)),
         "rdmalloc_domain_open: %d", error);
    delete book;
    return;
  }
  note_book(book);
  place.book = book;
  place.is_usable = true;
}

void Worker::close(Place& place, bool is_abandoned) {
  std::unique_lock<std::mutex> closing(place.closing, std::try_to_lock);
  if (!closing || !place.is_usable) return;
  Book* book = place.book;
  place.closes.begin();
  if (is_abandoned) {
    // The handle is given up here; others may be in a call with it still.
    place.gate.lock();
    place.is_usable = false;
    place.gate.unlock();
    int error = rdmalloc_domain_abandon(book->domain);
    MUST(error == 0 || error == -EINPROGRESS, "rdmalloc_domain_abandon: %d", error);
    MUST(error != 0 || book->is_closed,
         "rdmalloc_domain_abandon says closed, and close was not called");
  } else {
    std::uint64_t frozen = freezes.now();
    std::shared_lock<std::shared_mutex> guard(openings);
    // With others inside.
    int error = rdmalloc_domain_close(book->domain);
    if (error == 0) {
      place.is_usable = false;
      MUST(book->is_closed, "rdmalloc_domain_close says closed, and close was not called");
    } else {
      MUST(error == -EBUSY || (error == -EAGAIN && !freezes.was_quiet(frozen)),
           "rdmalloc_domain_close: %d", error);
    }
  }
  place.closes.end();
}

void Worker::stats(Place& place) {
  Inside inside(place);
  rdmalloc_quiesce_counters quiesces = {};
  quiesces.size = sizeof quiesces;
  MUST(rdmalloc_quiesce_stats(&quiesces) == 0, "rdmalloc_quiesce_stats");
  rdmalloc_watch_counters watch = {};
  watch.size = sizeof watch;
  MUST(rdmalloc_watch_stats(&watch) == 0, "rdmalloc_watch_stats");
  if (!inside) return;
  rdmalloc_domain_counters now = {};
  now.size = sizeof now;
  int error = rdmalloc_domain_stats(inside.book->domain, &now);
  if (error == -EINVAL && !place.closes.was_quiet(inside.closes)) return;
  MUST(error == 0, "rdmalloc_domain_stats: %d", error);
  void* context = nullptr;
  rdmalloc_registrar_ops none = {};
  none.size = sizeof none;
  MUST(rdmalloc_domain_context(inside.book->domain, &none, &context) == -EINVAL,
       "another program's context");
  MUST(now.live_count >= now.sticky_count && now.live_bytes >= now.sticky_bytes &&
           now.live_count >= now.in_use,
       "the counters of a domain: %zu live, %zu sticky, %zu in use",
       static_cast<std::size_t>(now.live_count), static_cast<std::size_t>(now.sticky_count),
       static_cast<std::size_t>(now.in_use));
}

void nothing_is_registered() {
  for (Book* book : books_so_far()) {
    Book::Sum left = book->sum();
    MUST(book->is_lost || left.count == left.quarantined,
         "a quiesce has ended with %zu registrations",
         static_cast<std::size_t>(left.count - left.quarantined));
  }
}

void Worker::quiesce(unsigned how) {
  // Ours would be waited for.
  for (Held& held : held_)
    if (how % 4 != 0) put(held);
  freezes.begin();
  here().makes_heaps = here().resumes = true;
  int error = rdmalloc_quiesce(how % 3 == 0 ? 0 : 20);
  MUST(error == 0 || error == -ETIMEDOUT || error == -EIO || error == -EBUSY || error == -ENOMEM ||
           error == -ENODEV,
       "rdmalloc_quiesce: %d", error);
  if (error == 0) {
    ++quiesced;
    nothing_is_registered();
    rdmalloc_free(rdmalloc_malloc(70000));
    dawdle();
    dawdle();
    nothing_is_registered();
    --quiesced;
    error = rdmalloc_resume();
    MUST(error == 0 || is_registrars(error) || error == -ENODEV, "rdmalloc_resume: %d", error);
  }
  here().makes_heaps = here().resumes = false;
  freezes.end();
}

// ---- heaps and pools ----

void Worker::end_heap() {
  for (char*& block : heap_blocks_) block = nullptr;
  heap_ = nullptr;
}

void Worker::heap(const Operation& operation) {
  if (operation.kind == Kind::kHeapCreate) {
    if (heap_ != nullptr) return;
    std::size_t first = operation.a % kPlaces, second = operation.b % kPlaces;
    Inside one(places[std::min(first, second)]);
    // In one order, so that a thread that waits to be alone stops no other for ever.
    Inside other(places[std::max(first, second)]);
    if (!one || !other) return;
    rdmalloc_domain* domains[2] = {one.book->domain, other.book->domain};
    rdmalloc_heap_attr attr = {};
    attr.size = sizeof attr;
    attr.budget_bytes = (1 + operation.c % 7) << 20;
    attr.domains = domains;
    attr.domain_count = heap_domains_ = first == second ? 1 : 2;
    heap_places_[0] = std::min(first, second);
    heap_places_[1] = std::max(first, second);
    attr.access = heap_access_ = operation.c / 7 % 2 == 0
                                     ? RDMALLOC_ACCESS_LOCAL
                                     : RDMALLOC_ACCESS_LOCAL | RDMALLOC_ACCESS_REMOTE_READ;
    here().makes_heaps = true;
    int error = rdmalloc_heap_create(&attr, &heap_);
    here().makes_heaps = false;
    if (error != 0) heap_ = nullptr;
    for (Inside* inside : {&one, &other}) inside->book->note_heaps();
    return;
  }
  if (heap_ == nullptr) return;
  char*& block = heap_blocks_[operation.a % std::size(heap_blocks_)];
  std::size_t& length = heap_lengths_[operation.a % std::size(heap_blocks_)];
  std::size_t at = heap_places_[operation.b % heap_domains_];
  switch (operation.kind) {
    case Kind::kHeapDestroy: {
      std::uint64_t frozen = freezes.now();
      int error = rdmalloc_heap_destroy(heap_);
      MUST(error == 0 || error == -EBUSY || (error == -EAGAIN && !freezes.was_quiet(frozen)),
           "rdmalloc_heap_destroy: %d", error);
      if (error == 0) end_heap();
      break;
    }
    case Kind::kHeapAbandon: {
      int error = rdmalloc_heap_abandon(heap_);
      MUST(error == 0 || error == -EINPROGRESS, "rdmalloc_heap_abandon: %d", error);
      end_heap();
      break;
    }
    case Kind::kHeapGrow:
      here().makes_heaps = true;
      (void)rdmalloc_heap_grow(heap_, 1u << 20);
      here().makes_heaps = false;
      // A heap keeps its domains open.
      for (std::size_t i = 0; i < heap_domains_; ++i)
        places[heap_places_[i]].book.load()->note_heaps();
      break;
    case Kind::kHeapBlock:
      if (block != nullptr) rdmalloc_free(block);
      length = 1 + operation.c % 300000;
      block = static_cast<char*>(rdmalloc_heap_malloc(heap_, length));
      break;
    case Kind::kHeapKey: {
      if (block == nullptr) break;
      std::uint64_t frozen = freezes.now();
      rdmalloc_key key = {};
      Inside inside(places[at]);
      Book* book = places[at].book;
      int error = rdmalloc_heap_key(heap_, operation.b % heap_domains_, block, length, &key);
      if (error == -EAGAIN)
        MUST(!freezes.was_quiet(frozen), "rdmalloc_heap_key says -EAGAIN, and no quiesce is near");
      if (error == -ENODEV) MUST(static_cast<Book*>(book)->is_lost, "rdmalloc_heap_key says lost");
      MUST(error == 0 || error == -EAGAIN || error == -ENODEV, "rdmalloc_heap_key: %d", error);
      if (error != 0 || !freezes.was_quiet(frozen) || book->is_lost) break;
      // A heap keeps its domain open.
      MUST(key.handle == book, "rdmalloc_heap_key gives another domain's key");
      Book::Entry entry;
      bool is_own = book->find(key, &entry);
      if (!freezes.was_quiet(frozen) || book->is_lost) break;
      MUST(is_own, "rdmalloc_heap_key gives the key of a registration that has ended");
      break;
    }
    default:
      if (block == nullptr) break;
      get(places[at], at, block, length, heap_access_, 0, true, &free_place());
  }
}

void Worker::pool(const Operation& operation) {
  if (operation.kind == Kind::kPoolCreate) {
    Inside inside(places[operation.a % kPlaces]);
    if (pool_ != nullptr || !inside) return;
    rdmalloc_pool_attr attr = {};
    attr.size = sizeof attr;
    attr.small_bytes = 8192;
    attr.small_count = 4;
    attr.large_bytes = 65536;
    attr.large_count = 2;
    if (operation.b % 3 == 0) attr.access = RDMALLOC_ACCESS_LOCAL | RDMALLOC_ACCESS_REMOTE_WRITE;
    here().makes_heaps = true;
    if (rdmalloc_pool_create(&inside.book->domain, 1, &attr, &pool_) != 0) pool_ = nullptr;
    here().makes_heaps = false;
  } else if (pool_ == nullptr) {
    return;
  } else if (operation.kind == Kind::kPoolUse) {
    rdmalloc_buffer*& buffer = buffers_[operation.a % std::size(buffers_)];
    int error = 0;
    if (buffer != nullptr) {
      error = rdmalloc_pool_put(pool_, buffer);
      buffer = nullptr;
      MUST(error == 0, "rdmalloc_pool_put: %d", error);
    } else {
      error = rdmalloc_pool_get(pool_, operation.b % 20000, &buffer);
      if (error != 0) buffer = nullptr;
      MUST(error == 0 || error == -EAGAIN, "rdmalloc_pool_get: %d", error);
    }
  } else {
    for (rdmalloc_buffer*& buffer : buffers_) {
      if (buffer == nullptr) continue;
      int error = rdmalloc_pool_put(pool_, buffer);
      MUST(error == 0, "rdmalloc_pool_put: %d", error);
      buffer = nullptr;
    }
    std::uint64_t frozen = freezes.now();
    int error = rdmalloc_pool_destroy(pool_);
    MUST(error == 0 || (error == -EAGAIN && !freezes.was_quiet(frozen)),
         "rdmalloc_pool_destroy: %d", error);
    if (error == 0) pool_ = nullptr;
  }
}

// ---- foreign memory ----

void Worker::foreign_memory(const Operation& operation) {
  constexpr std::size_t kAdopted = kForeignBytes / 2;
  if (operation.kind == Kind::kAdopt) {
    if (is_adopted_) return;
    int error = rdmalloc_adopt(foreign_, kAdopted);
    MUST(error == 0, "rdmalloc_adopt: %d", error);
    is_adopted_ = true;
  } else if (operation.kind == Kind::kDisown) {
    if (!is_adopted_) return;
    ends_of_keys.begin();
    int error = rdmalloc_disown(foreign_, kAdopted);
    ends_of_keys.end();
    MUST(error == 0 || error == -EBUSY, "rdmalloc_disown: %d", error);
    is_adopted_ = false;
    if (error != 0) return;
    // "None is left, the pages may go."
    auto base = reinterpret_cast<std::uintptr_t>(foreign_);
    for (Book* book : books_so_far())
      MUST(!book->holds(base, kAdopted, UINT64_MAX, true, true),
           "disowned, and a registration is there");
    pages.go(base, kAdopted);
    madvise(foreign_, kAdopted, MADV_DONTNEED);
    pages.gone(base, kAdopted);
  } else {
    std::size_t at = operation.a % kPlaces;
    std::size_t page = operation.b % (kForeignBytes / kPage - 4);
    Held& held = free_place();
    get(places[at], at, foreign_ + page * kPage, kPage * (1 + operation.c % 4),
        operation.c % 5 == 0 ? RDMALLOC_ACCESS_REMOTE_READ : RDMALLOC_ACCESS_LOCAL, 0, false,
        &held);
  }
}

// ---- fork ----

// Calls with what was the parent's, and a domain of its own.
void Worker::child(unsigned how) {
  for (Place& place : places) {
    Book* book = place.book;
    if (book == nullptr || !place.is_usable) continue;
    rdmalloc_reg* reg = nullptr;
    rdmalloc_key key;
    for (Block& block : blocks_) {
      if (block.base == nullptr) continue;
      int error =
          rdmalloc_reg_get(book->domain, block.base, block.length, RDMALLOC_ACCESS_LOCAL, &reg);
      MUST(error == -ECHILD || error == -EINVAL, "rdmalloc_reg_get of the parent's domain: %d",
           error);
      error = rdmalloc_reg_key(book->domain, block.base, 1, RDMALLOC_ACCESS_LOCAL, &key);
      MUST(error == -ECHILD || error == -EINVAL, "rdmalloc_reg_key of the parent's domain: %d",
           error);
    }
    if (how % 2 == 0) {
      int error = rdmalloc_domain_close(book->domain);
      MUST(error == 0 || error == -EINVAL, "rdmalloc_domain_close of the parent's domain: %d",
           error);
    }
  }
  for (Held& held : held_) rdmalloc_reg_put(held.reg);
  if (heap_ != nullptr) {
    rdmalloc_key key;
    if (heap_blocks_[0] != nullptr) {
      int error = rdmalloc_heap_key(heap_, 0, heap_blocks_[0], 1, &key);
      MUST(error == -ECHILD, "rdmalloc_heap_key in a child: %d", error);
    }
    int error = rdmalloc_heap_destroy(heap_);
    MUST(error == 0, "rdmalloc_heap_destroy in a child: %d", error);
  }
  if (pool_ != nullptr) {
    int error = rdmalloc_pool_destroy(pool_);
    MUST(error == 0, "rdmalloc_pool_destroy in a child: %d", error);
  }
  failure_rate = 0;
  Variant variant = variant_of(0, 0);
  Book* book = new Book(variant, true);
  int error = book->open(nullptr);
  MUST(error == 0, "rdmalloc_domain_open in a child: %d", error);
  for (Block& block : blocks_) {
    if (block.base == nullptr) continue;
    rdmalloc_reg* reg = nullptr;
    error = rdmalloc_reg_get(book->domain, block.base, block.length, RDMALLOC_ACCESS_LOCAL, &reg);
    MUST(error == 0, "rdmalloc_reg_get in a child: %d", error);
    rdmalloc_reg_put(reg);
    rdmalloc_free(block.base);
  }
  error = rdmalloc_quiesce(-1);
  MUST(error == 0, "rdmalloc_quiesce in a child: %d", error);
  MUST(book->sum().count == 0, "a quiesce in a child has ended with registrations");
  error = rdmalloc_resume();
  MUST(error == 0, "rdmalloc_resume in a child: %d", error);
  error = rdmalloc_domain_close(book->domain);
  MUST(error == 0 && book->is_closed, "rdmalloc_domain_close in a child: %d", error);
  _exit(0);
}

void Worker::fork_now() {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  // TSan has no threads in such a child, and AddressSanitizer's allocator keeps locks of threads
  // that are not there.
  return;
#endif
  fflush(nullptr);
  pid_t process = fork();
  MUST(process >= 0, "fork: %d", errno);
  if (process == 0) {
    is_child = true;
    quiesced = 0;  // what the parent's other threads have in hand is not the child's
    child(here().below(16));
  }
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child ended with 0x%x",
       static_cast<unsigned>(status));
}

// ---- all together ----

void Worker::one(const Operation& operation) {
  std::size_t at = operation.b % kPlaces;
  Place& place = places[at];
  Block& block = blocks_[operation.a % kBlocks];
  Shared& common = shared[operation.a % kShared];
  switch (operation.kind) {
    case Kind::kAllocate:
      return allocate(block, length_of(operation.c));
    case Kind::kFree:
      return drop(block);
    case Kind::kReallocate: {
      if (block.base == nullptr) return;
      std::size_t length = length_of(operation.c);
      char* base = static_cast<char*>(rdmalloc_realloc(block.base, length));
      MUST(base != nullptr, "realloc");
      block = {};
      block.base = base;
      block.length = length;
      return;
    }
    case Kind::kGet:
    case Kind::kGetAndPut: {
      if (block.base == nullptr) return;
      std::size_t offset = operation.c % block.length;
      std::size_t length = 1 + operation.c / 7 % (block.length - offset);
      unsigned access = operation.c % 6 == 0 ? RDMALLOC_ACCESS_REMOTE_READ : RDMALLOC_ACCESS_LOCAL;
      Held now;
      Held& held = operation.kind == Kind::kGet ? free_place() : now;
      get(place, at, block.base + offset, length, access, block.invalid[at], false, &held);
      return put(now);
    }
    case Kind::kPut:
      return put(held_[operation.a % kHeld]);
    case Kind::kKey:
      if (block.base != nullptr) key(place, at, block, block.invalid[at]);
      return;
    case Kind::kShared: {
      std::uint64_t invalid = common.invalid[at];
      Held now;
      get(place, at, common.base, common.length, RDMALLOC_ACCESS_LOCAL, invalid, false, &now);
      if (operation.c % 3 == 0) dawdle();
      return put(now);
    }
    case Kind::kInvalidate:
      if (block.base != nullptr && history_.is_aimed)
        invalidate_around(operation, block);
      else if (block.base != nullptr)
        invalidate(operation.b, block.base, block.length, operation.c, block.invalid, nullptr);
      return;
    case Kind::kInvalidateShared:
      return invalidate(operation.b, common.base, common.length, operation.c, nullptr,
                        common.invalid);
    case Kind::kInvalidateAll: {
      std::uintptr_t arena = 0;
      std::size_t length = 0;
      rdmalloc_arena_extent(&arena, &length);
      std::atomic<std::uint64_t> invalid[kPlaces] = {};
      invalidate(operation.b, reinterpret_cast<char*>(arena), length, operation.c, nullptr,
                 invalid);
      for (std::size_t i = 0; i < kPlaces; ++i) {
        std::uint64_t seen = places[i].all_invalid;
        while (seen < invalid[i] &&
               !places[i].all_invalid.compare_exchange_weak(seen, invalid[i])) {
        }
      }
      return;
    }
    case Kind::kFlush: {
      Inside inside(place);
      if (inside) (void)rdmalloc_domain_flush(inside.book->domain);
      return;
    }
    case Kind::kPurge: {
      std::int64_t purged = rdmalloc_purge(operation.c % 3 == 0 ? 1u << 20 : 0);
      MUST(purged >= 0 || purged == -EBUSY, "rdmalloc_purge: %d", static_cast<int>(purged));
      return;
    }
    case Kind::kPause: {
      int error = rdmalloc_purge_pause();
      MUST(error == 0, "rdmalloc_purge_pause: %d", error);
      dawdle();
      rdmalloc_purge_resume();
      return;
    }
    case Kind::kLose: {
      Inside inside(place);
      if (!inside || operation.c % 4 != 0) return;
      ends_of_keys.begin();
      inside.book->is_lost = true;
      int error = rdmalloc_domain_lost(inside.book->domain);
      MUST(error == 0 || error == -EALREADY || error == -EINVAL || error == -EAGAIN,
           "rdmalloc_domain_lost: %d", error);
      ends_of_keys.end();
      return;
    }
    case Kind::kClose:
      return close(place, false);
    case Kind::kAbandon:
      return close(place, true);
    case Kind::kOpen:
      return open(at);
    case Kind::kQuiesce:
      return quiesce(operation.c);
    case Kind::kHeapCreate:
    case Kind::kHeapDestroy:
    case Kind::kHeapAbandon:
    case Kind::kHeapGrow:
    case Kind::kHeapBlock:
    case Kind::kHeapKey:
    case Kind::kHeapGet:
      return heap(operation);
    case Kind::kPoolCreate:
    case Kind::kPoolUse:
    case Kind::kPoolDestroy:
      return pool(operation);
    case Kind::kPrefault: {
      Inside inside(place);
      if (!inside || block.base == nullptr) return;
      iovec range = {block.base, block.length};
      std::uint64_t closes = inside.closes, frozen = freezes.now();
      int error = rdmalloc_reg_prefault(&inside.book->domain, 1, &range, 1, 1 + operation.c % 2,
                                        nullptr, nullptr);
      if (error != 0)
        check_error("rdmalloc_reg_prefault", error, inside.book, place, closes, frozen);
      return;
    }
    case Kind::kAdopt:
    case Kind::kDisown:
    case Kind::kForeign:
      return foreign_memory(operation);
    case Kind::kStats:
      return stats(place);
    case Kind::kRow:
      return row(operation);
    case Kind::kBurst:
      return burst(operation);
    case Kind::kHand: {
      std::lock_guard<std::mutex> guard(handing);
      return std::swap(block, handed[operation.b % kHanded]);
    }
    case Kind::kThread: {
      // One that ends while it keeps a block, and has others in magazines.
      std::thread([&, number = here().number, operation_number = here().operation] {
        here().number = number;
        here().operation = operation_number;
        here().random.seed(operation.a);
        row({Kind::kRow, 1, operation.b, operation.c});
        burst({Kind::kBurst, 1, operation.b, operation.c});
      }).join();
      return;
    }
    case Kind::kDecay:
      return set_decay(operation.c);
    case Kind::kFork:
      return fork_now();
    case Kind::kCount:
      return;
  }
}

void Worker::run() {
  Here& me = here();
  me.number = number_;
  me.random.seed(static_cast<unsigned>(history_.seed * 8 + static_cast<unsigned>(number_) + 1));
  const auto& operations = history_.threads[static_cast<std::size_t>(number_)];
  for (me.operation = 0; me.operation < operations.size(); ++me.operation)
    one(operations[me.operation]);
}

void Worker::settle() {
  for (Held& held : held_) put(held);
  for (Block& block : blocks_) drop(block);
  for (Block& block : handed) drop(block);
  if (is_adopted_) rdmalloc_disown(foreign_, kForeignBytes / 2);
  if (heap_ != nullptr) {
    int error = rdmalloc_heap_destroy(heap_);
    MUST(error == 0, "at the end, rdmalloc_heap_destroy: %d", error);
  }
  if (pool_ != nullptr) pool({Kind::kPoolDestroy, 0, 0, 0});
}

// What domains count, compared with the books, when nothing happens.
void check_counters(Place& place) {
  if (!place.is_usable) return;
  Book* book = place.book;
  rdmalloc_domain_counters now = {};
  now.size = sizeof now;
  int error = rdmalloc_domain_stats(book->domain, &now);
  MUST(error == 0, "at the end, rdmalloc_domain_stats: %d", error);
  Book::Sum sum = book->sum();
  if (demands_ends) {
    sum.count -= sum.quarantined;
    sum.bytes -= sum.quarantined_bytes;
  }
  MUST(now.registrations == now.deregistrations + now.lost_drops + now.live_count,
       "at the end a domain counts %zu registrations, %zu + %zu ends and %zu live",
       static_cast<std::size_t>(now.registrations), static_cast<std::size_t>(now.deregistrations),
       static_cast<std::size_t>(now.lost_drops), static_cast<std::size_t>(now.live_count));
  MUST(book->is_lost || (now.live_count == sum.count && now.live_bytes == sum.bytes),
       "at the end a domain counts %zu live registrations, %zu bytes, where the registrar has %zu, "
       "%zu bytes",
       static_cast<std::size_t>(now.live_count), static_cast<std::size_t>(now.live_bytes),
       static_cast<std::size_t>(sum.count), static_cast<std::size_t>(sum.bytes));
  MUST(now.in_use == 0, "at the end %zu registrations are held",
       static_cast<std::size_t>(now.in_use));
}

// A fabric's own, which comes after the cache's (it was registered before).
void end_fabric() {
  registrars_gone = true;
  rdmalloc_purge(0);
  for (int i = 0; i < 4; ++i) {
    rdmalloc_free(rdmalloc_malloc(300000));
    dawdle();
  }
}

int on_purge(void*, void* base, size_t length, rdmalloc_purge_reason) {
  auto low = reinterpret_cast<std::uintptr_t>(base);
  // The cache, an earlier observer than we, has agreed.
  for (Book* book : books_so_far())
    MUST(!book->holds(low, length, UINT64_MAX, true, true),
         "a purge of 0x%zx + %zu, and a registration is there", low, length);
  pages.go(low, length);
  return 0;
}
// Of an observer that comes before the cache, since the cache registers the range anew once it has
// been told.
void on_purged(void*, void* base, size_t length, int) {
  pages.gone(reinterpret_cast<std::uintptr_t>(base), length);
}

}  // namespace

void live(const History& history) {
  here().number = 0;
  seed_of_the_librarys_threads = static_cast<unsigned>(history.seed) | 1;
  atexit(end_fabric);
  foreign = static_cast<char*>(mmap(nullptr, kMostThreads * kForeignBytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  MUST(foreign != MAP_FAILED, "no memory");
  pages.begin(foreign, kMostThreads * kForeignBytes);
  // As before a program's first thread: where its processors are, there are shards.
  int error = rdmalloc_init();
  MUST(error == 0, "rdmalloc_init: %d", error);
  // Before there is a fork for it to be beside (watch.cc).
  rdmalloc_watch_counters watch = {};
  watch.size = sizeof watch;
  rdmalloc_watch_stats(&watch);
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  ops.purged = on_purged;
  rdmalloc_observer* observer = nullptr;
  error = rdmalloc_observer_add(&ops, nullptr, &observer);
  MUST(error == 0, "rdmalloc_observer_add: %d", error);
  std::vector<Worker> workers;
  for (std::size_t i = 0; i < history.threads.size(); ++i)
    workers.emplace_back(static_cast<int>(i), history);
  for (std::size_t at = 0; at < kPlaces; ++at) {
    Book* book = new Book(variant_of(at, history.seed), false);
    error = book->open(event);
    MUST(error == 0, "rdmalloc_domain_open: %d", error);
    note_book(book);
    places[at].book = book;
    places[at].is_usable = true;
  }
  ops.purge = on_purge;
  ops.purged = nullptr;
  error = rdmalloc_observer_add(&ops, nullptr, &observer);
  MUST(error == 0, "rdmalloc_observer_add: %d", error);
  constexpr std::size_t kLengths[kShared] = {300, 5000, 200000, 1500000};
  for (std::size_t i = 0; i < kShared; ++i) {
    shared[i].base = static_cast<char*>(rdmalloc_malloc(kLengths[i]));
    shared[i].length = kLengths[i];
  }
  set_decay(history.seed);
  failure_rate = history.is_aimed ? 4 : history.seed % 3 == 0 ? 0 : 12;
  std::vector<std::thread> threads;
  for (Worker& worker : workers) threads.emplace_back([&worker] { worker.run(); });
  for (std::thread& thread : threads) thread.join();
  failure_rate = 0;
  here().operation = SIZE_MAX;
  for (Worker& worker : workers) worker.settle();
  for (Shared& one : shared) rdmalloc_free(one.base);
  // An occasion to end what was abandoned and held.
  Book occasion(variant_of(0, 0), false);
  error = occasion.open(nullptr);
  if (error == 0) error = rdmalloc_domain_close(occasion.domain);
  MUST(error == 0, "at the end, rdmalloc_domain_open and close: %d", error);
  error = rdmalloc_purge_pause();
  MUST(error == 0, "rdmalloc_purge_pause: %d", error);
  for (Place& place : places) check_counters(place);
  rdmalloc_purge_resume();
  // Every other process ends with domains open.
  if (history.seed % 2 == 0) exit(0);
  for (Place& place : places) {
    if (!place.is_usable) continue;
    Book* book = place.book;
    error = rdmalloc_domain_close(book->domain);
    MUST(error == 0, "at the end, rdmalloc_domain_close: %d", error);
  }
  for (Book* book : books_so_far())
    MUST(book->is_closed, "at the end a domain is abandoned and open");
  MUST(dones_due == 0, "at the end %d invalidations are not done", dones_due.load());
  exit(0);
}

}  // namespace model
