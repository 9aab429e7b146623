// `rdmalloc doctor`: what on this machine, or about a command, would go wrong, and what mends it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/rdmalloc/findings.h"

namespace rdmalloc::tool {

constexpr int kExitCouldNotLook = 3;  // wrong arguments, or no room for the answer

struct DoctorOptions {
  bool is_json = false;
  std::string root;  // in place of "/" for /proc, /sys, /dev and the like
  std::vector<std::string> command;
};

std::vector<Finding> examine(const DoctorOptions& options);
Severity worst_of(const std::vector<Finding>& findings);
std::string as_text(const std::vector<Finding>& findings);
nlohmann::json as_json(const std::vector<Finding>& findings);

// Prints; returns the exit status: 0 for good and notes, 1 for warnings, 2 for bad.
int doctor(const DoctorOptions& options);

}  // namespace rdmalloc::tool
