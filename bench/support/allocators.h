// The allocators that are compared, where their libraries are, and with which settings they run.
// Each one is put under an unchanged program by LD_PRELOAD.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace rdmalloc::bench {

using Environment = std::map<std::string, std::string>;

struct Allocator {
  std::string name;         // in tables and options
  std::string library;      // what is preloaded, an absolute path; empty for libc's own malloc
  Environment environment;  // its settings, LD_PRELOAD not among them
  std::string build = {};   // which one it is (build_of.h)
};

// Something asked for that is not on this machine: it is named in the report, never faked.
struct LeftOut {
  std::string what;
  std::string why;
};

struct AllocatorSearch {
  std::vector<std::string> names = {};         // which, in the order of the tables; empty: all
  std::string rdmalloc_library = {};           // path of librdmalloc.so
  std::vector<std::string> peers = {};         // further ones, as NAME=PATH
  std::vector<std::string> peer_folders = {};  // where peers were built, or folders above that
};

struct AllocatorChoice {
  std::vector<Allocator> found;
  std::vector<LeftOut> left_out;
  std::string error;  // a name that doesn't exist or a malformed NAME=PATH: what to do about it
};

// Every name that AllocatorSearch::names may hold, without the NAME=PATH ones.
std::vector<std::string> allocator_names();
// What is looked for in AllocatorSearch::peer_folders.
std::vector<std::string> built_peer_names();
AllocatorChoice choose_allocators(const AllocatorSearch& search);

// mimalloc 3, under whichever name it came: Debian's or one that was built beside.
bool is_mimalloc_3(const Allocator& allocator);

// What the dynamic linker is to be told; empty for libc's own malloc.
Environment preload_environment(const Allocator& allocator);

// Whether `served_by`, the object that dladdr names for malloc in the measured process, is this
// allocator. A preload that failed only prints a warning, and the row would be glibc's.
bool is_served_by(const Allocator& allocator, const std::string& served_by);

}  // namespace rdmalloc::bench
