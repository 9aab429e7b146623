// rdmalloc doctor: what a batch system gave the job, as Open MPI reads it.
#include <algorithm>
#include <cctype>
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

// As Open MPI's parameters of two values take a word.
bool is_true(const std::string& word) {
  for (const char* yes : {"t", "true", "enabled", "yes", "y"})
    if (word == yes) return true;
  return std::atol(word.c_str()) != 0;
}

// "core:pe=1:OVERSUBSCRIBE": of what follows the first colon, in whichever letters, and as short as
// one likes. 4 divides it at commas.
bool has_oversubscribe(const std::string& policy) {
  const std::size_t colon = policy.find(':');
  if (colon == std::string::npos) return false;
  std::string text = policy.substr(colon + 1);
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) {
    return static_cast<char>(letter == ',' ? ':' : std::tolower(letter));
  });
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ':');)
    if (!word.empty() && std::string("oversubscribe").rfind(word, 0) == 0) return true;
  return false;
}

}  // namespace

bool may_oversubscribe(const Job& job) {
  if (job.has_option("oversubscribe") || is_true(job.mca("rmaps_base_oversubscribe").value_or("")))
    return true;
  for (const Context& context : job.contexts)
    for (const Option& option : context.options)
      if (option.name == "map-by" && !option.values.empty() && has_oversubscribe(option.values[0]))
        return true;
  const char* policy =
      job.launcher.major >= 5 ? "rmaps_default_mapping_policy" : "rmaps_base_mapping_policy";
  return has_oversubscribe(job.mca(policy).value_or(""));
}

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
