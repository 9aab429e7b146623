// The bytes that travel. 64-bit word i of a payload is `seed + i * kStep`: both odd constants and
// fresh seeds, so that a byte of an older broadcast, of another offset or of a page that was given
// back differs. Exact, and at memory speed: eight words at a time, additions only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rdmalloc::bench {

namespace payload_detail {

// Eight words; GCC and Clang split it into what the machine has.
using Words = std::uint64_t __attribute__((vector_size(64)));
inline constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio, odd

// By reference: a vector this wide has no stable way to be returned.
inline void first_words(std::uint64_t seed, Words& words) {
  for (int i = 0; i < 8; ++i) words[i] = seed + static_cast<std::uint64_t>(i) * kStep;
}
inline constexpr std::uint64_t kStride = 8 * kStep;

}  // namespace payload_detail

// The seed of broadcast number `n`: splitmix64's finaliser (Steele, Lea, Flood).
inline std::uint64_t payload_seed(std::uint64_t n) {
  std::uint64_t z = (n + 1) * payload_detail::kStep;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

inline void payload_write(void* buffer, std::size_t bytes, std::uint64_t seed) {
  using payload_detail::Words;
  auto* out = static_cast<unsigned char*>(buffer);
  Words words;
  payload_detail::first_words(seed, words);
  for (; bytes >= sizeof(Words); bytes -= sizeof(Words), out += sizeof(Words)) {
    std::memcpy(out, &words, sizeof(Words));
    words += payload_detail::kStride;
  }
  std::memcpy(out, &words, bytes);
}

struct PayloadErrors {
  std::size_t wrong_bytes = 0;
  std::size_t first_offset = 0;
};

// Slow and exact: which bytes are wrong. Called only when something is.
inline PayloadErrors payload_errors(const void* buffer, std::size_t bytes, std::uint64_t seed) {
  PayloadErrors errors;
  const auto* in = static_cast<const unsigned char*>(buffer);
  for (std::size_t i = 0; i < bytes; ++i) {
    const std::uint64_t word = seed + (i / 8) * payload_detail::kStep;
    unsigned char wanted;
    std::memcpy(&wanted, reinterpret_cast<const unsigned char*>(&word) + i % 8, 1);
    if (in[i] == wanted) continue;
    if (errors.wrong_bytes++ == 0) errors.first_offset = i;
  }
  return errors;
}

// Every byte is compared.
inline bool payload_is_right(const void* buffer, std::size_t bytes, std::uint64_t seed) {
  using payload_detail::Words;
  const auto* in = static_cast<const unsigned char*>(buffer);
  Words wanted;
  payload_detail::first_words(seed, wanted);
  Words differences{};
  for (; bytes >= sizeof(Words); bytes -= sizeof(Words), in += sizeof(Words)) {
    Words got;
    std::memcpy(&got, in, sizeof(Words));
    differences |= got ^ wanted;
    wanted += payload_detail::kStride;
  }
  std::uint64_t any = 0;
  for (int i = 0; i < 8; ++i) any |= differences[i];
  return any == 0 && std::memcmp(in, &wanted, bytes) == 0;
}

}  // namespace rdmalloc::bench
