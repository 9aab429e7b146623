#include "tests/model/book.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

namespace model {

std::atomic<std::uint64_t> ticks{0};
Pages pages;
std::atomic<const char*>* failure = nullptr;
std::atomic<int> quiesced{0};
std::atomic<bool> registrars_gone{false}, is_child{false};
std::atomic<unsigned> failure_rate{0};
bool demands_heaps = false, demands_ends = false;

Here& here() {
  static thread_local Here mine;
  return mine;
}

void fail(const char* format, ...) {
  if (failure != nullptr) *failure = format;
  char text[600];
  Here& me = here();
  int length = snprintf(text, sizeof text, "failed in %s, operation %zu%s: ",
                        me.number >= 0 ? "thread" : "a thread of the library", me.operation,
                        is_child ? ", in a child" : "");
  if (me.number >= 0)
    length = snprintf(text, sizeof text, "failed in thread %d, operation %zu%s: ", me.number,
                      me.operation, is_child ? ", in a child" : "");
  va_list values;
  va_start(values, format);
  length +=
      vsnprintf(text + length, sizeof text - static_cast<std::size_t>(length) - 2, format, values);
  va_end(values);
  if (static_cast<std::size_t>(length) > sizeof text - 2) length = sizeof text - 2;
  text[length++] = '\n';
  ssize_t written = write(2, text, static_cast<std::size_t>(length));
  _exit(written < 0 ? kFailed : kFailed);
}

void dawdle() {
  unsigned how = here().below(16);
  if (how < 6) {
    sched_yield();
  } else if (how == 6) {
    const timespec pause = {0, 100000};
    nanosleep(&pause, nullptr);
  }
}

namespace {

std::atomic<std::uint32_t>* numbers(std::size_t count) {
  void* base = mmap(nullptr, count * sizeof(std::uint32_t), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MUST(base != MAP_FAILED, "no memory for the identities of %zu pages", count);
  return static_cast<std::atomic<std::uint32_t>*>(base);
}

std::mutex books_lock;
std::vector<Book*> books;

}  // namespace

void Pages::begin(char* foreign, std::size_t foreign_bytes) {
  rdmalloc_arena_extent(&arena_, &arena_bytes_);
  of_arena_ = numbers(arena_bytes_ / kPage);
  foreign_ = reinterpret_cast<std::uintptr_t>(foreign);
  foreign_bytes_ = foreign_bytes;
  of_foreign_ = numbers(foreign_bytes / kPage);
}

std::atomic<std::uint32_t>* Pages::at(std::uintptr_t address) const {
  if (address - arena_ < arena_bytes_) return of_arena_ + (address - arena_) / kPage;
  MUST(address - foreign_ < foreign_bytes_, "0x%zx is memory without an owner", address);
  return of_foreign_ + (address - foreign_) / kPage;
}

std::uint64_t Pages::identity(std::uintptr_t base, std::size_t length, bool* is_whole) const {
  std::atomic<std::uint32_t>* first = at(base);
  std::atomic<std::uint32_t>* last = at(base + length - 1);
  std::uint64_t sum = 0;
  for (; first <= last; ++first) {
    std::uint32_t one = *first;
    if (is_whole != nullptr && one % 2 != 0) *is_whole = false;
    sum += one;
  }
  return sum;
}

void Pages::go(std::uintptr_t base, std::size_t length) {
  for (std::size_t offset = 0; offset < length; offset += kPage) ++*at(base + offset);
}
void Pages::gone(std::uintptr_t base, std::size_t length) {
  for (std::size_t offset = 0; offset < length; offset += kPage) {
    std::atomic<std::uint32_t>& one = *at(base + offset);
    if (one % 2 != 0) ++one;  // unless the cache has refused
  }
}

std::vector<Book*> books_so_far() {
  std::lock_guard<std::mutex> guard(books_lock);
  return books;
}
void note_book(Book* book) {
  std::lock_guard<std::mutex> guard(books_lock);
  books.push_back(book);
}

Book::Book(const Variant& which, bool is_of_child) : variant(which), is_of_child_(is_of_child) {}

int Book::open(int (*event)(rdmalloc_domain*, rdmalloc_domain_event, void*)) {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "book";
  ops.flags = variant.flags;
  ops.granularity = variant.granularity;
  ops.largest = variant.largest;
  ops.register_ = [](void* book, void* addr, size_t length, uint32_t access, rdmalloc_key* key) {
    return static_cast<Book*>(book)->enter(addr, length, access, key);
  };
  ops.deregister = [](void* book, void* addr, size_t length, const rdmalloc_key* key) {
    return static_cast<Book*>(book)->leave(addr, length, key);
  };
  ops.quiesce = [](void* book) { return static_cast<Book*>(book)->device_closes(); };
  ops.resume = [](void* book) { return static_cast<Book*>(book)->device_opens(); };
  ops.close = [](void* context) {
    Book* book = static_cast<Book*>(context);
    MUST(!book->is_closed.exchange(true), "close was called twice");
    Sum left = book->sum();
    MUST(book->is_lost || left.count == left.quarantined, "%zu registrations are left at the close",
         static_cast<std::size_t>(left.count - left.quarantined));
  };
  rdmalloc_domain_attr attr = {};
  attr.size = sizeof attr;
  attr.max_bytes = variant.max_bytes;
  attr.max_count = variant.max_count;
  attr.event = event;
  attr.event_arg = this;
  return rdmalloc_domain_open(&ops, this, &attr, &domain);
}

void Book::check_call(const char* what) {
  MUST(!is_closed, "%s after the close", what);
  MUST(!has_no_device_, "%s while the device is closed for a checkpoint", what);
  MUST(!registrars_gone, "%s after the fabric's exit handler", what);
  MUST(!is_child || is_of_child_, "%s of the parent's domain", what);
  MUST((variant.flags & RDMALLOC_REGISTRAR_ANY_THREAD) != 0 || here().number >= 0,
       "%s on a thread of the library, of a registrar without ANY_THREAD", what);
}

namespace {

// Registrars allocate too, and may not come back to us for what would wait for them.
void act_like_a_fabric(rdmalloc_domain* domain) {
  Here& me = here();
  if (me.below(8) == 0) rdmalloc_free(rdmalloc_malloc(1 + me.below(200000)));
  if (me.below(64) == 0) {
    int error = rdmalloc_quiesce(0);
    MUST(error == -EDEADLK, "rdmalloc_quiesce() inside a registrar's call: %d", error);
  }
  if (me.is_dropping && domain != nullptr && me.below(16) == 0) {
    int error = rdmalloc_domain_close(domain);
    MUST(error == -EDEADLK, "rdmalloc_domain_close() inside deregister: %d", error);
  }
  dawdle();
}

}  // namespace

int Book::enter(void* addr, std::size_t length, std::uint32_t access, rdmalloc_key* key) {
  Here& me = here();
  Entry entry = {
      reinterpret_cast<std::uintptr_t>(addr), length, tick(), 0, me.makes_heaps, false, me.number};
  check_call("register_");
  MUST(quiesced == 0, "register_ between a quiesce and its resume");
  bool is_whole = true;
  entry.identity = pages.identity(entry.base, length, &is_whole);
  // In a child of a purge nothing is on its way.
  MUST(is_lost || is_whole || is_child, "register_ of pages on their way out: 0x%zx + %zu",
       entry.base, length);
  act_like_a_fabric(nullptr);
  int error = 0;
  unsigned rate = failure_rate;
  if (rate != 0 && me.below(rate) == 0) {
    static constexpr int kErrors[] = {-ENOMEM, -EIO, -ENOMEM, -EEXIST, -EIO, -ENOTRECOVERABLE};
    error = kErrors[me.below(std::size(kErrors))];
    if (me.below(40) == 0) error = -ENODEV;
  }
  if (error == -ENODEV || (error != 0 && me.resumes)) is_lost = true;
  if (error != 0 && error != -ENOTRECOVERABLE) return error;
  std::lock_guard<std::mutex> guard(mutex_);
  MUST(is_lost || entry.identity == pages.identity(entry.base, length),
       "pages went while they were registered: 0x%zx + %zu", entry.base, length);
  if (variant.refuses_overlaps)
    for (auto& [serial, other] : entries_)
      if (other.base < entry.base + length && other.base + other.length > entry.base) {
        if (me.resumes) is_lost = true;
        return -EEXIST;
      }
  static std::atomic<std::uint64_t> serials{0};
  key->lkey = ++serials;
  key->rkey = (access & RDMALLOC_ACCESS_REMOTE) != 0 ? key->lkey : 0;
  key->handle = this;
  entry.is_quarantined = error != 0;
  entries_[key->lkey] = entry;
  return error;
}

int Book::leave(void* addr, std::size_t length, const rdmalloc_key* key) {
  check_call("deregister");
  Here& me = here();
  bool was_dropping = me.is_dropping;
  me.is_dropping = true;
  act_like_a_fabric(domain);
  me.is_dropping = was_dropping;
  int error = 0;
  unsigned rate = failure_rate;
  if (rate != 0 && me.below(8 * rate) == 0) error = me.below(20) == 0 ? -ENODEV : -EIO;
  if (error == -ENODEV) is_lost = true;
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = entries_.find(key->lkey);
  MUST(found != entries_.end(), "deregister of what is not registered: 0x%zx + %zu",
       reinterpret_cast<std::uintptr_t>(addr), length);
  Entry& entry = found->second;
  MUST(entry.base == reinterpret_cast<std::uintptr_t>(addr) && entry.length == length &&
           key->handle == this && !entry.is_quarantined,
       "deregister of another registration than 0x%zx + %zu", entry.base, entry.length);
  MUST(is_lost || entry.identity == pages.identity(entry.base, length),
       "pages went under a registration: 0x%zx + %zu", entry.base, length);
  if (error != 0)
    entry.is_quarantined = true;
  else
    entries_.erase(found);
  return error;
}

int Book::device_closes() {
  check_call("quiesce");
  Sum left = sum();
  MUST(is_lost || left.count == left.quarantined,
       "%zu registrations are left at the device's close",
       static_cast<std::size_t>(left.count - left.quarantined));
  if (failure_rate != 0 && here().below(16) == 0) return -EIO;
  std::lock_guard<std::mutex> guard(mutex_);
  has_no_device_ = true;
  if ((variant.flags & RDMALLOC_REGISTRAR_REOPEN) != 0) entries_.clear();
  return 0;
}
int Book::device_opens() {
  has_no_device_ = false;
  check_call("resume");
  if (failure_rate != 0 && here().below(24) == 0) {
    is_lost = true;
    return -EIO;
  }
  return 0;
}

Book::Entry Book::entry_of(const rdmalloc_key& key, const char* what) {
  MUST(key.handle == this, "%s: the key is another domain's", what);
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = entries_.find(key.lkey);
  MUST(found != entries_.end(), "%s: the key is of a registration that has ended", what);
  MUST(!found->second.is_quarantined, "%s: the key is of a registration in quarantine", what);
  return found->second;
}

bool Book::find(const rdmalloc_key& key, Entry* entry) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = entries_.find(key.lkey);
  if (key.handle != this || found == entries_.end() || found->second.is_quarantined) return false;
  *entry = found->second;
  return true;
}

bool Book::holds(std::uintptr_t base, std::size_t length, std::uint64_t before, bool heaps_too,
                 bool quarantined_too) {
  if (is_lost) return false;
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [serial, entry] : entries_)
    if (entry.base < base + length && entry.base + entry.length > base && entry.begun < before &&
        (heaps_too || !entry.is_heaps) && (quarantined_too || !entry.is_quarantined))
      return !is_lost;
  return false;
}

void Book::note_heaps() {
  std::uint64_t now = tick();
  std::lock_guard<std::mutex> guard(mutex_);
  for (auto& [serial, entry] : entries_)
    if (entry.is_heaps && entry.maker == here().number) entry.known = std::min(entry.known, now);
}

Book::Sum Book::sum() {
  std::lock_guard<std::mutex> guard(mutex_);
  Sum all;
  for (auto& [serial, entry] : entries_) {
    ++all.count;
    all.bytes += entry.length;
    all.quarantined += entry.is_quarantined;
    if (entry.is_quarantined) all.quarantined_bytes += entry.length;
  }
  return all;
}

}  // namespace model
