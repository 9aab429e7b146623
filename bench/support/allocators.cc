#include "bench/support/allocators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;

struct KnownAllocator {
  const char* name;
  std::vector<const char*> libraries;  // file names, the first one found is taken
  Environment environment;
  const char* package;  // Debian's
};

const std::vector<KnownAllocator>& known_allocators() {
  // mimalloc-nopurge: 2.0 reads ALLOW_DECOMMIT and PAGE_RESET, 2.1 and later PURGE_DELAY; each
  // ignores the others' names. tcmalloc and glibc keep or give back as they come.
  static const std::vector<KnownAllocator> known = {
      {"glibc", {}, {}, "libc6"},
      {"mimalloc",
       {"libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so"},
       {},
       "libmimalloc2.0 or libmimalloc3"},
      {"mimalloc-nopurge",
       {"libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so"},
       {{"MIMALLOC_ALLOW_DECOMMIT", "0"},
        {"MIMALLOC_PAGE_RESET", "0"},
        {"MIMALLOC_PURGE_DELAY", "-1"}},
       "libmimalloc2.0 or libmimalloc3"},
      {"jemalloc", {"libjemalloc.so.2"}, {}, "libjemalloc2"},
      {"jemalloc-bg",
       {"libjemalloc.so.2"},
       {{"MALLOC_CONF", "background_thread:true"}},
       "libjemalloc2"},
      {"tcmalloc",
       {"libtcmalloc_minimal.so.4", "libtcmalloc.so.4"},
       {},
       "libtcmalloc-minimal4 (trixie: libtcmalloc-minimal4t64)"},
      {"rdmalloc", {}, {}, ""},
  };
  return known;
}

// Allocators that Debian has in no package, or not in this version: found by their libraries' names
// where they were built.
const std::vector<KnownAllocator>& built_peers() {
  static const std::vector<KnownAllocator> known = {
      {"mimalloc3", {"libmimalloc.so.3", "libmimalloc-secure.so.3"}, {}, ""},
      {"snmalloc", {"libsnmallocshim.so"}, {}, ""},
      {"rpmalloc", {"librpmallocwrap.so", "librpmalloc.so"}, {}, ""},
      {"jemalloc-dev", {"libjemalloc.so.2"}, {}, ""},
      {"gperftools", {"libtcmalloc_minimal.so.4", "libtcmalloc_minimal.so"}, {}, ""},
      {"hardened", {"libhardened_malloc.so"}, {}, ""},
      {"scudo",
       {"libclang_rt.scudo_standalone-x86_64.so", "libclang_rt.scudo_standalone-aarch64.so"},
       {},
       ""},
  };
  return known;
}

std::vector<fs::path> library_directories() {
  std::vector<fs::path> directories;
  if (const char* path = std::getenv("LD_LIBRARY_PATH")) {
    std::stringstream stream(path);
    for (std::string part; std::getline(stream, part, ':');)
      if (!part.empty()) directories.emplace_back(part);
  }
  for (const char* directory :
       {"/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64",
        "/usr/lib", "/lib64", "/lib"})
    directories.emplace_back(directory);
  return directories;
}

std::optional<std::string> find_library(const std::vector<const char*>& file_names) {
  std::error_code ignored;
  for (const char* file_name : file_names)
    for (const fs::path& directory : library_directories())
      if (fs::exists(directory / file_name, ignored)) return (directory / file_name).string();
  return std::nullopt;
}

void add_known(const KnownAllocator& known, const AllocatorSearch& search,
               AllocatorChoice& choice) {
  const std::string name = known.name;
  if (name == "glibc") {
    choice.found.push_back({name, "", known.environment});
  } else if (name == "rdmalloc") {
    std::error_code failed;
    const fs::path path = fs::canonical(search.rdmalloc_library, failed);
    if (failed)
      choice.left_out.push_back(
          {name, fmt::format("no {}: build the target rdmalloc, or name the library by --rdmalloc",
                             search.rdmalloc_library)});
    else
      choice.found.push_back({name, path.string(), known.environment});
  } else if (auto path = find_library(known.libraries)) {
    choice.found.push_back({name, *path, known.environment});
  } else {
    choice.left_out.push_back(
        {name, fmt::format("no {} in the usual library directories; Debian "
                           "has it in {}",
                           fmt::join(known.libraries, " or "), known.package)});
  }
}

// A build's libraries lie in its top folder, or one or two below.
constexpr int kPeerFolderDepth = 2;

std::optional<std::string> find_below(const fs::path& folder,
                                      const std::vector<const char*>& file_names) {
  std::error_code failed;
  for (const char* file_name : file_names)
    for (auto it = fs::recursive_directory_iterator(
             folder, fs::directory_options::skip_permission_denied, failed);
         !failed && it != fs::recursive_directory_iterator(); it.increment(failed)) {
      if (it.depth() >= kPeerFolderDepth) it.disable_recursion_pending();
      if (it->path().filename() != file_name) continue;
      std::error_code leads_nowhere;
      const fs::path library = fs::canonical(it->path(), leads_nowhere);
      if (!leads_nowhere) return library.string();
    }
  return std::nullopt;
}

// What is wrong with the folder, or nothing.
std::string add_built_peers(const std::string& folder, AllocatorChoice& choice) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return fmt::format("--peers {}: no such folder", folder);
  for (const KnownAllocator& known : built_peers()) {
    const bool there = std::any_of(choice.found.begin(), choice.found.end(),
                                   [&](const Allocator& a) { return a.name == known.name; });
    if (there) continue;
    if (auto path = find_below(folder, known.libraries))
      choice.found.push_back({known.name, *path, known.environment});
    else
      choice.left_out.push_back(
          {known.name, fmt::format("no {} below {}", fmt::join(known.libraries, " or "), folder)});
  }
  return {};
}

// NAME=PATH; what is wrong with it, or nothing.
std::string add_peer(const std::string& text, AllocatorChoice& choice) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    return fmt::format("--peer {}: NAME=PATH is wanted, as in --peer snmalloc=/opt/libsnmalloc.so",
                       text);
  std::error_code failed;
  const fs::path path = fs::canonical(text.substr(equals + 1), failed);
  if (failed) return fmt::format("--peer {}: {}", text, failed.message());
  const std::string name = text.substr(0, equals);
  for (const Allocator& other : choice.found)
    if (other.name == name) return fmt::format("--peer {}: there is a {} already", text, name);
  choice.found.push_back({name, path.string(), {}});
  return {};
}

}  // namespace

std::vector<std::string> allocator_names() {
  std::vector<std::string> names;
  for (const KnownAllocator& known : known_allocators()) names.emplace_back(known.name);
  return names;
}

std::vector<std::string> built_peer_names() {
  std::vector<std::string> names;
  for (const KnownAllocator& known : built_peers()) names.emplace_back(known.name);
  return names;
}

AllocatorChoice choose_allocators(const AllocatorSearch& search) {
  AllocatorChoice choice;
  std::set<std::string> seen;
  for (const std::string& name : search.names.empty() ? allocator_names() : search.names) {
    const auto known =
        std::find_if(known_allocators().begin(), known_allocators().end(),
                     [&](const KnownAllocator& candidate) { return name == candidate.name; });
    if (known == known_allocators().end()) {
      choice.error = fmt::format(
          "there is no allocator '{}' here; there are {}. Another one is added by --peer "
          "NAME=PATH",
          name, fmt::join(allocator_names(), ", "));
      return choice;
    }
    if (seen.insert(name).second) add_known(*known, search, choice);
  }
  for (const std::string& peer : search.peers) {
    if (choice.error = add_peer(peer, choice); !choice.error.empty()) return choice;
  }
  for (const std::string& folder : search.peer_folders) {
    if (choice.error = add_built_peers(folder, choice); !choice.error.empty()) return choice;
  }
  return choice;
}

bool is_mimalloc_3(const Allocator& allocator) {
  const std::string file = fs::path(allocator.library).filename().string();
  return allocator.environment.empty() && file.rfind("libmimalloc", 0) == 0 &&
         file.find(".so.3") != std::string::npos;
}

Environment preload_environment(const Allocator& allocator) {
  Environment environment = allocator.environment;
  if (!allocator.library.empty()) environment["LD_PRELOAD"] = allocator.library;
  return environment;
}

bool is_served_by(const Allocator& allocator, const std::string& served_by) {
  std::error_code failed;
  const fs::path served = fs::canonical(served_by, failed);
  if (failed) return false;
  const std::string file = served.filename().string();
  // libc.so.6, libc-2.31.so before glibc 2.33; not libclang_rt.scudo_standalone-x86_64.so.
  if (allocator.library.empty()) return file.rfind("libc.", 0) == 0 || file.rfind("libc-", 0) == 0;
  return served == fs::canonical(allocator.library, failed) && !failed;
}

}  // namespace rdmalloc::bench
