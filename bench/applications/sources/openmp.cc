// application_openmp THREADS STEPS: finite elements in small: each step, OpenMP threads assemble
// the rows of a sparse matrix in lists and hash maps of their own, the lists are joined into rows
// of compressed storage, and what was there before ends in whichever thread has it.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <unordered_map>
#include <vector>

#include "bench/support/marks.h"

namespace {

using rdmalloc::bench::Mark, rdmalloc::bench::mark;

constexpr int kElements = 12'000;
constexpr int kNodes = 4'000;

struct Entry {
  int column;
  double value;
};
using Row = std::vector<Entry>;

// The nodes of an element, spread so that neighbours' elements share them.
int node_of(int element, int corner) {
  return (element / 3 + corner * 61 + element % 3) % kNodes;
}

// The rows that a thread's elements add to.
using Part = std::unordered_map<int, Row>;

void add_element(Part& part, int element, int step) {
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j)
      part[node_of(element, i)].push_back({node_of(element, j), 1.0 / (1 + i + j + step)});
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc == 3 ? std::atoi(argv[1]) : 0;
  const int steps = argc == 3 ? std::atoi(argv[2]) : 0;
  if (threads < 1 || threads > 256 || steps < 1) {
    std::fputs("usage: application_openmp THREADS STEPS\n", stderr);
    return 2;
  }
  std::vector<std::unique_ptr<Row>> matrix(kNodes);
  double sum = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<Part> parts(static_cast<std::size_t>(threads));
#pragma omp parallel num_threads(threads)
    {
      mark(Mark::begin);
      unsigned long nodes = 0;
#pragma omp for
      for (int thread = 0; thread < threads; ++thread)
        for (int element = thread; element < kElements; element += threads)
          add_element(parts[static_cast<std::size_t>(thread)], element, step);
#pragma omp for reduction(+ : sum) schedule(dynamic, 64)
      for (int node = 0; node < kNodes; ++node) {
        auto row = std::make_unique<Row>();
        for (const Part& part : parts)
          if (const auto found = part.find(node); found != part.end())
            row->insert(row->end(), found->second.begin(), found->second.end());
        for (const Entry& entry : *row) sum += entry.value;
        matrix[static_cast<std::size_t>(node)] = std::move(row);
        ++nodes;
      }
      mark(Mark::end, nodes);
    }
  }
  std::printf("%.6g\n", sum);
  return sum > 0 ? 0 : 1;
}
