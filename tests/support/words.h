// SPDX-License-Identifier: BSD-3-Clause
//
// Bytes that tests write and compare, all of them, by eight at a time: under a sanitizer each
// access costs tens of instructions, and was most of what these tests took.
// Seen to fail with it: a realloc that copies one byte too few, a usable size 16 bytes too long, a
// free() that writes a block's last byte.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace rdmalloc_test {

using Word = uint64_t __attribute__((may_alias));

// A word unlike those of other places and other seeds, in each of its bytes.
inline uint64_t mixed_word(uint64_t place, uint64_t seed) {
  uint64_t word = (place + seed * 0xD1342543DE82EF95u + 1) * 0x9E3779B97F4A7C15u;
  word ^= word >> 29u;
  word *= 0xBF58476D1CE4E5B9u;
  return word ^ word >> 32u;
}

inline unsigned char byte_of_word(uint64_t word, size_t at) {
  return reinterpret_cast<const unsigned char*>(&word)[at % sizeof word];
}

// Makes block[from, to) what word_of(at) says for each `at` that 8 divides. `block` is aligned
// to 8.
template <typename WordOf>
void fill_words(unsigned char* block, size_t from, size_t to, WordOf word_of) {
  size_t at = from;
  for (; at < to && at % sizeof(Word) != 0; at++)
    block[at] = byte_of_word(word_of(at & ~size_t{7}), at);
  for (; at + sizeof(Word) <= to; at += sizeof(Word))
    *reinterpret_cast<Word*>(block + at) = word_of(at);
  for (; at < to; at++) block[at] = byte_of_word(word_of(at & ~size_t{7}), at);
}

// The first of `bytes` that is not as fill_words() makes it, or `bytes`.
template <typename WordOf>
size_t first_unlike(const unsigned char* block, size_t bytes, WordOf word_of) {
  size_t at = 0;
  for (; at + sizeof(Word) <= bytes; at += sizeof(Word))
    if (*reinterpret_cast<const Word*>(block + at) != word_of(at)) break;
  for (; at < bytes; at++)
    if (block[at] != byte_of_word(word_of(at & ~size_t{7}), at)) return at;
  return bytes;
}

}  // namespace rdmalloc_test
