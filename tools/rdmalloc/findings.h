// What `rdmalloc doctor` looks at, and what it says of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/rdmalloc/launchers.h"

namespace rdmalloc::tool {

enum class Severity {
  good,
  note,     // of no consequence unless the program uses what it speaks of
  warning,  // slower, or closer to a limit, than it could be
  bad,      // does not start, hangs, or computes wrong bytes
};

struct Finding {
  std::string id;  // for machines and for the manual: "memlock"
  Severity severity = Severity::good;
  std::string seen;  // what is there
  std::string why;   // why it matters; empty when good
  std::string fix;   // the line that mends it; empty when good
};

// The kernel's files, below a folder that stands for "/".
class Machine {
 public:
  explicit Machine(std::string root) : root_(std::move(root)) {}

  std::string path(const std::string& below) const { return root_ + below; }
  bool exists(const std::string& below) const;
  // Without the line's end; nothing when it can't be read.
  std::optional<std::string> text(const std::string& below) const;
  std::optional<std::uint64_t> number(const std::string& below) const;
  std::vector<std::string> names_in(const std::string& below) const;

  bool is_container() const;

 private:
  std::string root_;
};

// A library that the loader would take for a program, or did not find (no path).
struct Library {
  std::string name, path;
};

// The command that is asked about; nothing of it is started but its launcher's --version.
struct Job {
  std::vector<std::string> command;  // empty: only the machine is looked at
  Launcher launcher;
  std::vector<Context> contexts;
  std::vector<std::string> programs;  // paths of those that are here
  std::vector<std::string> missing;   // of those that are not: a sentence each, the name first
  std::vector<Library> libraries;     // that these load, MPI's components included

  // Of the launcher's environment or of its options that pass variables to the ranks.
  std::optional<std::string> variable(const std::string& name) const;
  // An MCA parameter: --mca NAME VALUE, or OMPI_MCA_NAME.
  std::optional<std::string> mca(const std::string& name) const;
  bool has_option(const std::string& name) const;
  const Library* library(const std::string& prefix) const;
};

Job job_of(const std::vector<std::string>& command);

// What a batch system gave the job; mpirun counts its slots, and not this machine's cores.
struct Allocation {
  long slots = 0, nodes = 0;
  std::string of;
  std::string support;  // that only some builds of Open MPI have, and others count cores
};

std::optional<Allocation> allocation();

// Whether more ranks than slots are allowed, by an option or a parameter of Open MPI's.
bool may_oversubscribe(const Job& job);

// One function looks at one thing.
Finding check_memlock(const Machine& machine);
Finding check_memory_limit(const Machine& machine);
Finding check_processor_limit(const Machine& machine);
Finding check_process_limit(const Machine& machine);
Finding check_huge_pages(const Machine& machine, const Job& job);
Finding check_transparent_huge_pages(const Machine& machine, const Job& job);
Finding check_infiniband(const Machine& machine);
Finding check_shared_memory(const Machine& machine);
Finding check_map_count(const Machine& machine);
Finding check_io_uring(const Machine& machine);
Finding check_userfaultfd(const Machine& machine, const Job& job);
Finding check_root_refusal(const Job& job);
Finding check_remote_shell(const Job& job);
Finding check_slots(const Machine& machine, const Job& job);
Finding check_preload(const Job& job);
Finding check_program(const Job& job, const std::string& library);
Finding check_mpi(const Job& job);
Finding check_hooks(const Job& job);
Finding check_open_mpi(const Job& job);
Finding check_libfabric(const Job& job);
Finding check_heap(const Job& job);

}  // namespace rdmalloc::tool
