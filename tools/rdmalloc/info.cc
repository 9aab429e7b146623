#include "tools/rdmalloc/info.h"

#include <fmt/format.h>
#include <rdmalloc/notifier.h>
#include <rdmalloc/rdmalloc.h>
#include <rdmalloc/regcache.h>

#include <cstdlib>
#include <stdexcept>

#include "alloc/os/fault.h"
#include "tools/rdmalloc/programs.h"

namespace rdmalloc::tool {
namespace {

std::uint64_t value_of(const char* name) {
  std::uint64_t value = 0;
  std::size_t size = sizeof value;
  if (int error = rdmalloc_ctl(name, &value, &size, nullptr, 0))
    throw std::runtime_error(
        fmt::format("the library at hand does not know '{}' ({}); is it of "
                    "another version than this tool?",
                    name, rdmalloc_strerror(error)));
  return value;
}

// Exact, in the largest unit that is.
std::string size_text(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"", "K", "M", "G", "T"};
  int unit = 0;
  while (unit < 4 && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    unit++;
  }
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

std::string limit_text(std::uint64_t value, std::uint64_t none) {
  return value == none ? "no limit" : size_text(value);
}

template <std::size_t count>
std::string word(std::uint64_t value, const char* const (&words)[count]) {
  return value < count ? words[value] : fmt::format("{}", value);
}
// In the order of the enums that the settings set (docs/settings.md, "By call").
constexpr const char* kPurge[] = {"auto", "thread", "manual", "off"};
constexpr const char* kHuge[] = {"auto", "never", "2M", "1G"};
constexpr const char* kNotify[] = {"auto", "hooks", "explicit", "off"};
constexpr const char* kCheckpoint[] = {"off", "on"};
constexpr const char* kForeign[] = {"per-use", "adopted", "watch"};
constexpr const char* kCheck[] = {"off", "frees"};
constexpr const char* kPressure[] = {"auto", "off"};
constexpr const char* kLog[] = {"warn", "quiet"};

std::string topology_text(std::uint64_t value) {
  static constexpr const char* kTopology[] = {"auto", "one", "a directory"};
  constexpr int kNodesShift = 32;  // of a made-up one: nodes above, caches of each below
  if (value >> kNodesShift == 0) return word(value, kTopology);
  return fmt::format("{}x{}", value >> kNodesShift, value & UINT32_MAX);
}

// The file's name is in the environment only.
std::string stats_text(std::uint64_t value) {
  static constexpr const char* kStats[] = {"0", "1"};
  const char* file = std::getenv("RDMALLOC_STATS");
  return value == 2 && file != nullptr ? file : word(value, kStats);
}

std::vector<Setting> settings() {
  std::vector<Setting> all = {
      {"RDMALLOC_PURGE", word(value_of("settings.purge"), kPurge), false},
      {"RDMALLOC_DECAY_MS", fmt::format("{}", value_of("purge.decay_ms")), false},
      {"RDMALLOC_DIRTY_MAX", size_text(value_of("purge.dirty_max_bytes")), false},
      {"RDMALLOC_LIMIT", limit_text(value_of("settings.limit_bytes"), UINT64_MAX), false},
      {"RDMALLOC_PRESSURE", word(value_of("settings.pressure"), kPressure), false},
      {"RDMALLOC_CHECK", word(value_of("settings.check"), kCheck), false},
      {"RDMALLOC_HUGE", word(value_of("settings.huge"), kHuge), false},
      {"RDMALLOC_ARENA", size_text(value_of("stats.arena_bytes")), false},
      {"RDMALLOC_NOTIFY", word(value_of("settings.notify"), kNotify), false},
      {"RDMALLOC_TOPOLOGY", topology_text(value_of("settings.topology")), false},
      {"RDMALLOC_FOREIGN", word(value_of("settings.foreign"), kForeign), false},
      {"RDMALLOC_CHECKPOINT", word(value_of("settings.checkpoint"), kCheckpoint), false},
      {"RDMALLOC_REG_MAX_BYTES", limit_text(value_of("settings.reg_max_bytes"), 0), false},
      {"RDMALLOC_REG_MAX_COUNT", limit_text(value_of("settings.reg_max_count"), 0), false},
      {"RDMALLOC_STATS", stats_text(value_of("settings.stats_at_exit")), false},
      {"RDMALLOC_LOG", word(value_of("settings.quiet"), kLog), false},
  };
  for (Setting& setting : all) setting.is_set = std::getenv(setting.name.c_str()) != nullptr;
  return all;
}

Notifier notifier(const char* name, rdmalloc_notifier which, Info& info) {
  rdmalloc_notifier_info state = {};
  state.size = sizeof state;
  if (int error = rdmalloc_notifier_state(which, &state))
    throw std::runtime_error(fmt::format("the library does not know the notifier {} ({})", name,
                                         rdmalloc_strerror(error)));
  info.calls_libc = state.calls_libc != 0;
  info.is_madvise_patched = state.is_madvise_patched != 0;
  info.foreign_notified = state.foreign_notified;
  info.holds = state.holds;
  return {name,
          state.is_attached != 0,
          state.is_started != 0,
          state.watches_foreign != 0,
          state.error,
          state.notified,
          state.attaches,
          state.refused,
          state.explanation};
}

// docs/notifiers.md has the table behind these.
void explain_tier(std::uint64_t mode, Info& info) {
  switch (mode) {
    case 0:
      info.tier = "T0";
      info.tier_reason =
          "auto: libraries that watch by hooks in libc hear of a purge through libc's madvise, and "
          "Open MPI and UCX also by their call; right with hooks on, which is their default";
      return;
    case 1:
      info.tier = "T0";
      info.tier_reason =
          "hooks: a purge calls libc's madvise, and no library is notified by a call";
      return;
    case 2:
      info.tier = "T1";
      info.tier_reason =
          info.calls_libc
              ? "explicit: libraries are notified by calls; it is not certain that all are, "
                "so that libc's madvise is called as well"
              : "explicit: libraries are notified by calls, and pages go by a raw system call";
      return;
    default:
      info.tier = "none";
      info.tier_reason = "off: no other cache is notified; only for programs without any fabric";
  }
}

std::string notifier_text(const Notifier& one) {
  std::string text = fmt::format("  {:<10} {}attached: {}\n", one.name,
                                 one.is_attached ? "" : "not ", one.explanation);
  if (one.notified != 0) text += fmt::format("             notified of {} ranges\n", one.notified);
  if (one.refused != 0)
    text += fmt::format("             {} registrations of foreign memory refused\n", one.refused);
  return text;
}

}  // namespace

Info gather() {
  Info info;
  info.version = rdmalloc_version();
  info.library = our_library();
  info.settings = settings();
  info.notifiers = {notifier("opal", RDMALLOC_NOTIFIER_OPAL, info),
                    notifier("ucx", RDMALLOC_NOTIFIER_UCX, info),
                    notifier("libfabric", RDMALLOC_NOTIFIER_LIBFABRIC, info)};
  explain_tier(value_of("settings.notify"), info);
  info.purge_mode = word(value_of("settings.purge"), kPurge);
  info.purge_thread_runs = value_of("stats.purge_thread_runs") != 0;
  info.decay_ms = value_of("purge.decay_ms");
  info.dirty_max_bytes = value_of("purge.dirty_max_bytes");
  std::size_t extent = 0;
  if (int error = rdmalloc_arena_extent(&info.arena_base, &extent))
    throw std::runtime_error(fmt::format("there is no arena: {}", rdmalloc_strerror(error)));
  info.arena_bytes = extent;
  info.mapped_bytes = value_of("stats.mapped_bytes");
  info.used_bytes = value_of("stats.used_bytes");
  rdmalloc_watch_counters watch = {};
  watch.size = sizeof watch;
  if (rdmalloc_watch_stats(&watch) == 0) info.watch_error = watch.error;
  info.dirty_bytes = value_of("stats.dirty_bytes");
  return info;
}

std::string as_text(const Info& info) {
  std::string text =
      fmt::format("rdmalloc {}\nlibrary    {}\n\nsettings in force\n", info.version, info.library);
  for (const Setting& setting : info.settings)
    text += fmt::format("  {:<24} {:<10}{}\n", setting.name, visible(setting.value),
                        setting.is_set ? "" : "  (default)");
  text += fmt::format("\ntier {}\n  {}\n", info.tier, info.tier_reason);
  text += fmt::format("  libc's madvise is {}patched by another library\n",
                      info.is_madvise_patched ? "" : "not ");
  text += "\nnotifiers\n";
  for (const Notifier& one : info.notifiers) text += notifier_text(one);
  text += fmt::format("  notified of {} unmappings of foreign memory, purging held {} times\n",
                      info.foreign_notified, info.holds);
  text += fmt::format("\npurging\n  by {}{}, after {} ms, at most {} free and backed\n",
                      info.purge_mode,
                      info.purge_thread_runs      ? " (a thread runs)"
                      : info.purge_mode == "auto" ? " (no thread yet: this process has made none)"
                                                  : "",
                      info.decay_ms, size_text(info.dirty_max_bytes));
  text += fmt::format("\narena\n  {} at {:#x}; {} ever handed out, {} in use, {} free and backed\n",
                      size_text(info.arena_bytes), info.arena_base, size_text(info.mapped_bytes),
                      size_text(info.used_bytes), size_text(info.dirty_bytes));
  text += "\nforeign memory\n  ";
  text += info.watch_error == 0
              ? "can be watched (RDMALLOC_FOREIGN=watch)\n"
              : fmt::format("can not be watched: userfaultfd gives error {}\n", info.watch_error);
  return text;
}

nlohmann::json as_json(const Info& info) {
  nlohmann::json json = {{"schema", "rdmalloc-info-1"},
                         {"version", info.version},
                         {"library", info.library},
                         {"tier", info.tier},
                         {"tier_reason", info.tier_reason},
                         {"calls_libc", info.calls_libc},
                         {"is_madvise_patched", info.is_madvise_patched},
                         {"foreign_notified", info.foreign_notified},
                         {"holds", info.holds}};
  for (const Setting& setting : info.settings)
    json["settings"][setting.name] = {{"value", setting.value}, {"is_set", setting.is_set}};
  for (const Notifier& one : info.notifiers)
    json["notifiers"][one.name] = {{"is_attached", one.is_attached},
                                   {"is_started", one.is_started},
                                   {"watches_foreign", one.watches_foreign},
                                   {"error", one.error},
                                   {"notified", one.notified},
                                   {"attaches", one.attaches},
                                   {"refused", one.refused},
                                   {"explanation", one.explanation}};
  json["foreign"] = {{"can_be_watched", info.watch_error == 0}, {"watch_error", info.watch_error}};
  json["purging"] = {{"mode", info.purge_mode},
                     {"thread_runs", info.purge_thread_runs},
                     {"decay_ms", info.decay_ms},
                     {"dirty_max_bytes", info.dirty_max_bytes}};
  json["arena"] = {{"base", info.arena_base},
                   {"bytes", info.arena_bytes},
                   {"mapped_bytes", info.mapped_bytes},
                   {"used_bytes", info.used_bytes},
                   {"dirty_bytes", info.dirty_bytes}};
  return json;
}

std::string fault_sites_as_text() {
  std::string text;
  const char *name = nullptr, *help = nullptr;
  for (std::size_t i = 0; rdmalloc_fault_site(i, &name, &help) != 0; i++)
    text += fmt::format("{:<22}{}\n", name, help);
  return text;
}

nlohmann::json fault_sites_as_json() {
  nlohmann::json json = {{"schema", "rdmalloc-fault-sites-1"}};
  const char *name = nullptr, *help = nullptr;
  for (std::size_t i = 0; rdmalloc_fault_site(i, &name, &help) != 0; i++)
    json["sites"][name] = help;
  return json;
}

}  // namespace rdmalloc::tool
