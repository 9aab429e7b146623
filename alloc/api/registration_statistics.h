// Counters of registrations, seen from below: the allocator knows nothing of registration, so the
// registration cache, once it is in use, leaves a table of its counters here, and statistics are
// printed with them.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmalloc {

struct RegistrationCounter {
  const char* name;  // words and underscores
  const char* help;
};

inline constexpr unsigned kMostRegistrationCounters = 32;
// Most groups there are at once: each open domain, and all closed ones together.
inline constexpr unsigned kMostRegistrationGroups = 65;

struct RegistrationGroup {
  unsigned place;    // the domain's; of the closed ones, together, the last
  bool is_closed;    // the sums of all domains that were closed
  const char* name;  // of the registrar: the user's text, any bytes
  std::uint64_t values[kMostRegistrationCounters];  // in the order of the counters
};

struct RegistrationStatistics {
  const RegistrationCounter* counters;
  unsigned count;
  // Fills in the first group at `from` or a later place. False: there is none.
  bool (*read)(unsigned from, RegistrationGroup* group);
};

// Set once, and never taken away. Release, and acquire: the table is there.
inline constinit std::atomic<const RegistrationStatistics*> registration_statistics{nullptr};

}  // namespace rdmalloc
