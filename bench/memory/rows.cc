#include "bench/memory/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/patterns/runs.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kKiB = 1 << 10;
constexpr std::size_t kMiB = 1 << 20;

using Words = std::vector<std::string>;

std::string number(double value) {
  return fmt::format("{}", value);
}

void append(Words& words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
}

// ---- live blocks of one size

GridRow live_row(const MemoryOptions& options, std::size_t bytes, std::size_t alignment,
                 const std::string& group) {
  GridRow row;
  row.name =
      alignment == 0 ? fmt::format("live:{}", bytes) : fmt::format("live:{}/{}", bytes, alignment);
  row.command = {options.program_folder + "/memory_patterns", "live", "--bytes", number(bytes)};
  if (alignment != 0) append(row.command, {"--alignment", number(alignment)});
  row.group = group;
  row.about = {{"bytes", bytes}, {"alignment", alignment}};
  return row;
}

// Each doubling from 16 B to 64 MiB in so many steps of equal ratio.
void add_sweep(const MemoryOptions& options, std::vector<GridRow>& rows) {
  constexpr std::size_t kLeast = 16;
  constexpr std::size_t kMost = 64 * kMiB;
  std::size_t last = 0;
  for (std::size_t from = kLeast; from < kMost; from *= 2)
    for (int step = 0; step <= options.sizes_a_doubling; ++step) {
      const double ratio = std::exp2(static_cast<double>(step) / options.sizes_a_doubling);
      const auto bytes = static_cast<std::size_t>(std::lround(static_cast<double>(from) * ratio));
      if (bytes <= last)
        continue;  // of small sizes there are fewer; and a doubling ends where the next begins
      last = bytes;
      rows.push_back(live_row(options, bytes, 0, "live blocks of one size"));
      rows.back().section = fmt::format("{} to {}", bytes_text(from), bytes_text(2 * from));
      rows.back().x = static_cast<double>(bytes);
    }
}

// Blocks as long as their alignment, and shorter and longer ones.
void add_alignments(const MemoryOptions& options, std::vector<GridRow>& rows) {
  for (std::size_t alignment = 32; alignment <= 64 * kKiB; alignment *= 2)
    for (const std::size_t bytes :
         {std::size_t{100}, alignment / 2, alignment, alignment + alignment / 2, 4 * kKiB}) {
      GridRow row = live_row(options, bytes, alignment, "aligned live blocks");
      const bool is_there = std::any_of(
          rows.begin(), rows.end(), [&](const GridRow& other) { return other.name == row.name; });
      if (is_there) continue;
      row.section = fmt::format("at {}", bytes_text(alignment));
      rows.push_back(std::move(row));
    }
}

void add_named_sizes(const MemoryOptions& options, std::vector<GridRow>& rows) {
  for (const std::size_t bytes : {33'000, 66'000, 132'000, 1'100'000})
    rows.push_back(live_row(options, bytes, 0, "live blocks"));
  rows.push_back(live_row(options, 4 * kKiB, 64 * kKiB, "live blocks"));
}

// ---- patterns

GridRow pattern_row(const MemoryOptions& options, const std::string& name, const char* group) {
  GridRow row;
  row.name = name;
  row.command = {options.program_folder + "/memory_patterns",
                 name,
                 "--settle-s",
                 number(options.settle_s),
                 "--scale",
                 number(options.scale)};
  row.group = group;
  return row;
}

constexpr const char* kPatterns = "patterns";
constexpr const char* kThreads = "threads that worked, and sleep";
constexpr const char* kReturned = "given back after a peak, % of what was freed";
constexpr const char* kSmall = "small processes and heaps";
constexpr const char* kLimited = "in a cgroup of 256 MiB";

void add_patterns(const MemoryOptions& options, std::vector<GridRow>& rows) {
  for (const char* name :
       {"mostly-freed-33K", "mostly-freed-66K", "aligned-mix", "next-sizes", "vectors", "sawtooth",
        "phases", "queue", "tables", "messages", "moving-buffers", "resized", "only-allocates",
        "object-cache", "half-freed", "appended", "sparse"})
    rows.push_back(pattern_row(options, name, kPatterns));
  for (const char* name : {"aligned-mix", "vectors", "phases"}) {
    rows.push_back(pattern_row(options, name, kPatterns));
    rows.back().name += "/one-thread";
    append(rows.back().command, {"--one-thread"});
  }
  GridRow rptest;
  rptest.name = "rptest";
  rptest.group = kPatterns;
  rptest.command = {options.program_folder + "/program_set",
                    "rptest",
                    "--threads",
                    "2",
                    "--scale",
                    number(options.scale)};
  rows.push_back(std::move(rptest));
}

// The threads free all that they have, and stay.
GridRow threads_row(const MemoryOptions& options, const char* text, double settle_s,
                    const char* group) {
  const PatternRun run = run_of(text);
  GridRow row;
  row.name = run.name();
  row.command = run.command(options.program_folder);
  append(row.command, {"--rest", "--settle-s", number(settle_s), "--operations", "2000"});
  row.group = group;
  return row;
}

void add_threads(const MemoryOptions& options, std::vector<GridRow>& rows) {
  constexpr double kQuietS = 8;
  const double quiet_s = std::min(options.settle_s, kQuietS);
  for (const char* run : {"replace:16-4K:128@64", "replace:16-4K:128@1000"})
    rows.push_back(threads_row(options, run, quiet_s, kThreads));
  for (const char* run :
       {"replace:16-1K:128@64", "replace:1K-32K:32@64", "replace:64-64K:32@64",
        "replace:40K-256K:8@64", "replace:256K-1M:8@64", "hand-over:16-1K:64@64",
        "hand-over:16-1K:256@32", "hand-over:32-256:256@100", "hand-over:64K-512K:64@8",
        "larson:16-1K:128@64", "come-and-go:16-1K:64@64"})
    rows.push_back(threads_row(options, run, options.settle_s, kThreads));
}

void add_returned(const MemoryOptions& options, std::vector<GridRow>& rows) {
  for (const char* name : {"peak-idle", "peak-trickle"}) {
    rows.push_back(pattern_row(options, name, kReturned));
    append(rows.back().command, {"--until-s", number(options.until_s)});
  }
  rows.push_back(rows.end()[-2]);
  rows.back().name += "/one-thread";
  append(rows.back().command, {"--one-thread"});
}

void add_small(const MemoryOptions& options, std::vector<GridRow>& rows) {
  const Words files = {"/proc/self/smaps_rollup", "/proc/self/maps"};
  GridRow cat;
  cat.name = "cat";
  cat.command = {"/usr/bin/cat"};
  append(cat.command, files);
  GridRow python;
  python.name = "python";
  python.command = {"/usr/bin/python3", "-c",
                    "import sys\nfor name in sys.argv[1:]: sys.stdout.write(open(name).read())"};
  append(python.command, files);
  rows.push_back(std::move(cat));
  rows.push_back(std::move(python));
  rows.push_back(threads_row(options, "rest:16:1@64", 0, kSmall));
  for (const char* name : {"heap-1M", "heap-3M", "heap-10M", "heap-30M", "small-blocks"}) {
    rows.push_back(pattern_row(options, name, kSmall));
    rows.back().command.resize(2);  // whole, and looked at at once
  }
  for (GridRow& row : rows)
    if (row.group.empty()) row.group = kSmall;
}

// What is asked comes to 178 to 189 MiB; and, for a control, to 283.
void add_limited(const MemoryOptions& options, const MemoryCgroups& cgroups,
                 std::vector<GridRow>& rows) {
  constexpr std::size_t kLimit = 256 * kMiB;
  struct Blocks {
    std::size_t count;
    std::size_t bytes;
  };
  for (const Blocks& blocks : {Blocks{6'000, 33'000}, Blocks{3'000, 66'000}, Blocks{170, 1'100'000},
                               Blocks{9'000, 33'000}}) {
    GridRow row = live_row(options, blocks.bytes, 0, kLimited);
    append(row.command, {"--count", number(blocks.count)});
    row.command = cgroups.limited(kLimit, row.command);
    row.name = fmt::format("limited:{}x{}", blocks.count, blocks.bytes);
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<std::string> memory_parts() {
  return {"sizes", "sweep", "patterns", "threads", "returned", "small", "limits"};
}

bool has_part(const MemoryOptions& options, const std::string& part) {
  const std::vector<std::string> wanted = split_list(options.parts);
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), part) != wanted.end();
}

std::vector<GridRow> memory_rows(const MemoryOptions& options, const MemoryCgroups* cgroups) {
  std::vector<GridRow> rows;
  if (has_part(options, "sizes")) add_named_sizes(options, rows);
  if (has_part(options, "sweep")) {
    add_sweep(options, rows);
    add_alignments(options, rows);
  }
  if (has_part(options, "patterns")) add_patterns(options, rows);
  if (has_part(options, "threads")) add_threads(options, rows);
  if (has_part(options, "returned")) add_returned(options, rows);
  if (has_part(options, "small")) add_small(options, rows);
  if (has_part(options, "limits") && cgroups != nullptr) add_limited(options, *cgroups, rows);
  return rows;
}

}  // namespace rdmalloc::bench
