// Small programs, each the manner of allocating of a well-known benchmark or kind of application in
// code of our own. Fixed work: what is measured is the whole process, from outside.
#pragma once

#include <vector>

#include "bench/support/blocks.h"

namespace rdmalloc::bench {

struct Program {
  const char* name;
  const char* what;  // whose, and what is typical of it
  void (*run)(unsigned threads, double scale);
};

const std::vector<Program>& single_programs();    // one thread
const std::vector<Program>& threaded_programs();  // many
const std::vector<Program>& sharing_programs();   // many, about lines, leftovers and own sets

}  // namespace rdmalloc::bench
