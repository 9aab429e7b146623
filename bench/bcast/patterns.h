// The patterns of bcast_worker: how a program gets the buffers it broadcasts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace rdmalloc::bench {

// For the bench's own tests.
enum class Fault {
  none,
  corrupt_byte,  // these three: of the last rank, in a broadcast
  hang,
  crash,
  hang_at_end,  // the last rank, with everything measured and printed, never comes to MPI_Finalize
  late_at_end   // rank 0 comes late to the last collective, and again to MPI_Finalize
};

struct WorkerOptions {
  std::vector<std::size_t> sizes;     // bytes, ascending
  std::vector<std::string> patterns;  // of fresh, reused, growing, mixed, phases
  double scale = 1;                   // of the number of broadcasts
  int pause_ms = 2200;                // of phases: longer than every peer's purge delay (2 s)
  Fault fault = Fault::none;
};

// What one rank measured of one pattern and size, broadcast by broadcast.
struct Series {
  std::string pattern = {};
  std::size_t bytes = 0;              // 0 for mixed
  std::vector<double> bcast_us = {};  // MPI_Bcast alone
  std::vector<double> cycle_us =
      {};  // malloc + write + MPI_Bcast + free; reused: write + MPI_Bcast
  std::vector<double> after_pause_us =
      {};                  // phases: MPI_Bcast, only the first one after each pause
  long page_faults = 0;    // of this rank, in all of it
  double kernel_us = 0;    // processor time in the kernel, likewise
  long huge_pages = 0;     // that the rank has at the end of it
  long registrations = 0;  // of this rank, likewise; nonsense where they are not counted
  std::size_t wrong_bytes = 0;
  std::size_t wrong_offset = 0;
};

class Patterns {
 public:
  Patterns(int rank, int ranks, const WorkerOptions& options)
      : rank_(rank), ranks_(ranks), options_(options) {}

  // Called for each finished series, on every rank.
  using Emit = void (*)(const Series& series, void* argument);
  void run(Emit emit, void* argument);

 private:
  struct Times {
    double malloc_us = 0, write_us = 0, bcast_us = 0, free_us = 0;
    double cycle_us() const { return malloc_us + write_us + bcast_us + free_us; }
  };
  struct LiveBuffer {
    void* memory;
    std::uint64_t seed;
    Times times;
  };

  void* allocate(std::size_t bytes, Times& times);
  void release(void* memory, Times& times);
  std::uint64_t broadcast(void* memory, std::size_t bytes, Times& times, Series& series);
  void verify(const void* memory, std::size_t bytes, std::uint64_t seed, Series& series);
  void one_fresh(std::size_t bytes, Series& series, bool record);
  void inject_fault(void* memory, std::size_t bytes);
  void allocate_other_things(int milliseconds);
  int count_for(std::size_t bytes, std::size_t total_bytes, int least, int most) const;

  void fresh_and_reused(std::size_t bytes, bool fresh, bool reused, Emit emit, void* argument);
  void growing(std::size_t bytes, Emit emit, void* argument);
  void mixed(Emit emit, void* argument);
  void phases(Emit emit, void* argument);

  int rank_;
  int ranks_;
  WorkerOptions options_;
  std::uint64_t broadcasts_ = 0;  // counted alike on every rank: the seed of the payload
};

}  // namespace rdmalloc::bench
