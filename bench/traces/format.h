// The two files of a recorded program. A recording is what librecord.so writes: events as they
// came, in chunks of one thread each, blocks by address. A trace is what pack_trace makes of it and
// what replay_trace plays: for each thread its operations in order, blocks by the number of a slot.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc::bench {

enum class Operation : std::uint8_t {
  none,  // the unused rest of a chunk
  malloc,
  calloc,
  realloc,  // in a recording: its end, with the new address
  aligned,  // memalign, aligned_alloc, posix_memalign
  free,
  op_new,
  op_new_aligned,
  op_delete,
  op_delete_sized,
  op_delete_aligned,
  thread_started,
  thread_joined,
  realloc_begins,  // in a recording only, with the old address
};

constexpr bool begins_a_block(Operation operation) {
  return operation == Operation::malloc || operation == Operation::calloc ||
         operation == Operation::aligned || operation == Operation::op_new ||
         operation == Operation::op_new_aligned;
}
constexpr bool ends_a_block(Operation operation) {
  return operation == Operation::free || operation == Operation::op_delete ||
         operation == Operation::op_delete_sized || operation == Operation::op_delete_aligned;
}

// Size, log2 of the alignment and operation in one word.
struct What {
  std::uint64_t size : 48;
  std::uint64_t alignment_log2 : 7;
  std::uint64_t waits : 1;  // in a trace: the slot was last another thread's
  std::uint64_t operation : 8;
};

// ------------------------------------------------------------------ a recording

constexpr char kRecordingMagic[8] = {'R', 'D', 'M', 'R', 'E', 'C', '1', '\n'};
constexpr std::size_t kHeadBytes = 4096;
constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

struct RecordingHead {
  char magic[8];
  char program[56];
  std::uint32_t process;
  std::uint32_t is_forked;  // it frees blocks that its parent allocated
  std::uint64_t full_at;  // the sequence number at which the recording was full; 0: it is complete
};

// The sequence is one count of the process. What brings a block into the world takes its number
// after the call, what ends one before it: an address is never born before its earlier life ended.
struct RecordedEvent {
  std::uint64_t sequence;
  std::uint64_t address;  // of a thread: its pthread_t
  What what;              // of a thread: its number as size
};

struct ChunkHead {
  std::uint64_t thread;
  std::uint64_t unused[2];
};
static_assert(sizeof(ChunkHead) == sizeof(RecordedEvent));
constexpr std::size_t kChunkEvents = kChunkBytes / sizeof(RecordedEvent) - 1;

// ------------------------------------------------------------------ a trace

constexpr char kTraceMagic[8] = {'R', 'D', 'M', 'T', 'R', 'C', '1', '\n'};

struct TraceHead {
  char magic[8];
  std::uint32_t threads;
  std::uint32_t slots;
};

// One for each thread, behind the head.
struct TraceThread {
  std::uint64_t offset;  // of its first event in the file
  std::uint64_t events;
};

struct TraceEvent {
  std::uint32_t slot;  // of a thread: its number
  std::uint32_t turn;  // how many events there were on the slot before
  What what;
};
static_assert(sizeof(TraceEvent) == 16 && sizeof(RecordedEvent) == 24);

}  // namespace rdmalloc::bench
