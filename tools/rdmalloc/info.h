// What `rdmalloc info` prints: the state of rdmalloc in this process, which has the same
// environment as a program started from the same shell.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace rdmalloc::tool {

struct Setting {
  std::string name;   // RDMALLOC_PURGE
  std::string value;  // in force, in the words that the setting takes
  bool is_set;        // in the environment; otherwise it is the default
};

struct Notifier {
  std::string name;  // as in enum rdmalloc_notifier, in small letters
  bool is_attached, is_started, watches_foreign;
  std::int32_t error;
  std::uint64_t notified, attaches, refused;
  std::string explanation;
};

struct Info {
  std::string version, library;
  std::vector<Setting> settings;
  std::string tier, tier_reason;
  std::vector<Notifier> notifiers;
  bool calls_libc = false, is_madvise_patched = false;
  std::uint64_t foreign_notified = 0, holds = 0;
  std::int64_t watch_error = 0;  // why RDMALLOC_FOREIGN=watch can't watch; 0: it can
  std::string purge_mode;
  bool purge_thread_runs = false;
  std::uint64_t decay_ms = 0, dirty_max_bytes = 0;
  std::uintptr_t arena_base = 0;
  std::uint64_t arena_bytes = 0, mapped_bytes = 0, used_bytes = 0, dirty_bytes = 0;
};

// Asks the library. Throws std::runtime_error when it does not answer, which only another version
// of it than this tool's does.
Info gather();

std::string as_text(const Info& info);
nlohmann::json as_json(const Info& info);

// The names that RDMALLOC_FAULT takes, with a word on each.
std::string fault_sites_as_text();
nlohmann::json fault_sites_as_json();

}  // namespace rdmalloc::tool
