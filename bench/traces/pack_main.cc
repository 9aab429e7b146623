// pack_trace RECORDING TRACE: makes a trace of what librecord.so wrote; prints what is in it.
#include <cstdio>

#include "bench/traces/pack.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: pack_trace RECORDING TRACE\n", stderr);
    return 2;
  }
  const rdmalloc::bench::Packed packed = rdmalloc::bench::pack(argv[1], argv[2]);
  if (!packed.error.empty()) {
    std::fprintf(stderr, "pack_trace: %s\n", packed.error.c_str());
    return 1;
  }
  std::printf(
      "{\"program\":\"%s\",\"threads\":%lu,\"slots\":%lu,\"operations\":%lu,\"allocations\":%lu,"
      "\"frees\":%lu,\"unknown_blocks\":%lu,\"is_forked\":%s,\"was_full\":%s}\n",
      packed.program.c_str(), packed.threads, packed.slots, packed.operations, packed.allocations,
      packed.frees, packed.unknown_blocks, packed.is_forked ? "true" : "false",
      packed.was_full ? "true" : "false");
  return 0;
}
