#include "bench/patterns/cli.h"

#include <getopt.h>

#include <cstdio>
#include <span>
#include <string>

#include "bench/support/named.h"
#include "bench/support/server_of_malloc.h"

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 40;

int usage(const char* program) {
  std::fprintf(
      stderr,
      "usage: %s --list | PATTERN [--threads N, 1 to 10000] [--sizes LEAST-MOST]\n"
      "       [--live N] [--operations N] [--warm-up N] [--spin] [--rest] [--settle-s S]\n",
      program);
  return 2;
}

// The whole text, a number from `least` to `most`.
bool parse_number(const std::string& text, std::size_t least, std::size_t most,
                  std::size_t& value) {
  if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
    return false;
  value = std::stoul(text);
  return least <= value && value <= most;
}

bool parse_sizes(const std::string& text, Shape& shape) {
  const std::size_t dash = text.find('-');
  return dash != std::string::npos &&
         parse_number(text.substr(0, dash), 1, kMostBytes, shape.least) &&
         parse_number(text.substr(dash + 1), shape.least, kMostBytes, shape.most);
}

bool parse_option(int letter, const char* text, Shape& shape) {
  constexpr std::size_t kMost = 1'000'000'000;
  std::size_t number = 0;
  switch (letter) {
    case 't':
      if (!parse_number(text, 1, 10'000, number)) return false;
      shape.threads = static_cast<unsigned>(number);
      return true;
    case 'b':
      return parse_sizes(text, shape);
    case 'l':
      return parse_number(text, 1, kMost, shape.live);
    case 'o':
      return parse_number(text, 1, kMost, shape.operations);
    case 'w':
      return parse_number(text, 0, kMost, shape.warm_up);
    case 's':
      return shape.spins = true;
    case 'r':
      return shape.rests = true;
    case 'S': {
      char* end = nullptr;
      shape.settle_s = std::strtod(text, &end);
      return end != text && *end == '\0' && shape.settle_s >= 0 && shape.settle_s <= 600;
    }
    default:
      return false;
  }
}

}  // namespace

int run_pattern(int argc, char** argv, const char* program, const std::vector<Pattern>& patterns) {
  static const option kOptions[] = {
      {"threads", required_argument, nullptr, 't'}, {"sizes", required_argument, nullptr, 'b'},
      {"live", required_argument, nullptr, 'l'},    {"operations", required_argument, nullptr, 'o'},
      {"warm-up", required_argument, nullptr, 'w'}, {"spin", no_argument, nullptr, 's'},
      {"rest", no_argument, nullptr, 'r'},          {"settle-s", required_argument, nullptr, 'S'},
      {"list", no_argument, nullptr, 'L'},          {nullptr, 0, nullptr, 0}};
  const std::span<const Pattern> lists[] = {patterns};
  Shape shape;
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (letter == 'L') {
      print_names(lists);
      return 0;
    }
    if (!parse_option(letter, optarg, shape)) return usage(program);
  }
  if (optind + 1 != argc) return usage(program);
  const Pattern* pattern = find(lists, program, argv[optind]);
  if (pattern == nullptr) return 2;
  say_server_of_malloc();
  Team team(shape);
  pattern->run(team);
  return 0;
}

}  // namespace rdmalloc::bench
