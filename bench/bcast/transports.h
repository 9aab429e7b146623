// How an MPI of this machine is started, and over which transports it can broadcast.
#pragma once

#include <string>
#include <vector>

#include "bench/support/allocators.h"

namespace rdmalloc::bench {

struct Mpi {
  enum class Kind { none, open_mpi_4, open_mpi_5, mpich };
  Kind kind = Kind::none;
  std::string mpirun;   // absolute path
  std::string version;  // "Open MPI 4.1.4", "MPICH 4.0.2"
  std::string problem;  // when kind is none: why, and what to do
};
Mpi find_mpi(const std::string& mpirun);

struct Transport {
  std::string name;
  std::string what;                    // a line for --list and the docs
  std::vector<std::string> arguments;  // for mpirun
};
struct TransportChoice {
  std::vector<Transport> found;
  std::vector<LeftOut> left_out;
  std::string error;  // a name that doesn't exist
};
std::vector<std::string> transport_names();
// `names` empty: all of them.
TransportChoice choose_transports(const Mpi& mpi, const std::vector<std::string>& names);

// The command that runs `program` on `ranks` ranks with `environment` in the ranks, not in mpirun.
std::vector<std::string> mpirun_command(const Mpi& mpi, int ranks, const Transport& transport,
                                        const Environment& environment,
                                        const std::vector<std::string>& program);
// What mpirun itself needs in its environment: root, no ssh, more ranks than cores.
Environment mpirun_environment(const Mpi& mpi);

}  // namespace rdmalloc::bench
