#include "alloc/core/rank.h"

#include <cstring>

namespace rdmalloc {
namespace {

struct Launcher {
  const char* rank;
  const char* ranks;  // nullptr: it does not tell
  bool needs_both;
};
// The first that is there counts: ranks that mpirun starts inside a batch job inherit Slurm's. A
// batch script is no rank, though it has SLURM_PROCID: only srun tells how many a step has.
constexpr Launcher kLaunchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", false},  // Open MPI 4 and 5
    {"PMI_RANK", "PMI_SIZE", false},                          // MPICH and its relatives
    {"PMIX_RANK", nullptr, false},                            // PRRTE
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", true},
};

std::int64_t number_of(char** environment, const char* name) {
  if (name == nullptr) return -1;
  std::size_t length = std::strlen(name);
  for (char** entry = environment; *entry != nullptr; ++entry) {
    if ((*entry)[0] != name[0] || std::strncmp(*entry, name, length) != 0 ||
        (*entry)[length] != '=')
      continue;
    std::int64_t number = 0;
    const char* digit = *entry + length + 1;
    if (*digit == 0) return -1;
    for (; *digit != 0; ++digit) {
      if (*digit < '0' || *digit > '9' || number > INT32_MAX) return -1;
      number = number * 10 + (*digit - '0');
    }
    return number;
  }
  return -1;
}

}  // namespace

Rank rank_in(char** environment) {
  if (environment == nullptr) return {};
  for (const Launcher& launcher : kLaunchers) {
    Rank found = {number_of(environment, launcher.rank), number_of(environment, launcher.ranks)};
    if (found.rank >= 0 && (found.ranks >= 0 || !launcher.needs_both)) return found;
  }
  return {};
}

}  // namespace rdmalloc
