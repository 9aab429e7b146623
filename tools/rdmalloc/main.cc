// rdmalloc(1): runs programs with rdmalloc, and says what it does in a program started from here.
//
// Exit status: of `info` 0; 1 when something could not be found out or loaded; 2 for wrong
// arguments. Of `run` that of the command; 125 when it was not started, 126 and 127 as a shell has
// them. Of `doctor` 0, 1 and 2 for good, warnings and bad; 3 when it could not look. Of `job` 0; 1
// when not every rank has left its statistics; 2 when there are none. Of `checkpoint` 0; 1 when a
// process could not do it.
#include <dlfcn.h>
#include <fmt/format.h>
#include <rdmalloc/rdmalloc.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "tools/rdmalloc/checkpoint.h"
#include "tools/rdmalloc/doctor.h"
#include "tools/rdmalloc/info.h"
#include "tools/rdmalloc/job_view.h"
#include "tools/rdmalloc/programs.h"
#include "tools/rdmalloc/run.h"

namespace {

struct InfoOptions {
  std::vector<std::string> libraries;
  bool is_json = false;
  bool is_of_sites = false;  // --fault-sites
};

// Output that can't be written is an error.
int flushed() {
  if (std::fflush(stdout) == 0) return 0;
  fmt::print(stderr, "rdmalloc: standard output can't be written to\n");
  return 1;
}

int info(const InfoOptions& options) {
  if (options.is_of_sites) {
    fmt::print("{}", options.is_json ? rdmalloc::tool::fault_sites_as_json().dump(1) + "\n"
                                     : rdmalloc::tool::fault_sites_as_text());
    return flushed();
  }
  for (const std::string& name : options.libraries) {
    if (dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
      // Closing something makes rdmalloc look again what is loaded; the load itself need not, since
      // this program has a DT_RUNPATH (docs/notifiers.md).
      if (void* again = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) dlclose(again);
      continue;
    }
    fmt::print(stderr, "rdmalloc: --load {}: {}\n", rdmalloc::tool::visible(name),
               rdmalloc::tool::visible(dlerror()));
    return 1;
  }
  const rdmalloc::tool::Info state = rdmalloc::tool::gather();
  // A file's name may be no text: it is shown, not refused.
  const auto replace = nlohmann::json::error_handler_t::replace;
  fmt::print("{}", options.is_json
                       ? rdmalloc::tool::as_json(state).dump(1, ' ', false, replace) + "\n"
                       : rdmalloc::tool::as_text(state));
  return flushed();
}

CLI::App* add_doctor(CLI::App& app, rdmalloc::tool::DoctorOptions& options) {
  CLI::App* command = app.add_subcommand(
      "doctor", "what would go wrong on this machine, or with a command, and what mends it");
  command->footer("rdmalloc doctor [OPTIONS] [-- COMMAND [ARGUMENT...]]");
  command->add_flag("--json", options.is_json, "for machines");
  command->add_option("--root", options.root,
                      "a folder to read in place of / for /proc, /sys and /dev: a container's");
  return command;
}

// Where the command to run begins: behind "--", or at the first word that is no option of
// `ours`. What stands there is not for our parser, which would take its options for ours.
int command_begins(const CLI::App& ours, int argc, char** argv) {
  for (int at = 2; at < argc; at++) {
    const std::string word = argv[at];
    if (word == "--") return at + 1;
    if (word.empty() || word[0] != '-') return at;
    const CLI::Option* option = ours.get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_min() > 0) at++;
  }
  return argc;
}

CLI::App* add_job(CLI::App& app, rdmalloc::tool::JobViewOptions& options) {
  CLI::App* command = app.add_subcommand(
      "job", "one table of the statistics that the ranks of a job left: rdmalloc run --stats=DIR");
  command->add_option("place", options.places, "the folder, or the files")->required();
  command->add_flag("--json", options.is_json, "for machines");
  return command;
}

CLI::App* add_info(CLI::App& app, InfoOptions& options) {
  CLI::App* command =
      app.add_subcommand("info", "version, settings in force, tier, notifiers, purging, arena");
  command->add_flag("--json", options.is_json, "for machines");
  command->add_flag("--fault-sites", options.is_of_sites,
                    "instead: the calls that RDMALLOC_FAULT=site:n can make fail");
  command
      ->add_option("--load", options.libraries,
                   "a library that the program would load, as for dlopen: libucp.so.0; "
                   "may be repeated")
      ->allow_extra_args(false);
  return command;
}

CLI::App* add_checkpoint(CLI::App& app, rdmalloc::tool::CheckpointOptions& options) {
  CLI::App* command = app.add_subcommand(
      "checkpoint",
      "makes a process tree ready for a checkpoint, or goes on after it; CRIU's --action-script");
  command->add_option("action", options.action, "quiesce or resume; none: what CRIU asks for")
      ->check(CLI::IsMember({"quiesce", "resume"}));
  command->add_option("process", options.process, "its id; those that it has started too")
      ->check(CLI::Range(1, std::numeric_limits<int>::max()));
  command
      ->add_option("--timeout", options.timeout_ms,
                   "milliseconds to wait for registrations in use (10000)")
      ->check(CLI::Range(0, 8000000));
  return command;
}

// RDMALLOC_STATS is meant for the command, and for the ranks that `job` shows.
void leave_no_statistics() {
  std::uint64_t none = 0;
  rdmalloc_ctl("settings.stats_at_exit", nullptr, nullptr, &none, sizeof none);
}

// CRIU starts its --action-script without any argument.
bool is_started_by_criu(int argc) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread.
  return argc == 1 && std::getenv("CRTOOLS_SCRIPT_ACTION") != nullptr;
}
int serve_criu() {
  leave_no_statistics();
  try {
    return rdmalloc::tool::checkpoint({});
  } catch (const std::exception& error) {
    fmt::print(stderr, "rdmalloc: {}\n", error.what());
    return 1;
  }
}

CLI::App* add_run(CLI::App& app, rdmalloc::tool::RunOptions& options) {
  CLI::App* command =
      app.add_subcommand("run", "a program, or all ranks of an MPI or Slurm job, with rdmalloc");
  command->footer("rdmalloc run [OPTIONS] -- COMMAND [ARGUMENT...]");
  command
      ->add_option("--set", options.settings,
                   "NAME=VALUE, a setting: DECAY_MS=100 is RDMALLOC_DECAY_MS=100; may be repeated")
      ->allow_extra_args(false);
  const auto also = [&options](const char* name) {
    return [&options, name](const std::string& value) {
      options.settings.push_back(std::string(name) + "=" + value);
    };
  };
  command
      ->add_option_function<std::string>(
          "--stats",
          [&options, also](const std::string& folder) {
            if (folder.empty())
              also("STATS")("1");
            else
              options.stats_folder = folder;
          },
          "counters at exit, of each rank: on standard error, or with --stats=DIR in files there, "
          "for 'rdmalloc job DIR'")
      ->expected(0, 1)
      ->type_name("")
      ->default_str("");
  command->add_option_function<std::string>("--purge", also("PURGE"),
                                            "--set PURGE=...: thread, manual or off");
  command->add_option("--library", options.library,
                      "the librdmalloc.so to preload instead of this installation's");
  command->add_flag("--strict", options.is_strict,
                    "do not start a program that would run without rdmalloc");
  command->add_flag("--dry-run", options.is_dry, "print the command, do not start it");
  return command;
}

// "--stats=" of a script whose variable is empty, which would else be --stats. What is wrong;
// empty: nothing.
std::string without_value(const CLI::App& ours, int argc, char** argv) {
  for (int at = 2; at < argc; at++) {
    const std::string word = argv[at];
    const std::size_t equals = word.find('=');
    if (word.rfind("--", 0) != 0 || equals + 1 != word.size()) continue;
    const std::string name = word.substr(0, equals);
    if (ours.get_option_no_throw(name) == nullptr) continue;  // the parser says so
    return fmt::format("{}: has nothing behind its '='; write {}=VALUE, or leave it out{}", word,
                       name, name == "--stats" ? "; --stats alone writes to standard error" : "");
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (is_started_by_criu(argc)) return serve_criu();
  CLI::App app("Runs programs with rdmalloc, and shows what it does in them.", "rdmalloc");
  app.set_version_flag("--version", std::string("rdmalloc ") + rdmalloc_version());
  app.require_subcommand(1);
  InfoOptions info_options;
  rdmalloc::tool::RunOptions run_options;
  const CLI::App* info_command = add_info(app, info_options);
  rdmalloc::tool::DoctorOptions doctor_options;
  const CLI::App* run_command = add_run(app, run_options);
  const CLI::App* doctor_command = add_doctor(app, doctor_options);
  rdmalloc::tool::JobViewOptions job_options;
  const CLI::App* job_command = add_job(app, job_options);
  rdmalloc::tool::CheckpointOptions checkpoint_options;
  const CLI::App* checkpoint_command = add_checkpoint(app, checkpoint_options);

  const std::string name = argc > 1 ? argv[1] : "";
  const bool is_run = name == run_command->get_name();
  const bool is_doctor = name == doctor_command->get_name();
  const bool is_job = name == job_command->get_name();
  const bool is_checkpoint = name == checkpoint_command->get_name();
  // Said here, since the parser would only miss a command.
  if (argc > 1 && argv[1][0] != '-' && !is_run && !is_doctor && !is_job && !is_checkpoint &&
      name != info_command->get_name()) {
    fmt::print(
        stderr,
        "rdmalloc: there is no command '{}'; there are: info, run, doctor, job, checkpoint\n",
        rdmalloc::tool::visible(name));
    return 2;
  }
  const int failed = is_run      ? rdmalloc::tool::kExitRunFailed
                     : is_doctor ? rdmalloc::tool::kExitCouldNotLook
                     : is_job    ? rdmalloc::tool::kExitNoJob
                                 : 1;
  if (is_run || is_doctor || is_job || is_checkpoint) leave_no_statistics();
  int end_of_ours = argc;
  if (is_run || is_doctor) {
    const int begin = command_begins(is_run ? *run_command : *doctor_command, argc, argv);
    (is_run ? run_options.command : doctor_options.command).assign(argv + begin, argv + argc);
    end_of_ours = std::string(argv[begin - 1]) == "--" ? begin - 1 : begin;
  }
  if (is_run || is_doctor)
    if (const std::string wrong =
            without_value(is_run ? *run_command : *doctor_command, end_of_ours, argv);
        !wrong.empty()) {
      fmt::print(stderr, "rdmalloc: {}: {}\n", name, wrong);
      return failed;
    }
  try {
    app.parse(end_of_ours, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : is_run || is_doctor ? failed : 2;
  }
  try {
    if (is_run) return rdmalloc::tool::run(run_options);
    if (is_job) return rdmalloc::tool::job_view(job_options);
    if (is_checkpoint) return rdmalloc::tool::checkpoint(checkpoint_options);
    return is_doctor ? rdmalloc::tool::doctor(doctor_options) : info(info_options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "rdmalloc: {}\n", error.what());
    return failed;
  }
}
