#include "bench/traces/pack.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "bench/traces/format.h"

namespace rdmalloc::bench {
namespace {

struct Event {
  RecordedEvent recorded;
  std::uint64_t thread;
};

Operation operation_of(const Event& event) {
  return static_cast<Operation>(event.recorded.what.operation);
}

std::vector<Event> events_of(const std::string& bytes, std::uint64_t full_at) {
  std::vector<Event> events;
  for (std::size_t at = kHeadBytes; at + kChunkBytes <= bytes.size(); at += kChunkBytes) {
    ChunkHead chunk;
    std::memcpy(&chunk, bytes.data() + at, sizeof chunk);
    for (std::size_t i = 1; i <= kChunkEvents; ++i) {
      Event event{{}, chunk.thread};
      std::memcpy(&event.recorded, bytes.data() + at + i * sizeof(RecordedEvent),
                  sizeof(RecordedEvent));
      if (operation_of(event) == Operation::none) break;
      if (full_at == 0 || event.recorded.sequence < full_at) events.push_back(event);
    }
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.recorded.sequence < b.recorded.sequence;
  });
  return events;
}

// Blocks by address become slots, events by time become a list for each thread.
class Packer {
 public:
  void add(const Event& event);
  std::string write(const std::string& path) const;
  Packed& result() { return result_; }

 private:
  struct Slot {
    std::uint32_t turn = 0;
    std::uint64_t last_thread = 0;
  };

  std::size_t list_of(std::uint64_t thread);
  void put(std::size_t list, Operation operation, std::uint32_t slot, const What& what);
  void on_birth(const Event& event, Operation operation);
  void on_end(const Event& event);
  void on_realloc(const Event& event);
  void on_thread(const Event& event);
  std::uint32_t slot_for(std::size_t list);

  Packed result_;
  std::unordered_map<std::uint64_t, std::size_t> lists_;  // by number of the thread
  std::vector<std::vector<TraceEvent>> threads_;
  std::vector<std::vector<std::uint32_t>> idle_slots_;  // of each thread
  std::vector<Slot> slots_;
  std::unordered_map<std::uint64_t, std::uint32_t> live_;          // by address
  std::unordered_map<std::uint64_t, std::uint32_t> growing_;       // by list: what realloc holds
  std::unordered_map<std::uint64_t, std::size_t> list_of_thread_;  // by pthread_t
};

std::size_t Packer::list_of(std::uint64_t thread) {
  const auto [it, is_new] = lists_.emplace(thread, threads_.size());
  if (is_new) {
    threads_.emplace_back();
    idle_slots_.emplace_back();
  }
  return it->second;
}

void Packer::put(std::size_t list, Operation operation, std::uint32_t slot, const What& what) {
  TraceEvent event{slot, slots_[slot].turn++, what};
  event.what.operation = static_cast<unsigned>(operation);
  event.what.waits = event.turn != 0 && slots_[slot].last_thread != list ? 1 : 0;
  slots_[slot].last_thread = list;
  threads_[list].push_back(event);
  ++result_.operations;
}

// A slot that this thread emptied, so that its next use waits for no thread.
std::uint32_t Packer::slot_for(std::size_t list) {
  if (!idle_slots_[list].empty()) {
    const std::uint32_t slot = idle_slots_[list].back();
    idle_slots_[list].pop_back();
    return slot;
  }
  slots_.emplace_back();
  return static_cast<std::uint32_t>(slots_.size() - 1);
}

void Packer::on_birth(const Event& event, Operation operation) {
  const std::size_t list = list_of(event.thread);
  const std::uint32_t slot = slot_for(list);
  if (!live_.emplace(event.recorded.address, slot).second && result_.error.empty())
    result_.error = "broken order: event " + std::to_string(event.recorded.sequence) +
                    " gives out an address that is in use";
  put(list, operation, slot, event.recorded.what);
  ++result_.allocations;
}

void Packer::on_end(const Event& event) {
  const auto found = live_.find(event.recorded.address);
  if (found == live_.end()) {
    ++result_.unknown_blocks;
    return;
  }
  const std::size_t list = list_of(event.thread);
  put(list, operation_of(event), found->second, event.recorded.what);
  idle_slots_[list].push_back(found->second);
  live_.erase(found);
  ++result_.frees;
}

// The old address is free for others between the two events of a realloc; the slot is not.
void Packer::on_realloc(const Event& event) {
  const std::size_t list = list_of(event.thread);
  if (operation_of(event) == Operation::realloc_begins) {
    const auto found = live_.find(event.recorded.address);
    if (found == live_.end()) {
      result_.unknown_blocks += event.recorded.address != 0 ? 1 : 0;
      return;
    }
    growing_[list] = found->second;
    live_.erase(found);
    return;
  }
  const auto grown = growing_.find(list);
  if (grown == growing_.end()) {
    if (event.recorded.address != 0) on_birth(event, Operation::realloc);
    return;
  }
  const std::uint32_t slot = grown->second;
  growing_.erase(grown);
  if (event.recorded.address != 0) {
    live_[event.recorded.address] = slot;
    put(list, Operation::realloc, slot, event.recorded.what);
  } else {  // to size 0, which frees
    put(list, Operation::free, slot, event.recorded.what);
    idle_slots_[list].push_back(slot);
    ++result_.frees;
  }
}

void Packer::on_thread(const Event& event) {
  const std::size_t list = list_of(event.thread);
  TraceEvent made{0, 0, {}};
  made.what.operation = event.recorded.what.operation;
  if (operation_of(event) == Operation::thread_started) {
    made.slot = static_cast<std::uint32_t>(list_of(event.recorded.what.size));
    list_of_thread_[event.recorded.address] = made.slot;
  } else {
    const auto found = list_of_thread_.find(event.recorded.address);
    if (found == list_of_thread_.end()) return;
    made.slot = static_cast<std::uint32_t>(found->second);
    list_of_thread_.erase(found);
  }
  threads_[list].push_back(made);
  ++result_.operations;
}

void Packer::add(const Event& event) {
  const Operation operation = operation_of(event);
  if (begins_a_block(operation))
    on_birth(event, operation);
  else if (ends_a_block(operation))
    on_end(event);
  else if (operation == Operation::realloc || operation == Operation::realloc_begins)
    on_realloc(event);
  else
    on_thread(event);
  result_.threads = threads_.size();
  result_.slots = slots_.size();
}

std::string Packer::write(const std::string& path) const {
  TraceHead head{
      {}, static_cast<std::uint32_t>(threads_.size()), static_cast<std::uint32_t>(slots_.size())};
  std::memcpy(head.magic, kTraceMagic, sizeof head.magic);
  std::ofstream file(path, std::ios::binary);
  const auto put_bytes = [&](const void* data, std::size_t bytes) {
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  };
  put_bytes(&head, sizeof head);
  std::uint64_t offset = sizeof head + threads_.size() * sizeof(TraceThread);
  for (const auto& list : threads_) {
    const TraceThread thread{offset, list.size()};
    put_bytes(&thread, sizeof thread);
    offset += list.size() * sizeof(TraceEvent);
  }
  for (const auto& list : threads_) put_bytes(list.data(), list.size() * sizeof(TraceEvent));
  file.close();
  return file ? "" : "can't write " + path;
}

bool read_head(const std::string& bytes, RecordingHead& head) {
  if (bytes.size() < kHeadBytes) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  head.program[sizeof head.program - 1] = '\0';
  return std::memcmp(head.magic, kRecordingMagic, sizeof head.magic) == 0;
}

std::string first_bytes(const std::string& path, std::size_t most) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes(most, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(most));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

}  // namespace

std::string program_of_recording(const std::string& path) {
  RecordingHead head;
  return read_head(first_bytes(path, kHeadBytes), head) ? head.program : "";
}

Packed pack(const std::string& recording, const std::string& trace) {
  std::ifstream file(recording, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  RecordingHead head;
  Packer packer;
  Packed& result = packer.result();
  if (!read_head(bytes, head)) {
    result.error = recording + " is no recording";
    return result;
  }
  result.program = head.program;
  result.is_forked = head.is_forked != 0;
  result.was_full = head.full_at != 0;
  for (const Event& event : events_of(bytes, head.full_at)) packer.add(event);
  if (result.error.empty() && result.operations == 0) result.error = recording + " has no events";
  if (result.error.empty()) result.error = packer.write(trace);
  return result;
}

}  // namespace rdmalloc::bench
