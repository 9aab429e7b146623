// The options of a comparing program. CLI11 parses them, out of sight: a file that includes it
// takes 9 s of compiling.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace rdmalloc::bench {

class CommandLine {
 public:
  CommandLine(const std::string& what, const std::string& program);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Options, named "--name". What `value` holds now is told as its default, unless it is empty; it
  // must live until parse().
  void text(const std::string& name, std::string& value, const std::string& help);
  void number(const std::string& name, int& value, int least, int most, const std::string& help);
  void number(const std::string& name, std::size_t& value, int least, int most,
              const std::string& help);
  void number(const std::string& name, double& value, double least, double most,
              const std::string& help);
  void flag(const std::string& name, bool& value, const std::string& help);
  // May be given several times; without "--", all words that are no option.
  void texts(const std::string& name, std::vector<std::string>& values, const std::string& help);
  // For tests: not in the help.
  void hidden(const std::string& name, std::string& value);

  // -1 to go on, otherwise the exit status: the message or the help is printed.
  int parse(int argc, char** argv);
  const std::string& program() const { return program_; }
  bool is_given(const std::string& name) const;
  std::string as_given(const std::string& name) const;

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  std::string program_;
};

}  // namespace rdmalloc::bench
