// The command line of a program of patterns: PROGRAM PATTERN [OPTION...], PROGRAM --list.
#pragma once

#include <vector>

#include "bench/patterns/patterns.h"

namespace rdmalloc::bench {

// Runs the pattern that is named, and prints who serves malloc, then what was measured; a JSON
// object a line. The exit status.
int run_pattern(int argc, char** argv, const char* program, const std::vector<Pattern>& patterns);

}  // namespace rdmalloc::bench
