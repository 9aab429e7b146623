// Programs that run with a limit on their memory, by a control group of their own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rdmalloc::bench {

class MemoryCgroups {
 public:
  enum class Version { any, v1, v2 };

  explicit MemoryCgroups(Version version);
  // Removes the groups of programs that have ended.
  ~MemoryCgroups();
  MemoryCgroups(const MemoryCgroups&) = delete;
  MemoryCgroups& operator=(const MemoryCgroups&) = delete;

  // Why no program can be limited here, or nothing.
  const std::string& problem() const { return problem_; }
  Version version() const { return version_; }
  // What runs `command` in a group that may have `bytes`, swap included.
  std::vector<std::string> limited(std::size_t bytes,
                                   const std::vector<std::string>& command) const;

 private:
  bool find_mount(Version version);
  bool is_usable() const;

  Version version_ = Version::any;
  std::string mount_;
  std::string prefix_;  // of our groups' paths
  std::string problem_;
};

}  // namespace rdmalloc::bench
