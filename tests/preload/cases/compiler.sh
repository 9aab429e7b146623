#!/bin/bash
# gcc, g++ and clang++ compile; what they make is the same and runs.
set -euo pipefail
cat >program.cc <<'PROGRAM'
#include <algorithm>
#include <cstdio>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>
template <int N> struct Sum { static constexpr long value = N + Sum<N - 1>::value; };
template <> struct Sum<0> { static constexpr long value = 0; };
static long work(int seed) {
  std::map<std::string, std::vector<int>> table;
  for (int i = 0; i < 20000; ++i) table[std::to_string(i * seed % 977)].push_back(i);
  long total = 0;
  for (auto& [key, values] : table) total += std::accumulate(values.begin(), values.end(), 0L);
  std::string text;
  for (int i = 0; i < 5000; ++i) text += std::to_string(i);
  std::regex seven("7+");
  total += std::distance(std::sregex_iterator(text.begin(), text.end(), seven), {});
  return total;
}
int main() {
  std::vector<std::future<long>> results;
  for (int i = 1; i <= 6; ++i) results.push_back(std::async(std::launch::async, work, i));
  for (auto& result : results) std::cout << result.get() << '\n';
  std::cout << Sum<400>::value << std::endl;
}
PROGRAM
printf '#include <stdio.h>\nint main(void) { puts("C"); return 0; }\n' >program.c
gcc -O2 program.c -o c && ./c
for compiler in g++ clang++; do
  command -v "$compiler" >/dev/null || { echo "SKIP: $compiler is not installed"; continue; }
  "$compiler" -std=c++20 -O2 -c program.cc
  cksum <program.o
  "$compiler" -pthread program.o -o program
  ./program
done
make -f - <<<'all:; @echo make works'
