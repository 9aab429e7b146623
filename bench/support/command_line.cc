#include "bench/support/command_line.h"

#include <CLI/CLI.hpp>

namespace rdmalloc::bench {

struct CommandLine::Parser {
  CLI::App app;

  template <typename Number, typename Bound>
  void number(const std::string& name, Number& value, Bound least, Bound most,
              const std::string& help) {
    app.add_option(name, value, help)->check(CLI::Range(least, most))->capture_default_str();
  }
};

CommandLine::CommandLine(const std::string& what, const std::string& program)
    : parser_(new Parser{CLI::App(what, program)}), program_(program) {}

CommandLine::~CommandLine() = default;

void CommandLine::text(const std::string& name, std::string& value, const std::string& help) {
  parser_->app.add_option(name, value, help)->capture_default_str();
}

void CommandLine::number(const std::string& name, int& value, int least, int most,
                         const std::string& help) {
  parser_->number(name, value, least, most, help);
}

void CommandLine::number(const std::string& name, std::size_t& value, int least, int most,
                         const std::string& help) {
  parser_->number(name, value, least, most, help);
}

void CommandLine::number(const std::string& name, double& value, double least, double most,
                         const std::string& help) {
  parser_->number(name, value, least, most, help);
}

void CommandLine::flag(const std::string& name, bool& value, const std::string& help) {
  parser_->app.add_flag(name, value, help);
}

void CommandLine::texts(const std::string& name, std::vector<std::string>& values,
                        const std::string& help) {
  parser_->app.add_option(name, values, help);
}

void CommandLine::hidden(const std::string& name, std::string& value) {
  parser_->app.add_option(name, value)->group("");
}

int CommandLine::parse(int argc, char** argv) {
  try {
    parser_->app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return parser_->app.exit(error) == 0 ? 0 : 2;
  }
  return -1;
}

bool CommandLine::is_given(const std::string& name) const {
  return parser_->app.count(name) > 0;
}

std::string CommandLine::as_given(const std::string& name) const {
  return parser_->app[name]->as<std::string>();
}

}  // namespace rdmalloc::bench
