// bench_memory in the lab's guest (tools/lab), where the whole machine's settings may be changed.
#pragma once

#include <string>
#include <vector>

namespace rdmalloc::bench {

struct LabRun {
  std::string huge_pages;  // for /sys/kernel/mm/transparent_hugepage/enabled; empty: the guest's
  std::string cgroup;      // "v1" or "v2", which is mounted
  std::string memory = "12G";  // the guest's
  std::string output_folder;   // is written there, and seen here
};

// Whether this is the run that become_lab() began.
bool is_in_lab();

// Becomes the lab, which runs `arguments` and ends as they do. Comes back only with what went
// wrong.
std::string become_lab(const LabRun& run, const std::vector<std::string>& arguments);

}  // namespace rdmalloc::bench
