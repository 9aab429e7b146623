// thread_patterns PATTERN [OPTION...] runs one of the patterns in this process; thread_patterns
// --list names them. Under whatever allocator is preloaded:
//
//   LD_PRELOAD=/path/librdmalloc.so thread_patterns replace --threads 64 --sizes 16-4096 --live 128
#include "bench/patterns/cli.h"

int main(int argc, char** argv) {
  using namespace rdmalloc::bench;
  std::vector<Pattern> patterns = own_patterns();
  patterns.insert(patterns.end(), shared_patterns().begin(), shared_patterns().end());
  return run_pattern(argc, argv, "thread_patterns", patterns);
}
