// The files that Open MPI 4 and PRRTE read parameters from, beside options and the environment.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tools/rdmalloc/launchers.h"

namespace rdmalloc::tool {
namespace {

namespace fs = std::filesystem;

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string trimmed(const std::string& text) {
  constexpr const char* kBlank = " \t\r\"";
  const std::size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Of a parameter that says where others are: of the first context's options the last one, which may
// have a name of its own (--tune); then the environment. No file is asked.
std::string place_of(const std::vector<Context>& contexts, const std::string& name,
                     const std::string& own_option) {
  std::string place = from_environment(("OMPI_MCA_" + name).c_str());
  if (contexts.empty()) return place;
  for (const Option& option : contexts[0].options)
    if (option.values.size() == 2 ? option.values[0] == name
                                  : option.values.size() == 1 && option.name == own_option)
      place = option.values.back();
  return place;
}

// The first that names a parameter counts: the user's, then the installation's. Debian has these
// in /etc for the prefix /usr.
std::vector<std::string> parameter_files(const Launcher& launcher,
                                         const std::vector<Context>& contexts) {
  std::vector<std::string> files;
  std::string named = place_of(contexts, "mca_base_param_files", "");
  std::replace(named.begin(), named.end(), ',', ':');
  std::istringstream paths(named);
  for (std::string path; std::getline(paths, path, ':');) files.push_back(path);
  std::error_code ignored;
  const fs::path prefix = fs::canonical(launcher.path, ignored).parent_path().parent_path();
  for (const std::string project : {"openmpi", "prte"}) {
    if (project == "openmpi" && !named.empty()) continue;
    if (project == "prte" && launcher.major < 5) continue;
    const std::string home = from_environment("HOME");
    if (!home.empty()) files.push_back(home + "/." + project + "/mca-params.conf");
    for (const fs::path& etc :
         {prefix / "etc", prefix / "etc" / project, fs::path("/etc") / project})
      if (etc != fs::path("/etc") / project || prefix == "/usr")
        files.push_back(etc / (project + "-mca-params.conf"));
  }
  return files;
}

// "name = value" a line, # before a comment.
std::optional<std::string> value_in_file(const std::string& path, const std::string& name) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  std::ifstream file(path);
  std::optional<std::string> value;
  for (std::string line; std::getline(file, line);) {
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos && trimmed(line.substr(0, equals)) == name)
      value = trimmed(line.substr(equals + 1));
  }
  return value;
}

std::vector<std::string> tune_files(const std::vector<Context>& contexts) {
  std::vector<std::string> files;
  std::istringstream paths(place_of(contexts, "mca_base_envar_file_prefix", "tune"));
  for (std::string path; std::getline(paths, path, ',');) files.push_back(path);
  return files;
}

// The words of a file that has options as on a command line: "-mca name value", "-x NAME=VALUE".
std::vector<std::string> words_of_tune_file(const std::string& path) {
  std::vector<std::string> all;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return all;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] == '#') continue;
    const std::vector<std::string> words = words_of_line(line);
    all.insert(all.end(), words.begin(), words.end());
  }
  return all;
}

std::optional<std::string> value_in_tune_file(const std::string& path, const std::string& name) {
  const std::vector<std::string> words = words_of_tune_file(path);
  std::optional<std::string> value;
  for (std::size_t at = 0; at + 2 < words.size(); at++)
    if ((words[at] == "-mca" || words[at] == "--mca") && words[at + 1] == name)
      value = words[at + 2];
  return value;
}

}  // namespace

std::optional<std::string> x_in_files(const std::vector<Context>& contexts,
                                      const std::string& name) {
  for (const std::string& path : tune_files(contexts)) {
    const std::vector<std::string> words = words_of_tune_file(path);
    for (std::size_t at = 0; at + 1 < words.size(); at++)
      if ((words[at] == "-x" || words[at] == "--x") &&
          words[at + 1].substr(0, words[at + 1].find('=')) == name)
        return words[at + 1];
  }
  return std::nullopt;
}

std::optional<std::string> mca_in_files(const Launcher& launcher,
                                        const std::vector<Context>& contexts,
                                        const std::string& name) {
  for (const std::string& path : tune_files(contexts))
    if (auto value = value_in_tune_file(path, name)) return value;
  for (const std::string& path : parameter_files(launcher, contexts))
    if (auto value = value_in_file(path, name)) return value;
  return std::nullopt;
}

}  // namespace rdmalloc::tool
