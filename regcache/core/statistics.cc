#include "regcache/core/statistics.h"

#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

using Stats = rdmalloc_domain_counters;

// In the order of the struct, and by its names (regcache.h explains each).
struct Line {
  RegistrationCounter counter;
  std::uint64_t (*value)(const Stats& stats);
};
#define LINE(field, help)                                          \
  {                                                                \
    {#field, help}, [](const Stats& stats) { return stats.field; } \
  }
constexpr Line kLines[] = {
    LINE(hits, "gets without the registrar"),
    LINE(misses, "calls that had to register"),
    LINE(registrations, "successful registrations"),
    LINE(deregistrations, "successful deregistrations"),
    LINE(evictions, "idle registrations dropped for a limit or a refusal"),
    LINE(refusals, "registrations that failed"),
    LINE(purge_drops, "registrations dropped because their pages were purged"),
    LINE(purge_refusals, "purges refused for a registration"),
    LINE(foreign, "registrations of foreign memory"),
    LINE(quarantined, "deregistrations that failed"),
    LINE(live_count, "registrations now"),
    LINE(live_bytes, "bytes registered now"),
    LINE(sticky_count, "of these: kept by uncounted keys"),
    LINE(sticky_bytes, "bytes of those"),
    LINE(in_use, "registrations that are held"),
    LINE(register_ns_worst, "longest registration, ns"),
    LINE(register_ns_total, "all registrations, ns"),
    LINE(prefaulted, "registrations found or made by prefaulting"),
    LINE(is_lost, "1: the device is gone, or a resume could not open it"),
    LINE(lost_drops, "registrations that ended with the device"),
    LINE(register_ns_mean, "mean of all registrations, ns"),
    LINE(memlock_refusals, "registrations that RLIMIT_MEMLOCK left no room for"),
    LINE(memlock_limit_bytes, "RLIMIT_MEMLOCK, as far as it counts for the domain"),
    LINE(memlock_left_bytes, "what it leaves now"),
    LINE(purge_requests, "times the purge thread was asked for all that is free"),
    LINE(resumes, "times opened again after a checkpoint"),
    LINE(flush_drops, "registrations dropped by a flush"),
};
#undef LINE
constexpr unsigned kCount = sizeof kLines / sizeof *kLines;
static_assert(sizeof(Stats) == sizeof(std::size_t) + kCount * sizeof(std::uint64_t),
              "a counter of regcache.h has no line");

// The names of all, and before them how many domains a group has.
struct Names {
  RegistrationCounter counters[kCount + 1];
};
constexpr Names names() {
  Names all = {};
  all.counters[0] = {"domains", "domains that are counted here"};
  for (unsigned i = 0; i < kCount; ++i) all.counters[i + 1] = kLines[i].counter;
  return all;
}
constexpr Names kNames = names();
static_assert(kCount + 1 <= kMostRegistrationCounters &&
              kMostDomains + 1 <= kMostRegistrationGroups);

void fill(const Stats& stats, std::uint64_t domains, RegistrationGroup* group) {
  group->values[0] = domains;
  for (unsigned i = 0; i < kCount; ++i) group->values[i + 1] = kLines[i].value(stats);
}

bool read_open(State& all, unsigned place, RegistrationGroup* group) {
  Domain& domain = all.domains[place];
  Stats stats = {};
  stats.size = sizeof stats;
  if (rdmalloc_domain_stats(reinterpret_cast<rdmalloc_domain*>(&domain), &stats) != 0) return false;
  group->place = place;
  group->is_closed = false;
  fill(stats, 1, group);
  // Under the lock: another thread may close the domain, and open another in its place.
  WholeGuard guard(domain);
  group->name = domain.ops.name;
  return true;
}

bool read_closed(State& all, RegistrationGroup* group) {
  LockGuard guard(all.open_lock);
  if (all.closed_count == 0) return false;
  group->place = kMostDomains;
  group->is_closed = true;
  group->name = "closed";
  fill(counters_for_user(all.closed), all.closed_count, group);
  return true;
}

// NULL in a process without domains, and empty in a child of one that has some.
bool read(unsigned from, RegistrationGroup* group) {
  State* all = state();
  if (all == nullptr) return false;
  for (unsigned place = from; place < kMostDomains; ++place)
    if (read_open(*all, place, group)) return true;
  return from <= kMostDomains && read_closed(*all, group);
}

}  // namespace

rdmalloc_domain_counters counters_for_user(const Counters& counters) {
  Stats stats = {};
  stats.size = sizeof stats;
  for (const ShownCounter& counter : kShownCounters) stats.*counter.shown = counters.*counter.kept;
  std::uint64_t asked = counters.registrations + counters.refusals;
  stats.register_ns_mean = asked != 0 ? counters.register_ns_total / asked : 0;
  return stats;
}

constexpr RegistrationStatistics domain_statistics = {kNames.counters, kCount + 1, read};

void count_closed(State& all, Domain& domain) {
  LockGuard guard(all.open_lock);
  // A call that was under way at the close may still count its miss.
  WholeGuard domain_guard(domain);
  ++all.closed_count;
  add(all.closed, domain_counters(domain));
}

}  // namespace rdmalloc::regcache
