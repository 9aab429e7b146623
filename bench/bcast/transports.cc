#include "bench/bcast/transports.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "bench/support/process.h"

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;

struct KnownTransport {
  const char* name;
  const char* what;
  std::vector<const char*> components;  // of Open MPI, as "pml:ucx"; all are needed
  bool needs_rdma_device;
  bool mpich_has_it;  // Debian's MPICH, whose network is UCX
};

const std::vector<KnownTransport>& known_transports() {
  static const std::vector<KnownTransport> known = {
      {"shm", "shared memory (pml ob1, btl vader or sm; MPICH's own)", {}, false, true},
      {"tcp", "Open MPI's own TCP over lo (pml ob1, btl tcp)", {"btl:tcp"}, false, false},
      {"ofi", "libfabric, tcp over lo (pml cm, mtl ofi)", {"pml:cm", "mtl:ofi"}, false, false},
      {"ucx",
       "UCX: tcp over lo (pml ucx); under MPICH (ch4:ucx) shared memory",
       {"pml:ucx"},
       false,
       true},
      {"ofi-verbs", "libfabric over the first RDMA device", {"pml:cm", "mtl:ofi"}, true, false},
      {"ucx-rc", "UCX over the first RDMA device, reliable connections", {"pml:ucx"}, true, true},
  };
  return known;
}

std::string first_rdma_device() {
  std::error_code ignored;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("/sys/class/infiniband", ignored))
    names.push_back(entry.path().filename().string());
  return names.empty() ? "" : *std::min_element(names.begin(), names.end());
}

using Arguments = std::vector<std::string>;

Arguments ofi_arguments(const std::string& provider) {
  // 4.1 reads the first name, 5.0 the second; each ignores the other's.
  return {"--mca",
          "pml",
          "cm",
          "--mca",
          "mtl",
          "ofi",
          "--mca",
          "mtl_ofi_provider_include",
          provider,
          "--mca",
          "opal_common_ofi_provider_include",
          provider};
}

// Reliable connections over the first RDMA device, as UCX's settings.
Environment ucx_rc_settings() {
  const std::string device = first_rdma_device();
  Environment settings = {{"UCX_TLS", "rc,self"}, {"UCX_NET_DEVICES", device + ":1"}};
  // Soft-RoCE's interfaces carry a link-local address at index 0; real ports choose by themselves.
  if (device.rfind("rxe", 0) == 0) settings["UCX_IB_GID_INDEX"] = "0";
  return settings;
}

// `-x NAME=VALUE` for Open MPI's launcher, `-genv NAME VALUE` for MPICH's.
void add_environment(const Mpi& mpi, const Environment& environment, Arguments& arguments) {
  for (const auto& [name, value] : environment) {
    if (mpi.kind == Mpi::Kind::mpich)
      arguments.insert(arguments.end(), {"-genv", name, value});
    else
      arguments.insert(arguments.end(), {"-x", name + "=" + value});
  }
}

// Ranks of one machine speak through UCX only when MPICH's own shared memory is turned off.
//
// `ucx` is UCX's shared memory and not its tcp, because MPICH before 4.2.0 (Debian 12 has 4.0.2)
// may hang in MPI_Finalize over tcp, under any malloc: a rank whose endpoints are flushed waits for
// the others in a blocking read of PMI, without moving UCX on (pmodels/mpich #6596). UCX's tcp ends
// a flush by an answer of the peer, which that rank no longer gives. Shared memory ends it on its
// own side, and a device's reliable connection is answered by the device. It hangs each time when
// rank 0 comes late to the last message and late to MPI_Finalize: the worker's fault late-at-end.
Arguments arguments_of_mpich(const Mpi& mpi, const std::string& name) {
  Arguments arguments;
  if (name == "shm") return arguments;
  Environment settings = {{"UCX_TLS", "sm,self"}};
  if (name == "ucx-rc") settings = ucx_rc_settings();
  settings["MPIR_CVAR_NOLOCAL"] = "1";
  add_environment(mpi, settings, arguments);
  return arguments;
}

// Every transport is asked for by name, so that Open MPI fails rather than take another one.
Arguments arguments_of(const Mpi& mpi, const std::string& name) {
  if (mpi.kind == Mpi::Kind::mpich) return arguments_of_mpich(mpi, name);
  const bool five = mpi.kind == Mpi::Kind::open_mpi_5;
  if (name == "shm")
    return {"--mca", "pml", "ob1", "--mca", "btl", five ? "sm,self" : "vader,self"};
  if (name == "tcp")
    return {"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"};
  if (name == "ofi") {
    Arguments arguments = ofi_arguments("tcp;ofi_rxm");
    for (const char* setting : {"FI_PROVIDER=tcp;ofi_rxm", "FI_TCP_IFACE=lo"}) {
      arguments.emplace_back("-x");
      arguments.emplace_back(setting);
    }
    return arguments;
  }
  if (name == "ofi-verbs") {
    Arguments arguments = ofi_arguments("verbs;ofi_rxm");
    // Soft-RoCE's completion queues are too short for the default.
    arguments.insert(arguments.end(), {"-x", "FI_UNIVERSE_SIZE=16"});
    return arguments;
  }
  Arguments ucx = {"--mca",           "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca",
                   "pml_ucx_devices", "any"};
  if (name == "ucx") {
    ucx.insert(ucx.end(), {"-x", "UCX_TLS=tcp,self", "-x", "UCX_NET_DEVICES=lo"});
    return ucx;
  }
  add_environment(mpi, ucx_rc_settings(), ucx);
  return ucx;
}

// "mca:pml:ucx:version:…" lines; empty when there is no ompi_info to ask.
std::string components_of(const Mpi& mpi) {
  if (mpi.kind == Mpi::Kind::mpich) return {};
  Command ompi_info;
  ompi_info.arguments = {"ompi_info", "--parsable"};
  const fs::path beside = fs::path(mpi.mpirun).parent_path() / "ompi_info";
  if (fs::exists(beside)) ompi_info.arguments[0] = beside.string();
  return run(ompi_info).standard_output;
}

std::string why_not(const Mpi& mpi, const KnownTransport& known, const std::string& components) {
  if (mpi.kind == Mpi::Kind::mpich && !known.mpich_has_it)
    return "Debian's MPICH goes over shared memory and UCX only";
  const std::string no_device = known.needs_rdma_device && first_rdma_device().empty()
                                    ? "no RDMA device in /sys/class/infiniband"
                                    : "";
  if (mpi.kind == Mpi::Kind::mpich) return no_device;
  for (const char* component : known.components)
    if (components.find(fmt::format("mca:{}:", component)) == std::string::npos)
      return fmt::format("ompi_info shows no component {}", component);
  return no_device;
}

}  // namespace

Mpi find_mpi(const std::string& mpirun) {
  Mpi mpi;
  mpi.mpirun = find_program(mpirun);
  if (mpi.mpirun.empty()) {
    mpi.problem =
        fmt::format("no {} here: apt install openmpi-bin, or name one by --mpirun", mpirun);
    return mpi;
  }
  Command version;
  version.arguments = {mpi.mpirun, "--version"};
  version.environment = mpirun_environment(mpi);
  const Outcome outcome = run(version);
  // Called mpirun or mpiexec it names itself by Open MPI, OpenRTE or (5.0) its launcher's project.
  const std::string& text = outcome.standard_output;
  if (const std::size_t at = text.find("HYDRA build details"); at != std::string::npos) {
    const std::size_t label = text.find("Version:", at);
    const std::size_t begin =
        text.find_first_not_of(" ", label + std::string_view("Version:").size());
    mpi.version = "MPICH " + text.substr(begin, text.find('\n', begin) - begin);
    mpi.kind = Mpi::Kind::mpich;
    return mpi;
  }
  std::string number;
  for (const char* name : {"(Open MPI) ", "(OpenRTE) "})
    if (const std::size_t at = text.find(name); at != std::string::npos)
      number = text.substr(at + std::string_view(name).size(),
                           text.find_first_of(" \n", at + std::string_view(name).size()) -
                               (at + std::string_view(name).size()));
  if (number.empty()) {
    mpi.problem =
        fmt::format("{} is neither Open MPI's nor MPICH's (it says '{}'): name one by --mpirun",
                    mpi.mpirun, text.substr(0, text.find('\n')));
    return mpi;
  }
  mpi.version = "Open MPI " + number;
  mpi.kind = std::atoi(number.c_str()) >= 5 ? Mpi::Kind::open_mpi_5 : Mpi::Kind::open_mpi_4;
  return mpi;
}

std::vector<std::string> transport_names() {
  std::vector<std::string> names;
  for (const KnownTransport& known : known_transports()) names.emplace_back(known.name);
  return names;
}

TransportChoice choose_transports(const Mpi& mpi, const std::vector<std::string>& names) {
  TransportChoice choice;
  const std::string components = components_of(mpi);
  for (const std::string& name : names.empty() ? transport_names() : names) {
    const auto known =
        std::find_if(known_transports().begin(), known_transports().end(),
                     [&](const KnownTransport& candidate) { return name == candidate.name; });
    if (known == known_transports().end()) {
      choice.error = fmt::format("there is no transport '{}' here; there are {}", name,
                                 fmt::join(transport_names(), ", "));
      return choice;
    }
    if (const std::string why = why_not(mpi, *known, components); !why.empty())
      choice.left_out.push_back({name, why});
    else
      choice.found.push_back({name, known->what, arguments_of(mpi, name)});
  }
  return choice;
}

std::vector<std::string> mpirun_command(const Mpi& mpi, int ranks, const Transport& transport,
                                        const Environment& environment,
                                        const std::vector<std::string>& program) {
  std::vector<std::string> command = {mpi.mpirun, "-n", std::to_string(ranks)};
  command.insert(command.end(), transport.arguments.begin(), transport.arguments.end());
  add_environment(mpi, environment, command);
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

Environment mpirun_environment(const Mpi& mpi) {
  if (mpi.kind == Mpi::Kind::mpich) return {};
  // Both majors read their own names only, so that `mpirun --version` can be asked with all.
  Environment environment = {{"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"}};
  if (mpi.kind != Mpi::Kind::open_mpi_5) {
    environment["OMPI_MCA_rmaps_base_oversubscribe"] = "1";
    environment["OMPI_MCA_plm"] =
        "isolated";  // everything is on this machine: no ssh is looked for
  }
  if (geteuid() == 0) {
    environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1";
    environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1";
  }
  return environment;
}

}  // namespace rdmalloc::bench
