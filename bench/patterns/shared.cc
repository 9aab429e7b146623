// Patterns in which blocks end on another thread than the one that they were born on.
#include <array>
#include <atomic>
#include <mutex>

#include "bench/patterns/patterns.h"
#include "bench/support/mapped.h"

namespace rdmalloc::bench {
namespace {

char* born(const Shape& shape, Random& random) {
  char* block = must_have(std::malloc(random.between(shape.least, shape.most)));
  *static_cast<volatile char*>(block) = 1;
  return block;
}

// ---- batches that go to the next thread

constexpr std::size_t kBatch = 64;

struct alignas(64) Batch {
  std::atomic<bool> is_full;
  std::array<char*, kBatch> blocks;
};

// A ring of batches between two threads. All is_full are false at first.
class Boxes {
 public:
  Boxes(Mapped<Batch>& batches, std::size_t first, std::size_t count)
      : batches_(batches), first_(first), count_(count) {}
  // The writer's next box, nullptr while the reader has not emptied it.
  Batch* to_fill() {
    Batch& batch = batches_[first_ + filled_ % count_];
    return batch.is_full.load(std::memory_order_acquire) ? nullptr : &batch;  // pairs with emptied
  }
  Batch* to_empty() {
    Batch& batch = batches_[first_ + emptied_ % count_];
    return batch.is_full.load(std::memory_order_acquire) ? &batch : nullptr;  // pairs with filled
  }
  void note_filled(Batch& batch) {
    batch.is_full.store(true, std::memory_order_release);
    ++filled_;
  }
  void note_emptied(Batch& batch) {
    batch.is_full.store(false, std::memory_order_release);
    ++emptied_;
  }
  std::size_t filled() const { return filled_; }
  std::size_t emptied() const { return emptied_; }

 private:
  Mapped<Batch>& batches_;
  const std::size_t first_;
  const std::size_t count_;
  std::size_t filled_ = 0;   // the writer's
  std::size_t emptied_ = 0;  // the reader's
};

// Sends and receives so many batches more.
void hand_over_some(Member& me, const Shape& shape, std::size_t count, Boxes& to_next,
                    Boxes& from_previous) {
  const std::size_t filled_at_end = to_next.filled() + count;
  const std::size_t emptied_at_end = from_previous.emptied() + count;
  while (to_next.filled() < filled_at_end || from_previous.emptied() < emptied_at_end) {
    Batch* out = to_next.filled() < filled_at_end ? to_next.to_fill() : nullptr;
    if (out != nullptr) {
      for (char*& block : out->blocks) block = born(shape, me.random);
      to_next.note_filled(*out);
    }
    Batch* in = from_previous.emptied() < emptied_at_end ? from_previous.to_empty() : nullptr;
    if (in != nullptr) {
      for (char* block : in->blocks) std::free(block);
      from_previous.note_emptied(*in);
    }
    if (out == nullptr && in == nullptr) me.idle();
  }
}

// Each thread frees what the one before it allocated, 64 blocks at once; `live` blocks may be on
// their way.
void hand_over(Team& team) {
  const Shape& shape = team.shape();
  const std::size_t boxes = (shape.live + kBatch - 1) / kBatch;
  Mapped<Batch> batches(shape.threads * boxes);
  team.run([&](Member& me) {
    const unsigned next = (me.number + 1) % shape.threads;
    Boxes to_next(batches, next * boxes, boxes);
    Boxes from_previous(batches, me.number * boxes, boxes);
    const std::size_t before = shape.warm_up / kBatch + 1;
    hand_over_some(me, shape, before, to_next, from_previous);
    const std::size_t count = shape.operations / kBatch + 1;
    me.begin(before * kBatch);
    hand_over_some(me, shape, count, to_next, from_previous);
    me.end(count * kBatch);
  });
}

// ---- larson: arrays that change hands

void larson(Team& team) {
  constexpr std::size_t kRounds = 4;  // of the measured work; before it one
  const Shape& shape = team.shape();
  Mapped<char*> blocks(shape.threads * shape.live);
  team.run([&](Member& me) {
    const auto renew_some = [&](std::size_t round, std::size_t count) {
      char** array = &blocks[(me.number + round) % shape.threads * shape.live];
      for (std::size_t i = 0; i < count; ++i) {
        char*& block = array[me.random.below(shape.live)];
        std::free(block);
        block = born(shape, me.random);
      }
    };
    for (std::size_t i = 0; i < shape.live; ++i)
      blocks[me.number * shape.live + i] = born(shape, me.random);
    renew_some(0, shape.warm_up);
    me.begin(shape.live + shape.warm_up);
    for (std::size_t round = 1; round <= kRounds; ++round) {
      renew_some(round, shape.operations / kRounds);
      if (round != kRounds) me.meet();
    }
    me.end(shape.operations / kRounds * kRounds);
    me.meet_unmeasured();
    for (std::size_t i = 0; i < shape.live; ++i) std::free(blocks[me.number * shape.live + i]);
  });
}

// ---- a pool of threads that take jobs from one queue

// A job's own blocks, which the thread that takes the job frees.
struct Job {
  char* input;
  Job* next;
};

// Last in, first out. There are more jobs than threads, so that none waits for one.
class Jobs {
 public:
  void put(Job* job) {
    const std::lock_guard lock(mutex_);
    job->next = first_;
    first_ = job;
  }
  Job* take() {
    const std::lock_guard lock(mutex_);
    Job* job = first_;
    if (job != nullptr) first_ = job->next;
    return job;
  }

 private:
  std::mutex mutex_;
  Job* first_ = nullptr;
};

Job* new_job(const Shape& shape, Random& random) {
  auto* job = reinterpret_cast<Job*>(must_have(std::malloc(sizeof(Job))));
  job->input = born(shape, random);
  return job;
}

void end_job(Job* job) {
  std::free(job->input);
  std::free(job);
}

// Each job takes some memory for a while, and leaves another job behind.
void pool(Team& team) {
  constexpr std::size_t kFirstJobs = 4;  // of a thread
  constexpr std::size_t kTemporary = 14;
  constexpr std::size_t kBlocksOfANewJob = 2;
  constexpr std::size_t kOperationsOfAJob = kTemporary + kBlocksOfANewJob;
  const Shape& shape = team.shape();
  Jobs jobs;
  team.run([&](Member& me) {
    const auto do_some = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        Job* job = jobs.take();
        std::array<char*, kTemporary> temporary;
        for (char*& block : temporary) block = born(shape, me.random);
        for (char* block : temporary) std::free(block);
        jobs.put(new_job(shape, me.random));
        end_job(job);
      }
    };
    for (std::size_t i = 0; i < kFirstJobs; ++i) jobs.put(new_job(shape, me.random));
    me.meet_unmeasured();
    const std::size_t before = shape.warm_up / kOperationsOfAJob;
    do_some(before);
    const std::size_t count = shape.operations / kOperationsOfAJob + 1;
    me.begin(kFirstJobs * kBlocksOfANewJob + before * kOperationsOfAJob);
    do_some(count);
    me.end(count * kOperationsOfAJob);
  });
  for (Job* job = jobs.take(); job != nullptr; job = jobs.take()) end_job(job);
}

}  // namespace

const std::vector<Pattern>& shared_patterns() {
  static const std::vector<Pattern> patterns = {
      {"hand-over", "each thread frees what the one before it allocated, 64 at once", hand_over},
      {"larson", "random replacement in arrays that go from thread to thread", larson},
      {"pool", "jobs from one queue, each with 14 temporary blocks and a job after it", pool},
  };
  return patterns;
}

}  // namespace rdmalloc::bench
