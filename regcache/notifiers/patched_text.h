// How the beginning of a function looks after libfabric, OPAL or UCX has patched it: control goes
// elsewhere before anything is done. Which of the forms it is depends on the library's version and
// on how far its hook lies from libc, so it changes from one run to the next.
#pragma once

#include <cstdint>
#include <cstring>

namespace rdmalloc {

// Wants 16 readable bytes: the shortest function that enters the kernel is longer.
constexpr bool begins_with_jump_x86_64(const unsigned char* text) {
  if (text[0] == 0xf3 && text[1] == 0x0f && text[2] == 0x1e && text[3] == 0xfa)
    text += 4;                                          // endbr64
  if (text[0] == 0xe9) return true;                     // jmp rel32
  if (text[0] == 0xff && text[1] == 0x25) return true;  // jmp [rip + disp32]
  // mov r64, imm64, which is always the address for a jump: r11 (49 bb) or, with UCX, rax (48 b8).
  return (text[0] & 0xfe) == 0x48 && (text[1] & 0xf8) == 0xb8;
}

// Wants 5 readable words, the longest patch: movz and three movk, then br.
constexpr bool begins_with_jump_aarch64(const std::uint32_t* text) {
  for (int i = 0; i < 5; ++i) {
    if ((text[i] & 0xfc000000) == 0x14000000) return true;   // b imm26
    if ((text[i] & 0xfffffc1f) == 0xd61f0000) return true;   // br
    if ((text[i] & 0xffe0001f) == 0xd4000001) return false;  // svc: the kernel is entered
  }
  return false;
}

// Where it goes; 0: nowhere that is seen here. Wants text that begins with a jump.
inline std::uint64_t jump_target_x86_64(const unsigned char* text) {
  if (text[0] == 0xf3) text += 4;
  std::int32_t near = 0;
  std::uint64_t far = 0;
  if (text[0] == 0xe9) {
    std::memcpy(&near, text + 1, sizeof near);
    return reinterpret_cast<std::uint64_t>(text + 5) + static_cast<std::uint64_t>(near);
  }
  if (text[0] == 0xff) {
    std::memcpy(&near, text + 2, sizeof near);
    std::memcpy(&far, text + 6 + near, sizeof far);
    return far;
  }
  std::memcpy(&far, text + 2, sizeof far);
  return far;
}

inline std::uint64_t jump_target_aarch64(const std::uint32_t* text) {
  std::uint64_t value = 0;
  for (int i = 0; i < 5; ++i) {
    std::uint32_t word = text[i];
    if ((word & 0xfc000000) == 0x14000000) {
      auto words = static_cast<std::int32_t>(word << 6) >> 6;
      return reinterpret_cast<std::uint64_t>(text + i + words);
    }
    bool is_move = (word & 0xff800000) == 0xd2800000, keeps = (word & 0xff800000) == 0xf2800000;
    if (is_move || keeps) {
      unsigned shift = (word >> 21 & 3) * 16;
      std::uint64_t part = word >> 5 & 0xffff;
      value = (is_move ? 0 : value & ~(std::uint64_t{0xffff} << shift)) | part << shift;
    }
    if ((word & 0xfffffc1f) == 0xd61f0000) return value;
  }
  return 0;
}

inline const void* jump_target(const unsigned char* text) {
#if defined(__x86_64__)
  return reinterpret_cast<const void*>(jump_target_x86_64(text));
#else
  return reinterpret_cast<const void*>(
      jump_target_aarch64(reinterpret_cast<const std::uint32_t*>(text)));
#endif
}

inline bool begins_with_jump(const unsigned char* text) {
#if defined(__x86_64__)
  return begins_with_jump_x86_64(text);
#else
  return begins_with_jump_aarch64(reinterpret_cast<const std::uint32_t*>(text));
#endif
}

}  // namespace rdmalloc
