// How the beginning of a function looks after libfabric, OPAL or UCX has patched it: control goes
// elsewhere before anything is done. Which of the forms it is depends on the library's version and
// on how far its hook lies from libc, so it changes from one run to the next.
#pragma once

#include <cstdint>

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

inline bool begins_with_jump(const unsigned char* text) {
#if defined(__x86_64__)
  return begins_with_jump_x86_64(text);
#else
  return begins_with_jump_aarch64(reinterpret_cast<const std::uint32_t*>(text));
#endif
}

}  // namespace rdmalloc
