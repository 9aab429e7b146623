#include "alloc/core/options.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstring>

#include "alloc/core/report.h"
#include "alloc/core/statistics_path.h"
#include "alloc/os/fault.h"
#include "alloc/os/memory.h"

// argc lies where the kernel put it, followed by argv and the environment. The dynamic linker calls
// malloc before libc has set `environ`, which is why we need it. (glibc, elf/dl-support.c.)
extern "C" __attribute__((weak)) void* __libc_stack_end;

namespace rdmalloc {
namespace {

constinit Options current;

char** environment() {
  if (environ != nullptr) return environ;
  if (&__libc_stack_end == nullptr || __libc_stack_end == nullptr) return nullptr;
  auto* words = static_cast<long*>(__libc_stack_end);
  return reinterpret_cast<char**>(words + 1 + words[0] + 1);
}

void warn(const char* name, const char* value, const char* allowed, const char* fallback) {
  if (current.quiet) return;
  Message()
      .text("warning: ")
      .text(name)
      .text("=")
      .value(value)
      .text(" is not understood; allowed: ")
      .text(allowed)
      .text("; using ")
      .text(fallback)
      .print();
}

// Which of these words the value is, by their order, which is that of the setting's enum; -1: none.
int index_of(const char* value, const char* words) {
  for (int index = 0;; ++index) {
    const char* comma = std::strchr(words, ',');
    std::size_t length =
        comma != nullptr ? static_cast<std::size_t>(comma - words) : std::strlen(words);
    if (std::strncmp(value, words, length) == 0 && value[length] == 0) return index;
    if (comma == nullptr) return -1;
    words = comma + 2;
  }
}

template <class Word>
bool read_word(const char* value, const char* allowed, Word* setting) {
  int index = index_of(value, allowed);
  if (index >= 0) *setting = static_cast<Word>(index);
  return index >= 0;
}

// `allowed`: as in Setting.
using Reader = bool (*)(const char* value, const char* allowed);

template <auto kSetting>
bool read_one_of(const char* value, const char* allowed) {
  return read_word(value, allowed, &(current.*kSetting));
}
bool read_pressure(const char* value, const char* allowed) {
  bool is_off = false;
  if (!read_word(value, allowed, &is_off)) return false;
  current.watch_pressure = !is_off;
  return true;
}
bool read_stats(const char* value, const char*) {
  int index = index_of(value, "0, 1");
  // A word without a slash is a slip, not a file of that name in whatever folder this is.
  if (index < 0 &&
      (std::strchr(value, '/') == nullptr || !statistics_file_name(value, current.rank)))
    return false;
  current.stats_at_exit = index < 0 ? StatsAtExit::kFile : static_cast<StatsAtExit>(index);
  return true;
}
bool read_decay(const char* value, const char*) {
  std::uint64_t number = 0;
  std::size_t length = std::strlen(value);
  // Digits to the end: "1m" is no minute, and would be 1,048,576 milliseconds.
  if (length == 0 || length > 7 || value[length - 1] > '9') return false;
  if (!parse_size(value, 0, &number) || number > 3600000) return false;
  current.decay_ms = number;
  return true;
}
bool read_dirty_max(const char* value, const char*) {
  std::uint64_t number = 0;
  if (!parse_size(value, os::memory_limit_bytes(), &number) || number == 0) return false;
  current.dirty_max_bytes = number;
  return true;
}
bool read_limit(const char* value, const char*) {
  std::uint64_t number = 0;
  constexpr std::uint64_t kSmallest = std::uint64_t{4} << 20;
  if (!parse_size(value, os::memory_limit_bytes(), &number) || number < kSmallest) return false;
  current.limit_bytes = number;
  return true;
}
bool read_arena(const char* value, const char*) {
  std::uint64_t number = 0;
  constexpr std::uint64_t kSmallest = std::uint64_t{16} << 20, kLargest = std::uint64_t{64} << 40;
  if (!parse_size(value, os::memory_limit_bytes(), &number)) return false;
  if (number < kSmallest || number > kLargest) return false;
  current.arena_bytes = number;
  return true;
}
// "auto", "one"; for our own tests "2x4" (256 places at most), or the directory that stands for
// /sys/devices/system.
bool read_topology(const char* value, const char* allowed) {
  os::TopologySource& source = current.topology;
  if (read_word(value, allowed, &source.mode)) return true;
  if (*value == '/') {
    // Copied: it is used later, when the environment may have changed.
    std::size_t length = std::strlen(value);
    if (length > os::TopologySource::kLongestPath || !os::topology_is_at(value)) return false;
    std::memcpy(source.directory, value, length + 1);
    source.mode = os::TopologyMode::kDirectory;
    return true;
  }
  std::uint32_t numbers[2] = {}, which = 0;
  bool has_digits = false;
  for (const char* c = value; *c != 0; ++c) {
    if (*c >= '0' && *c <= '9' && numbers[which] <= os::kMostPlaces) {
      numbers[which] = numbers[which] * 10 + static_cast<unsigned>(*c - '0');
      has_digits = true;
    } else if (*c == 'x' && which == 0 && has_digits) {
      which = 1;
      has_digits = false;
    } else {
      return false;
    }
  }
  if (which != 1 || !has_digits || numbers[0] == 0 || numbers[1] == 0 ||
      numbers[0] * numbers[1] > os::kMostPlaces)
    return false;
  source.mode = os::TopologyMode::kMadeUp;
  source.nodes = numbers[0];
  source.processors = numbers[1];
  return true;
}
bool read_reg_bytes(const char* value, const char*) {
  return parse_size(value, os::memory_limit_bytes(), &current.reg_max_bytes);
}
bool read_reg_count(const char* value, const char*) {
  return parse_size(value, 0, &current.reg_max_count);
}

// "site:n", several separated by commas.
template <typename See>
bool for_each_fault(const char* value, See see) {
  while (*value != 0) {
    const char* colon = std::strchr(value, ':');
    if (colon == nullptr) return false;
    std::uint64_t nth = 0;
    const char* end = colon + 1;
    bool is_too_large = false;
    for (; *end >= '0' && *end <= '9'; ++end)
      is_too_large |= __builtin_mul_overflow(nth, 10, &nth) ||
                      __builtin_add_overflow(nth, static_cast<unsigned>(*end - '0'), &nth);
    if (is_too_large) return false;
    if (end == colon + 1 || nth == 0 || (*end != ',' && *end != 0)) return false;
    os::Site site = os::site_named(value, static_cast<std::size_t>(colon - value));
    if (site == os::Site::kCount) return false;
    see(site, nth);
    value = *end == ',' ? end + 1 : end;
  }
  return true;
}
bool read_fault(const char* value, const char*) {
  // All of them or, where one is not understood, none.
  if (!for_each_fault(value, [](os::Site, std::uint64_t) {})) return false;
  return for_each_fault(value, os::arm_fault);
}

struct Setting {
  const char* name;
  Reader read;
  const char* allowed;
  const char* fallback;
};
constexpr Setting kSettings[] = {
    // First: it silences the others' warnings.
    {"RDMALLOC_LOG", read_one_of<&Options::quiet>, "warn, quiet", "warn"},
    // Before those that make calls.
    {"RDMALLOC_FAULT", read_fault,
     "site:n[,site:n...], n from 1 to 2^64 - 1, of the sites that `rdmalloc info --fault-sites` "
     "lists",
     "none"},
    {"RDMALLOC_PURGE", read_one_of<&Options::purge>, "auto, thread, manual, off", "auto"},
    {"RDMALLOC_DECAY_MS", read_decay, "0 to 3600000 (milliseconds)", "5000"},
    {"RDMALLOC_DIRTY_MAX", read_dirty_max,
     "a size above 0: bytes, K, M, G, T or 1% to 100% of memory",
     "25% of memory, at most 512M or 32M a processor"},
    {"RDMALLOC_LIMIT", read_limit, "4M or more: bytes, K, M, G, T or 1% to 100% of memory",
     "no limit"},
    {"RDMALLOC_PRESSURE", read_pressure, "auto, off", "auto"},
    {"RDMALLOC_CHECK", read_one_of<&Options::check_frees>, "off, frees", "off"},
    {"RDMALLOC_HUGE", read_one_of<&Options::huge>, "auto, never, 2M, 1G", "auto"},
    {"RDMALLOC_NOTIFY", read_one_of<&Options::notify>, "auto, hooks, explicit, off", "auto"},
    {"RDMALLOC_FOREIGN", read_one_of<&Options::foreign>, "per-use, adopted, watch", "per-use"},
    {"RDMALLOC_CHECKPOINT", read_one_of<&Options::checkpoint>, "off, on", "off"},
    {"RDMALLOC_ARENA", read_arena, "16M to 64T, or 1% to 100% of memory",
     "1T, or four times the memory there is"},
    {"RDMALLOC_TOPOLOGY", read_topology, "auto, one", "auto"},
    {"RDMALLOC_REG_MAX_BYTES", read_reg_bytes,
     "bytes, K, M, G, T or 1% to 100% of memory; 0: no limit", "0"},
    {"RDMALLOC_REG_MAX_COUNT", read_reg_count, "a number; 0: no limit", "0"},
    {"RDMALLOC_STATS", read_stats,
     "0, 1, or a file with a '/' in its name: ./stats.%p.json (%p process, %h host, %r rank, %% %)",
     "0"},
};

bool is_ours(const char* entry) {
  return entry[0] == 'R' && std::strncmp(entry, "RDMALLOC_", 9) == 0;
}

bool is_any_ours(char** entries) {
  for (char** entry = entries; *entry != nullptr; ++entry)
    if (is_ours(*entry)) return true;
  return false;
}

// The value of `name` in a string NAME=VALUE, or nullptr.
const char* value_of(const char* entry, const char* name) {
  std::size_t length = std::strlen(name);
  if (std::strncmp(entry, name, length) != 0 || entry[length] != '=') return nullptr;
  return entry + length + 1;
}

bool is_known(const char* entry) {
  for (const Setting& setting : kSettings)
    if (value_of(entry, setting.name) != nullptr) return true;
  return false;
}

}  // namespace

const Options& options() {
  return current;
}

bool parse_size(const char* text, std::uint64_t whole, std::uint64_t* value) {
  std::uint64_t number = 0;
  const char* c = text;
  for (; *c >= '0' && *c <= '9'; ++c) {
    if (number > (UINT64_MAX - 9) / 10) return false;
    number = number * 10 + static_cast<unsigned>(*c - '0');
  }
  if (c == text) return false;
  if (*c == '%') {
    if (c[1] != 0 || number == 0 || number > 100 || whole == 0) return false;
    *value = whole / 100 * number;
    return true;
  }
  int shift = 0;
  switch (*c) {
    case 0:
      break;
    case 'k':
    case 'K':
      shift = 10;
      break;
    case 'm':
    case 'M':
      shift = 20;
      break;
    case 'g':
    case 'G':
      shift = 30;
      break;
    case 't':
    case 'T':
      shift = 40;
      break;
    default:
      return false;
  }
  if (shift != 0 && c[1] != 0) return false;
  if (number > (UINT64_MAX >> shift)) return false;
  *value = number << shift;
  return true;
}

void options_read() {
  // A setuid program must not be steered by its caller.
  if (getauxval(AT_SECURE) != 0) return;
  char** entries = environment();
  if (entries == nullptr) return;
  current.rank = rank_in(entries);
  // Most processes have no setting, and each begins with this: all names times all entries would be
  // a quarter of the instructions that we add to /bin/true.
  if (!is_any_ours(entries)) return;
  for (const Setting& setting : kSettings) {
    for (char** entry = entries; *entry != nullptr; ++entry) {
      const char* value = value_of(*entry, setting.name);
      if (value == nullptr) continue;
      if (!setting.read(value, setting.allowed))
        warn(setting.name, value, setting.allowed, setting.fallback);
      break;
    }
  }
  for (char** entry = entries; *entry != nullptr; ++entry) {
    if (!is_ours(*entry) || is_known(*entry)) continue;
    if (std::strncmp(*entry, "RDMALLOC_LAB_", 13) == 0) continue;  // tools/lab's own
    report_warning("unknown setting ignored; docs/settings.md lists them all", *entry);
  }
  if (current.stats_at_exit == StatsAtExit::kFile && current.rank.rank >= 0)
    statistics_file_begin();
}

void options_silence_stats() {
  current.stats_at_exit = StatsAtExit::kNone;
}

}  // namespace rdmalloc
