// Which bytes of text from elsewhere a terminal may take for commands. Shown as \x1b by our
// messages (alloc/core/report.cc) and by rdmalloc(1).
#pragma once

namespace rdmalloc::os {

// Of the first 32, DEL, and the second 32 (C1) by themselves or as UTF-8 has them, behind 0xc2.
// Behind other letters these bytes are parts of UTF-8's letters. `before`: the byte shown before
// it, or 0.
constexpr bool is_control_character(unsigned char before, unsigned char c) {
  if (c < 0x80) return c < 0x20 || c == 0x7f;
  return c < 0xa0 && (before < 0x80 || before == 0xc2);
}

}  // namespace rdmalloc::os
