#include "tools/rdmalloc/doctor.h"

#include <fmt/format.h>
#include <rdmalloc/rdmalloc.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tools/rdmalloc/programs.h"

namespace rdmalloc::tool {
namespace {

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::good:
      return "good";
    case Severity::note:
      return "note";
    case Severity::warning:
      return "warning";
    case Severity::bad:
      return "bad";
  }
  return "";
}

long count(const std::vector<Finding>& findings, Severity severity) {
  return std::count_if(findings.begin(), findings.end(),
                       [severity](const Finding& one) { return one.severity == severity; });
}

}  // namespace

std::vector<Finding> examine(const DoctorOptions& options) {
  const Machine machine(options.root);
  const Job job = job_of(options.command);
  return {check_root_refusal(job),
          check_remote_shell(job),
          check_slots(machine, job),
          check_processor_limit(machine),
          check_memory_limit(machine),
          check_process_limit(machine),
          check_memlock(machine),
          check_infiniband(machine),
          check_shared_memory(machine),
          check_map_count(machine),
          check_transparent_huge_pages(machine, job),
          check_huge_pages(machine, job),
          check_io_uring(machine),
          check_userfaultfd(machine, job),
          check_preload(job),
          check_program(job, our_library()),
          check_mpi(job),
          check_hooks(job),
          check_open_mpi(job),
          check_libfabric(job),
          check_heap(job)};
}

Severity worst_of(const std::vector<Finding>& findings) {
  Severity worst = Severity::good;
  for (const Finding& one : findings) worst = std::max(worst, one.severity);
  return worst;
}

std::string as_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& one : findings) {
    text += fmt::format("{:<8} {:<14} {}\n", name_of(one.severity), one.id, visible(one.seen));
    if (!one.why.empty()) text += fmt::format("         why: {}\n", visible(one.why));
    // Nothing is wrong where it is a note: the line is for programs that need what it speaks of.
    if (!one.fix.empty())
      text += fmt::format("         {}: {}\n", one.severity == Severity::note ? "if needed" : "fix",
                          visible(one.fix));
  }
  if (worst_of(findings) != Severity::good)
    text += "docs/doctor.md has a section for each name of the second column\n";
  return text + fmt::format("{} bad, {} warnings\n", count(findings, Severity::bad),
                            count(findings, Severity::warning));
}

nlohmann::json as_json(const std::vector<Finding>& findings) {
  nlohmann::json json = {{"schema", "rdmalloc-doctor-1"},
                         {"verdict", name_of(worst_of(findings))},
                         {"findings", nlohmann::json::array()}};
  for (const Finding& one : findings)
    json["findings"].push_back({{"id", one.id},
                                {"severity", name_of(one.severity)},
                                {"seen", one.seen},
                                {"why", one.why},
                                {"fix", one.fix}});
  return json;
}

int doctor(const DoctorOptions& options) {
  if (std::error_code ignored; !std::filesystem::is_directory(options.root + "/", ignored)) {
    fmt::print(stderr, "rdmalloc: doctor: --root {}: there is no such folder\n",
               visible(options.root));
    return kExitCouldNotLook;
  }
  const std::vector<Finding> findings = examine(options);
  // What files and variables say may be no text: it is shown, not refused.
  const auto replace = nlohmann::json::error_handler_t::replace;
  fmt::print("{}", options.is_json ? as_json(findings).dump(1, ' ', false, replace) + "\n"
                                   : as_text(findings));
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "rdmalloc: doctor: standard output can't be written to\n");
    return kExitCouldNotLook;
  }
  const Severity worst = worst_of(findings);
  return worst == Severity::bad ? 2 : worst == Severity::warning ? 1 : 0;
}

}  // namespace rdmalloc::tool
