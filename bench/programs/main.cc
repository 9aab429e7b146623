// program_set NAME [--threads N] [--scale X] runs one of the programs; program_set --list names
// them, a JSON object a line. bench_programs runs all of them under each allocator.
#include <getopt.h>

#include <cstdio>
#include <cstring>

#include "bench/programs/programs.h"
#include "bench/support/marks.h"
#include "bench/support/server_of_malloc.h"

namespace {

using rdmalloc::bench::Program;

void list(const std::vector<Program>& programs) {
  for (const Program& program : programs)
    std::printf("{\"name\":\"%s\",\"manner\":\"%s\"}\n", program.name, program.manner);
}

const Program* find(const std::vector<Program>& programs, const char* name) {
  for (const Program& program : programs)
    if (std::strcmp(program.name, name) == 0) return &program;
  return nullptr;
}

int usage() {
  std::fputs("usage: program_set --list | NAME [--threads 1…256] [--scale 0.001…1000]\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  static const option kOptions[] = {{"threads", required_argument, nullptr, 't'},
                                    {"scale", required_argument, nullptr, 's'},
                                    {"list", no_argument, nullptr, 'l'},
                                    {nullptr, 0, nullptr, 0}};
  double threads = 2;
  double scale = 1;
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    char* end = nullptr;
    if (letter == 'l') {
      list(rdmalloc::bench::single_programs());
      list(rdmalloc::bench::threaded_programs());
      list(rdmalloc::bench::sharing_programs());
      return 0;
    }
    if (letter == '?') return usage();
    (letter == 't' ? threads : scale) = std::strtod(optarg, &end);
    if (end == optarg || *end != '\0') return usage();
  }
  if (optind + 1 != argc || threads < 1 || threads > 256 || scale < 0.001 || scale > 1000)
    return usage();
  const Program* program = find(rdmalloc::bench::single_programs(), argv[optind]);
  if (program == nullptr) program = find(rdmalloc::bench::threaded_programs(), argv[optind]);
  if (program == nullptr) program = find(rdmalloc::bench::sharing_programs(), argv[optind]);
  if (program == nullptr) {
    std::fprintf(stderr, "program_set: there is no program '%s'; --list names them\n",
                 argv[optind]);
    return 2;
  }
  std::printf("{\"malloc\":\"%s\"}\n", rdmalloc::bench::server_of_malloc());
  std::fflush(stdout);
  rdmalloc::bench::mark(rdmalloc::bench::Mark::begin);
  program->run(static_cast<unsigned>(threads), scale);
  rdmalloc::bench::mark(rdmalloc::bench::Mark::end);
  return 0;
}
