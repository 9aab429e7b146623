// replay_trace [--check | --unchecked] FILE: does what a recorded program asked of malloc, with as
// many threads, blocks handed over between them as they were, as fast as it can. First it looks
// whether the order can be right: --check does nothing else, --unchecked leaves it to who has done
// so before, so that it is not measured.
//
// What it gets it writes to as a program would: the first and the last byte, and one byte of every
// page between; of what realloc adds likewise. The first and last byte are a mark that is looked
// for before the block ends or grows: an allocator that gives out memory twice is found out.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>

#include "bench/support/blocks.h"
#include "bench/support/marks.h"
#include "bench/support/server_of_malloc.h"
#include "bench/traces/trace_file.h"

namespace {

using namespace rdmalloc::bench;

struct Slot {
  char* block;
  std::uint64_t size;
  std::atomic<std::uint32_t> turn;  // how many operations are done on it
};

struct Player {
  pthread_t thread;
  std::size_t number;
  bool is_started;
  bool is_joined;
};

TraceFile trace;
Slot* slots;      // mapped, not allocated: what is measured is the program's memory
Player* players;  // likewise
std::atomic<std::uint64_t> operations_done{0};

[[noreturn]] void fail(const char* what, std::uint32_t slot) {
  std::fprintf(stderr, "replay_trace: %s (slot %u)\n", what, slot);
  std::_Exit(4);
}

char mark_of(std::uint32_t slot) {
  return static_cast<char>(slot * 31 + 7);
}

void touch(const Slot& slot, std::uint32_t number, std::uint64_t from) {
  if (slot.size == 0) return;
  touch_pages(slot.block, slot.size, from);
  slot.block[0] = mark_of(number);
  slot.block[slot.size - 1] = mark_of(number);
}

void look(const Slot& slot, std::uint32_t number) {
  if (slot.size == 0) return;
  if (slot.block[0] != mark_of(number) || slot.block[slot.size - 1] != mark_of(number))
    fail("a block was overwritten", number);
}

void* obtain(const TraceEvent& event) {
  const std::size_t size = event.what.size;
  const std::size_t alignment = std::size_t{1} << event.what.alignment_log2;
  switch (static_cast<Operation>(event.what.operation)) {
    case Operation::calloc:
      return std::calloc(1, size);
    case Operation::aligned: {
      void* block = nullptr;
      const std::size_t least = alignment < sizeof(void*) ? sizeof(void*) : alignment;
      return posix_memalign(&block, least, size) == 0 ? block : nullptr;
    }
    case Operation::op_new:
      return ::operator new(size, std::nothrow);
    case Operation::op_new_aligned:
      return ::operator new (size, std::align_val_t{alignment}, std::nothrow);
    default:
      return std::malloc(size);
  }
}

void release(const TraceEvent& event, const Slot& slot) {
  switch (static_cast<Operation>(event.what.operation)) {
    case Operation::op_delete:
      return ::operator delete(slot.block);
    case Operation::op_delete_sized:
      return ::operator delete(slot.block, slot.size);
    case Operation::op_delete_aligned:  // its alignment is not recorded: allocators ask for none
      return ::operator delete (slot.block, std::align_val_t{16});
    default:
      return std::free(slot.block);
  }
}

// Waits for the thread that has the block before. After some 100 us the thread sleeps: of an MPI
// rank, whose progress threads wait nearly all the time, half the processor time was such turns,
// and more the longer the other thread took.
void await_turn(const Slot& slot, std::uint32_t turn) {
  constexpr int kSpins = 100, kYields = 300;
  constexpr timespec kNap{0, 50'000};
  // Acquire: pairs with the release in on_block().
  for (int looks = 0; slot.turn.load(std::memory_order_acquire) != turn; ++looks) {
    if (looks > kSpins + kYields)
      nanosleep(&kNap, nullptr);
    else if (looks > kSpins)
      sched_yield();
  }
}

void on_block(const TraceEvent& event) {
  Slot& slot = slots[event.slot];
  if (event.what.waits != 0) await_turn(slot, event.turn);
  const auto operation = static_cast<Operation>(event.what.operation);
  if (slot.block != nullptr) look(slot, event.slot);
  if (operation == Operation::realloc) {
    const std::uint64_t before = slot.block != nullptr ? slot.size : 0;
    slot.block = static_cast<char*>(std::realloc(slot.block, event.what.size));
    slot.size = event.what.size;
    if (slot.block == nullptr && slot.size != 0) fail("no memory", event.slot);
    if (before != 0 && slot.size != 0 && slot.block[0] != mark_of(event.slot))
      fail("realloc lost what was in the block", event.slot);
    touch(slot, event.slot, before < slot.size ? before : slot.size);
  } else if (begins_a_block(operation)) {
    slot.block = static_cast<char*>(obtain(event));
    slot.size = event.what.size;
    if (slot.block == nullptr) fail("no memory", event.slot);
    if (operation == Operation::calloc && slot.size != 0 &&
        (slot.block[0] != 0 || slot.block[slot.size - 1] != 0))
      fail("calloc gave memory that is not zero", event.slot);
    touch(slot, event.slot, 0);
  } else {
    if (slot.block == nullptr) fail("a block ends that is not there", event.slot);
    release(event, slot);
    slot.block = nullptr;
  }
  slot.turn.store(event.turn + 1, std::memory_order_release);
}

void* play(void* argument);

void on_thread(const TraceEvent& event) {
  Player& other = players[event.slot];
  if (static_cast<Operation>(event.what.operation) == Operation::thread_started) {
    other.number = event.slot;
    if (pthread_create(&other.thread, nullptr, play, &other) != 0) fail("no thread", event.slot);
    other.is_started = true;
  } else if (other.is_started && !other.is_joined) {
    pthread_join(other.thread, nullptr);
    other.is_joined = true;
  }
}

void* play(void* argument) {
  const Player& player = *static_cast<Player*>(argument);
  TraceReader reader(trace, player.number);
  std::uint64_t count = 0;
  for (TraceEvent event; reader.next(event); ++count) {
    const auto operation = static_cast<Operation>(event.what.operation);
    if (operation == Operation::thread_started || operation == Operation::thread_joined)
      on_thread(event);
    else
      on_block(event);
  }
  operations_done.fetch_add(count);
  return nullptr;
}

template <typename Element>
Element* mapped(std::size_t count) {
  void* memory = mmap(nullptr, (count + 1) * sizeof(Element), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("no memory for the slots", 0);
  return static_cast<Element*>(memory);
}

// Thread 0 is ours; those that no thread of the trace starts are there from the beginning.
void play_all() {
  const std::size_t count = trace.threads().size();
  bool* is_started_by_another = mapped<bool>(count);
  for (std::size_t i = 0; i < count && count > 1; ++i) {
    TraceReader reader(trace, i);
    for (TraceEvent event; reader.next(event);)
      if (static_cast<Operation>(event.what.operation) == Operation::thread_started)
        is_started_by_another[event.slot] = true;
  }
  mark(Mark::begin);
  for (std::uint32_t i = 1; i < count; ++i) {
    TraceEvent start{i, 0, {}};
    start.what.operation = static_cast<unsigned>(Operation::thread_started);
    if (!is_started_by_another[i]) on_thread(start);
  }
  play(&players[0]);
  for (std::size_t i = 1; i < count; ++i)
    if (players[i].is_started && !players[i].is_joined) pthread_join(players[i].thread, nullptr);
  mark(Mark::end);
}

int refuse(const std::string& problem) {
  std::fprintf(stderr, "replay_trace: %s\n", problem.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const char* option = argc == 3 ? argv[1] : "";
  const bool only_check = std::strcmp(option, "--check") == 0;
  const bool unchecked = std::strcmp(option, "--unchecked") == 0;
  if (argc != 2 && !only_check && !unchecked)
    return refuse("usage: replay_trace [--check | --unchecked] FILE");
  if (const std::string problem = trace.open(argv[argc - 1]); !problem.empty())
    return refuse(problem);
  if (!unchecked)
    if (const std::string problem = trace.check(); !problem.empty()) return refuse(problem);
  if (!only_check) {
    slots = mapped<Slot>(trace.slots());
    players = mapped<Player>(trace.threads().size());
    play_all();
  }
  std::printf("{\"malloc\":\"%s\",\"threads\":%zu,\"slots\":%u,\"operations\":%lu}\n",
              server_of_malloc(), trace.threads().size(), trace.slots(),
              only_check ? trace.operations() : operations_done.load());
  return 0;
}
