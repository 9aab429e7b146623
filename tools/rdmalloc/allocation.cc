// rdmalloc doctor: what a batch system gave the job, as Open MPI reads it.
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "tools/rdmalloc/findings.h"

namespace rdmalloc::tool {
namespace {

// "2(x3),1": three nodes of two tasks, and one of one.
Allocation tasks_per_node(const std::string& text) {
  Allocation all;
  std::istringstream groups(text);
  for (std::string group; std::getline(groups, group, ',');) {
    const std::size_t times = group.find("(x");
    const long nodes = times == std::string::npos ? 1 : std::atol(group.c_str() + times + 2);
    all.nodes += nodes;
    all.slots += nodes * std::atol(group.c_str());
  }
  return all;
}

}  // namespace

std::optional<Allocation> allocation() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  Allocation all;
  const std::string hosts_of_engine = variable("PE_HOSTFILE");
  if (!hosts_of_engine.empty() && !variable("SGE_ROOT").empty() && !variable("ARC").empty() &&
      !variable("JOB_ID").empty()) {
    // "host slots queue processors" a line
    std::ifstream file(hosts_of_engine);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name;
      long slots = 0;
      if (!(words >> name >> slots)) continue;
      all.slots += slots;
      all.nodes++;
    }
    all.of = "PE_HOSTFILE";
  } else if (const std::string tasks = variable("SLURM_TASKS_PER_NODE");
             !tasks.empty() && !variable("SLURM_JOB_ID").empty()) {
    all = tasks_per_node(tasks);
    all.of = "SLURM_TASKS_PER_NODE";
  } else if (const std::string nodes = variable("PBS_NODEFILE"); !nodes.empty()) {
    // A line for each slot.
    std::set<std::string> names;
    std::ifstream file(nodes);
    for (std::string name; file >> name; all.slots++) names.insert(name);
    all.nodes = static_cast<long>(names.size());
    all.of = "PBS_NODEFILE";
    all.support = "tm";
  } else if (const std::string hosts = variable("LSB_MCPU_HOSTS"); !hosts.empty()) {
    std::istringstream words(hosts);
    long slots = 0;
    for (std::string name; words >> name >> slots; all.nodes++) all.slots += slots;
    all.of = "LSB_MCPU_HOSTS";
    all.support = "lsf";
  }
  if (all.slots <= 0) return std::nullopt;
  return all;
}

}  // namespace rdmalloc::tool
