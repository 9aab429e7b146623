// rdmalloc(1): what rdmalloc does in a program started from here.
//
// Exit status: 0; 1 when something could not be told or loaded; 2 for wrong arguments.
#include <dlfcn.h>
#include <fmt/format.h>
#include <rdmalloc/rdmalloc.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/rdmalloc/info.h"

namespace {

int info(const std::vector<std::string>& libraries, bool is_json) {
  for (const std::string& name : libraries) {
    if (dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      // Closing something makes rdmalloc look again what is loaded; the load itself need not, since
      // this program has a DT_RUNPATH (docs/notifiers.md).
      if (void* again = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) dlclose(again);
      continue;
    }
    fmt::print(stderr, "rdmalloc: --load {}: {}\n", name, dlerror());
    return 1;
  }
  const rdmalloc::tool::Info state = rdmalloc::tool::gather();
  fmt::print("{}", is_json ? rdmalloc::tool::as_json(state).dump(1) + "\n"
                           : rdmalloc::tool::as_text(state));
  // What can't be written was not told.
  if (std::fflush(stdout) == 0) return 0;
  fmt::print(stderr, "rdmalloc: standard output can't be written to\n");
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What rdmalloc does in a program started with this environment.", "rdmalloc");
  app.set_version_flag("--version", std::string("rdmalloc ") + rdmalloc_version());
  app.require_subcommand(1);
  bool is_json = false;
  std::vector<std::string> libraries;
  CLI::App* info_command =
      app.add_subcommand("info", "version, settings in force, tier, notifiers, purging, arena");
  info_command->add_flag("--json", is_json, "for machines");
  info_command
      ->add_option("--load", libraries,
                   "a library that the program would load, as for dlopen: libucp.so.0; "
                   "may be repeated")
      ->allow_extra_args(false);
  // Said here, since the parser would only miss a command.
  if (argc > 1 && argv[1][0] != '-' && argv[1] != info_command->get_name()) {
    fmt::print(stderr, "rdmalloc: there is no command '{}'; there is: info\n", argv[1]);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return info(libraries, is_json);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rdmalloc: {}\n", error.what());
    return 1;
  }
}
