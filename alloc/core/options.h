// Settings from the environment, read once at the first allocation and never again: the process may
// change its environment afterwards, and getenv is not safe beside that.
#pragma once

#include <cstdint>

#include "alloc/core/rank.h"
#include "alloc/os/topology.h"

namespace rdmalloc {

// kAuto: the purge thread comes with the program's own; kThread: with the program.
enum class PurgeMode : std::uint8_t { kAuto, kThread, kManual, kOff };
constexpr bool has_purge_thread(PurgeMode mode) {
  return mode == PurgeMode::kAuto || mode == PurgeMode::kThread;
}
enum class HugeMode : std::uint8_t { kAuto, kNever, k2M, k1G };
// Who hears of a purge besides our own cache (docs/design.md, tiers).
enum class NotifyMode : std::uint8_t { kAuto, kHooks, kExplicit, kOff };
// RDMALLOC_STATS: nowhere, as text on standard error, or as JSON in a file (statistics_path.h).
enum class StatsAtExit : std::uint8_t { kNone, kStandardError, kFile };
// What the registration cache does with memory that is not ours.
enum class ForeignMode : std::uint8_t { kPerUse, kAdopted, kWatch };

struct Options {
  PurgeMode purge = PurgeMode::kAuto;
  HugeMode huge = HugeMode::kAuto;
  NotifyMode notify = NotifyMode::kAuto;
  ForeignMode foreign = ForeignMode::kPerUse;
  bool checkpoint = false;     // RDMALLOC_CHECKPOINT: a thread serves `rdmalloc checkpoint`
  bool check_frees = false;    // RDMALLOC_CHECK=frees: each free goes to its slab, which knows
  bool watch_pressure = true;  // RDMALLOC_PRESSURE: PSI and limits of cgroups
  bool quiet = false;          // RDMALLOC_LOG=quiet
  StatsAtExit stats_at_exit = StatsAtExit::kNone;
  Rank rank;                               // in a parallel job, as its launcher says
  std::uint64_t decay_ms = 5000;           // decisions/0007-free-pages.md
  std::uint64_t dirty_max_bytes = 0;       // 0: see limits.h
  std::uint64_t limit_bytes = UINT64_MAX;  // spans in use at most; dirty ones go as it comes near
  std::uint64_t arena_bytes = 0;           // 0: 1 TiB or four times the memory there is
  os::TopologySource topology;             // RDMALLOC_TOPOLOGY
  std::uint64_t reg_max_bytes = 0;         // 0: no limit
  std::uint64_t reg_max_count = 0;         // 0: no limit but the registrar's
};

// The settings in force. Before options_read() the defaults.
const Options& options();
// Reads RDMALLOC_* of the environment; unknown names and malformed values warn once each.
void options_read();
// Takes RDMALLOC_STATS back.
void options_silence_stats();

// "1536", "64K", "2M", "1G", "1T" in bytes; "25%" of `whole`. False when it is none of these.
bool parse_size(const char* text, std::uint64_t whole, std::uint64_t* value);

}  // namespace rdmalloc
