// program_set NAME [--threads N] [--scale X] runs one of the programs; program_set --list names
// them, a JSON object a line. bench_programs runs all of them under each allocator.
#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <span>

#include "bench/programs/programs.h"
#include "bench/support/marks.h"
#include "bench/support/named.h"
#include "bench/support/server_of_malloc.h"

namespace {

int usage() {
  std::fputs("usage: program_set --list | NAME [--threads 1…256] [--scale 0.001…1000]\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace rdmalloc::bench;
  static const option kOptions[] = {{"threads", required_argument, nullptr, 't'},
                                    {"scale", required_argument, nullptr, 's'},
                                    {"list", no_argument, nullptr, 'l'},
                                    {nullptr, 0, nullptr, 0}};
  const std::span<const Program> programs[] = {single_programs(), threaded_programs(),
                                               sharing_programs()};
  double threads = 2;
  double scale = 1;
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    char* end = nullptr;
    if (letter == 'l') {
      print_names(programs);
      return 0;
    }
    if (letter == '?') return usage();
    (letter == 't' ? threads : scale) = std::strtod(optarg, &end);
    if (end == optarg || *end != '\0') return usage();
  }
  if (optind + 1 != argc || threads < 1 || threads > 256 || scale < 0.001 || scale > 1000)
    return usage();
  const Program* program = find(programs, "program_set", argv[optind]);
  if (program == nullptr) return 2;
  say_server_of_malloc();
  mark(Mark::begin);
  program->run(static_cast<unsigned>(threads), scale);
  mark(Mark::end);
  return 0;
}
