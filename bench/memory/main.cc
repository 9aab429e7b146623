// memory_patterns NAME [--settle-s S] [--until-s S] [--scale X] [--one-thread] runs one of the
// patterns in this process; memory_patterns --list names them. Or
//
//   memory_patterns live --bytes N [--alignment N] [--count N]
//
// allocates blocks of one size, writes every byte of them, and says what that takes. Under whatever
// allocator is preloaded. Prints who serves malloc, then what was resident, a JSON object a line.
#include <getopt.h>

#include <chrono>
#include <cstdio>
#include <span>
#include <string>
#include <thread>

#include "bench/memory/patterns.h"
#include "bench/support/named.h"
#include "bench/support/resident.h"
#include "bench/support/server_of_malloc.h"

namespace rdmalloc::bench {
namespace {

struct Options {
  std::size_t bytes = 0;
  std::size_t alignment = 0;  // 0: malloc's
  std::size_t count = 0;      // 0: as many as come to 32 MiB, at least 4
  double settle_s = 0;
  double until_s = 60;
  double scale = 1;
  bool has_one_thread = false;
};

int usage() {
  std::fputs(
      "usage: memory_patterns --list | NAME [--settle-s 0 to 600] [--until-s 1 to 600] "
      "[--scale 0.001 to 10] [--one-thread]\n"
      "       memory_patterns live --bytes N [--alignment N, a power of 2 from 8 to 1G] [--count "
      "N]\n",
      stderr);
  return 2;
}

bool parse_count(const char* text, std::size_t& value) {
  const std::string digits = text;
  if (digits.empty() || digits.size() > 15 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return false;
  value = std::stoul(digits);
  return value != 0;
}

bool parse_real(const char* text, double least, double most, double& value) {
  char* end = nullptr;
  value = std::strtod(text, &end);
  return end != text && *end == '\0' && least <= value && value <= most;
}

bool parse_option(int letter, const char* text, Options& options) {
  switch (letter) {
    case 'b':
      return parse_count(text, options.bytes);
    case 'a':
      return parse_count(text, options.alignment) && options.alignment >= 8 &&
             options.alignment <= std::size_t{1} << 30 &&
             (options.alignment & (options.alignment - 1)) == 0;
    case 'c':
      return parse_count(text, options.count);
    case 's':
      return parse_real(text, 0, 600, options.settle_s);
    case 'u':
      return parse_real(text, 1, 600, options.until_s);
    case 'x':
      return parse_real(text, 0.001, 10, options.scale);
    case '1':
      options.has_one_thread = true;
      return true;
    default:
      return false;
  }
}

// Beside what was resident before the first of them.
void live(const Options& options) {
  constexpr std::size_t kTotal = std::size_t{32} << 20;
  constexpr std::size_t kFewest = 4;
  const std::size_t count =
      options.count != 0 ? options.count : std::max(kTotal / options.bytes, kFewest);
  Mapped<void*> blocks(count);
  say_server_of_malloc();
  const std::uint64_t before = resident_bytes();
  for (void*& block : blocks) {
    if (options.alignment == 0)
      block = std::malloc(options.bytes);
    else if (posix_memalign(&block, options.alignment, options.bytes) != 0)
      block = nullptr;
    std::memset(must_have(block), 1, options.bytes);
  }
  const double asked = static_cast<double>(count) * static_cast<double>(options.bytes);
  std::printf("{\"blocks\":%zu,\"resident_to_asked\":%.4f}\n", count,
              static_cast<double>(resident_bytes() - before) / asked);
}

int run(int argc, char** argv) {
  static const option kOptions[] = {{"bytes", required_argument, nullptr, 'b'},
                                    {"alignment", required_argument, nullptr, 'a'},
                                    {"count", required_argument, nullptr, 'c'},
                                    {"settle-s", required_argument, nullptr, 's'},
                                    {"until-s", required_argument, nullptr, 'u'},
                                    {"scale", required_argument, nullptr, 'x'},
                                    {"one-thread", no_argument, nullptr, '1'},
                                    {"list", no_argument, nullptr, 'L'},
                                    {nullptr, 0, nullptr, 0}};
  const std::span<const MemoryPattern> patterns[] = {emptied_patterns(), kept_patterns(),
                                                     returned_patterns()};
  Options options;
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (letter == 'L') {
      print_names(patterns);
      return 0;
    }
    if (!parse_option(letter, optarg, options)) return usage();
  }
  if (optind + 1 != argc) return usage();
  const std::string name = argv[optind];
  if (name == "live") {
    if (options.bytes == 0) return usage();
    live(options);
    return 0;
  }
  const MemoryPattern* pattern = find(patterns, "memory_patterns", name);
  if (pattern == nullptr) return 2;
  say_server_of_malloc();
  // An allocator may give memory back by a thread of its own, and have none in a program of one.
  if (!options.has_one_thread) std::thread([] {}).join();
  pattern->run(Watch(options.settle_s, options.until_s), options.scale);
  return 0;
}

}  // namespace

void Watch::at_end() const {
  const Residence found = look_and_settle(settle_s_);
  std::printf("{\"peak_mib\":%.3f,\"end_mib\":%.3f,\"settled_mib\":%.3f}\n", found.peak_mib,
              found.end_mib, found.settled_mib);
}

void Watch::after_peak(std::uint64_t peak, std::uint64_t freed,
                       const std::function<void()>& work) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::printf("{\"peak_mib\":%.3f", mib(peak));
  for (const int look_s : {1, 5, 10, 60}) {
    if (look_s > until_s_) break;
    while (Clock::now() < start + std::chrono::seconds(look_s)) {
      work();
      usleep(10'000);
    }
    const auto gone = static_cast<double>(peak) - static_cast<double>(resident_bytes());
    std::printf(",\"back_%ds\":%.2f", look_s, 100 * gone / static_cast<double>(freed));
  }
  std::printf("}\n");
}

}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::run(argc, argv);
}
