#include "regcache/core/history.h"

#if RDMALLOC_CHECKED

#include <atomic>
#include <cstddef>
#include <cstring>

#include "alloc/for_regcache.h"

namespace rdmalloc::regcache {
namespace {

// A registrar's name, cut if need be: a plugin that closes its domain may be unloaded.
struct Name {
  static constexpr std::size_t kWords = 3;
  std::uint64_t words[kWords];  // all zero: none

  static Name of(const char* text) {
    Name name = {};
    if (text != nullptr)
      std::strncpy(reinterpret_cast<char*>(name.words), text, sizeof name.words - 1);
    return name;
  }
};

// All atomic: a writer that comes round the ring may overtake a reader, who then skips the entry.
struct Entry {
  std::atomic<std::uint64_t> number;  // from 1; 0: being written, or never
  std::atomic<std::int64_t> at_ns;
  std::atomic<std::uintptr_t> low, high;
  std::atomic<std::uint64_t> registrar[Name::kWords];
  std::atomic<std::uint64_t> generation;
  std::atomic<const void*> caller;
  std::atomic<int> thread;
  std::atomic<Event> event;
};
constexpr std::size_t kEntries = 8192;  // the last thousand purges, each with what it dropped
constinit Entry ring[kEntries] = {};
constinit std::atomic<std::uint64_t> last{0};
constinit thread_local const void* caller = nullptr;

const char* name_of(Event event) {
  switch (event) {
    case Event::kRegistered:
      return "registered";
    case Event::kDeregistered:
      return "deregistered";
    case Event::kEvicted:
      return "evicted";
    case Event::kDroppedByPurge:
      return "deregistered by a purge";
    case Event::kInvalidated:
      return "invalidated";
    case Event::kPurgeAsked:
      return "a purge asked for";
    case Event::kPurgeRefused:
      return "the purge refused";
    case Event::kPurged:
      return "the purge done with";
    case Event::kAdopted:
      return "adopted";
    case Event::kDisowned:
      return "disowned";
  }
  return "?";
}

void print_entry(const Entry& entry, std::uintptr_t low, std::uintptr_t high, std::int64_t now_ns) {
  // Acquire: pairs with the release at the end of note(). Each load is one, so that the second look
  // at the number comes after all of them.
  constexpr auto kAcquire = std::memory_order_acquire;
  std::uint64_t number = entry.number.load(kAcquire);
  std::uintptr_t its_low = entry.low.load(kAcquire), its_high = entry.high.load(kAcquire);
  if (number == 0 || its_low >= high || its_high <= low) return;
  Message line;
  line.text("  ")
      .number(static_cast<std::uint64_t>(now_ns - entry.at_ns.load(kAcquire)) / 1000)
      .text(" us ago: ")
      .text(name_of(entry.event.load(kAcquire)))
      .text(" ")
      .address(reinterpret_cast<const void*>(its_low))
      .text(" + ")
      .number(its_high - its_low);
  Name registrar;
  for (std::size_t i = 0; i < Name::kWords; ++i)
    registrar.words[i] = entry.registrar[i].load(kAcquire);
  if (registrar.words[0] != 0)
    line.text(", ")
        .text(reinterpret_cast<const char*>(registrar.words))
        .text(" generation ")
        .number(entry.generation.load(kAcquire));
  line.text(", thread ").signed_number(entry.thread.load(kAcquire));
  if (const void* from = entry.caller.load(kAcquire)) line.text(" in a call from ").address(from);
  if (entry.number.load(kAcquire) == number) line.print();
}

}  // namespace

void note_caller(const void* address) {
  caller = address;
}

void note(Event event, std::uintptr_t low, std::uintptr_t high, const char* registrar,
          std::uint64_t generation) {
  std::uint64_t number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  Entry& entry = ring[number % kEntries];
  entry.number.store(0, std::memory_order_relaxed);
  // Release, each: a reader that sees one of them sees that the number is no longer the old one.
  constexpr auto kRelease = std::memory_order_release;
  entry.at_ns.store(os::monotonic_ns(), kRelease);
  entry.low.store(low, kRelease);
  entry.high.store(high, kRelease);
  Name name = Name::of(registrar);
  for (std::size_t i = 0; i < Name::kWords; ++i) entry.registrar[i].store(name.words[i], kRelease);
  entry.generation.store(generation, kRelease);
  entry.caller.store(caller, kRelease);
  entry.thread.store(os::thread_id(), kRelease);
  entry.event.store(event, kRelease);
  entry.number.store(number, kRelease);
}

void print_history(std::uintptr_t low, std::uintptr_t high) {
  std::uint64_t end = last.load(std::memory_order_acquire);
  std::uint64_t first = end > kEntries ? end - kEntries + 1 : 1;
  Message()
      .text("history of that page, ")
      .number(end - first + 1)
      .text(" events looked through:")
      .print();
  std::int64_t now_ns = os::monotonic_ns();
  for (std::uint64_t number = first; number <= end; ++number)
    print_entry(ring[number % kEntries], low, high, now_ns);
}

}  // namespace rdmalloc::regcache

#endif
