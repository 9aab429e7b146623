#include "bench/traces/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace rdmalloc::bench {
namespace {

// What a check knows of a slot.
struct SlotState {
  std::uint32_t turn = 0;
  bool is_live = false;
};

bool is_of_threads(Operation operation) {
  return operation == Operation::thread_started || operation == Operation::thread_joined;
}

// The threads of a trace, one step of any that can go on at a time.
class Rehearsal {
 public:
  explicit Rehearsal(const TraceFile& file) : file_(file), slots_(file.slots()) {
    for (std::size_t i = 0; i < file.threads().size(); ++i)
      players_.push_back({std::make_unique<TraceReader>(file, i), {}, false, false, false});
    // Threads that no event starts are there from the beginning.
    for (Player& player : players_) player.is_started = true;
    for (std::size_t i = 0; i < file.threads().size(); ++i) {
      TraceReader reader(file, i);
      for (TraceEvent event; reader.next(event);)
        if (static_cast<Operation>(event.what.operation) == Operation::thread_started &&
            event.slot < players_.size())
          players_[event.slot].is_started = false;
    }
  }

  std::string play();

 private:
  struct Player {
    std::unique_ptr<TraceReader> reader;
    TraceEvent event;
    bool is_started;
    bool has_event;
    bool is_done;
  };

  bool can_go(const TraceEvent& event) const;
  bool step(std::size_t number);

  const TraceFile& file_;
  std::vector<SlotState> slots_;
  std::vector<Player> players_;
  std::string wrong_;
};

bool Rehearsal::can_go(const TraceEvent& event) const {
  const auto operation = static_cast<Operation>(event.what.operation);
  if (operation == Operation::thread_started) return true;
  if (operation == Operation::thread_joined) return players_[event.slot].is_done;
  return event.what.waits == 0 || slots_[event.slot].turn == event.turn;
}

// Whether the thread went on.
bool Rehearsal::step(std::size_t number) {
  Player& player = players_[number];
  if (!player.is_started || player.is_done) return false;
  if (!player.has_event) {
    player.has_event = player.reader->next(player.event);
    player.is_done = !player.has_event;
    if (player.is_done) return true;
  }
  const TraceEvent& event = player.event;
  const auto operation = static_cast<Operation>(event.what.operation);
  const auto refuse = [&](const char* why) {
    wrong_ = std::string("broken order: ") + why + " (thread " + std::to_string(number) +
             ", slot " + std::to_string(event.slot) + ")";
    return false;
  };
  if (operation == Operation::none || operation >= Operation::realloc_begins)
    return refuse("no such operation");
  const std::size_t most = is_of_threads(operation) ? players_.size() : slots_.size();
  if (event.slot >= most) return refuse("no such slot or thread");
  if (!can_go(event)) return false;
  player.has_event = false;
  if (operation == Operation::thread_started) players_[event.slot].is_started = true;
  if (is_of_threads(operation)) return true;
  SlotState& slot = slots_[event.slot];
  if (slot.turn != event.turn) return refuse("an operation out of its turn");
  if (ends_a_block(operation) && !slot.is_live) return refuse("a block that is not there ends");
  if (!ends_a_block(operation) && operation != Operation::realloc && slot.is_live)
    return refuse("a slot is filled twice");
  slot.is_live = !ends_a_block(operation);
  ++slot.turn;
  return true;
}

std::string Rehearsal::play() {
  for (bool went_on = true; went_on && wrong_.empty();) {
    went_on = false;
    for (std::size_t i = 0; i < players_.size(); ++i)
      while (step(i)) went_on = true;
  }
  if (!wrong_.empty()) return wrong_;
  for (std::size_t i = 0; i < players_.size(); ++i)
    if (!players_[i].is_done)
      return "broken order: thread " + std::to_string(i) + " waits for ever";
  return {};
}

}  // namespace

TraceFile::~TraceFile() {
  if (file_ >= 0) close(file_);
}

std::string TraceFile::open(const char* path) {
  file_ = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file_ < 0) return std::string(path) + ": " + strerror(errno);
  struct stat status {};
  fstat(file_, &status);
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (pread(file_, &head_, sizeof head_, 0) != static_cast<ssize_t>(sizeof head_) ||
      std::memcmp(head_.magic, kTraceMagic, sizeof head_.magic) != 0)
    return std::string(path) + " is no trace";
  if (head_.threads == 0 || sizeof head_ + head_.threads * sizeof(TraceThread) > bytes)
    return std::string(path) + " ends in its head";
  threads_.resize(head_.threads);
  const std::size_t table = threads_.size() * sizeof(TraceThread);
  if (pread(file_, threads_.data(), table, sizeof head_) != static_cast<ssize_t>(table))
    return std::string(path) + " can't be read";
  for (const TraceThread& thread : threads_)
    if (thread.offset > bytes || thread.events > (bytes - thread.offset) / sizeof(TraceEvent))
      return std::string(path) + " is cut off";
  return {};
}

std::string TraceFile::check() const {
  return Rehearsal(*this).play();
}

std::uint64_t TraceFile::operations() const {
  std::uint64_t sum = 0;
  for (const TraceThread& thread : threads_) sum += thread.events;
  return sum;
}

bool TraceReader::next(TraceEvent& event) {
  if (at_ == filled_) {
    if (left_ == 0) return false;
    const std::size_t wanted = std::min<std::uint64_t>(left_, buffer_.size());
    const ssize_t got =
        pread(file_, buffer_.data(), wanted * sizeof(TraceEvent), static_cast<off_t>(offset_));
    if (got != static_cast<ssize_t>(wanted * sizeof(TraceEvent))) return false;
    offset_ += wanted * sizeof(TraceEvent);
    left_ -= wanted;
    filled_ = wanted;
    at_ = 0;
  }
  event = buffer_[at_++];
  return true;
}

}  // namespace rdmalloc::bench
