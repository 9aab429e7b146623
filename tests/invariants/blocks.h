// SPDX-License-Identifier: BSD-3-Clause
//
// Blocks of tests of the page heap: every byte written, so that their pages are there. From calloc,
// which takes new pages before it takes a span that the thread caches: at most those of 64 and 128
// KiB that malloc made are not the page heap's at once.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <cstring>
#include <vector>

namespace rdmalloc_test {

inline char* touched(size_t bytes) {
  auto* block = static_cast<char*>(rdmalloc_calloc(1, bytes));
  if (block != nullptr) memset(block, 1, bytes);
  return block;
}
inline std::vector<char*> blocks_of(size_t count, size_t bytes) {
  std::vector<char*> blocks(count);
  for (char*& block : blocks) block = touched(bytes);
  return blocks;
}
inline void release(const std::vector<char*>& blocks) {
  for (char* block : blocks) rdmalloc_free(block);
}

}  // namespace rdmalloc_test
