// SPDX-License-Identifier: BSD-3-Clause
//
// Messages have a fixed buffer. Seen to fail: with text cut where the buffer ended, without a sign
// and in the middle of a letter; and with an ellipsis behind a value that left no room for the next
// one.
#include "alloc/core/report.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "alloc/os/control_character.h"

namespace {

using rdmalloc::Message;

std::string repeated(const std::string& words, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += words;
  return text;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The longest text that is not cut.
constexpr std::size_t kWhole = 507;

TEST(Message, is_whole_where_it_fits_and_says_where_it_is_cut) {
  std::string whole(kWhole, 'a');
  EXPECT_EQ(Message().text(whole.c_str()).c_str(), whole);
  EXPECT_EQ(Message().text((whole + "a").c_str()).c_str(), whole + "...");
  EXPECT_EQ(Message().text(whole.c_str()).text("b").number(7).address(nullptr).c_str(),
            whole + "...");
}

TEST(Message, is_cut_between_letters_and_not_in_one) {
  // Of two, three and four bytes, and \x1b, each at every distance from the end.
  for (const std::string letter : {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\x1b"}) {
    const std::string shown = letter == "\x1b" ? "\\x1b" : letter;
    for (std::size_t offset = 0; offset < 5; ++offset) {
      const std::string begin(offset, 'a');
      const std::string text = Message().text((begin + repeated(letter, 600)).c_str()).c_str();
      const std::size_t letters = (kWhole - offset) / shown.size();
      EXPECT_EQ(text, begin + repeated(shown, letters) + "...");
    }
  }
}

TEST(Message, of_what_is_no_utf_8_keeps_each_byte) {
  for (const char* bytes : {"\xc3(", "\xe2\x82(", "\xf0\x9f\x98(", "\xe2(", "\xff\xff"})
    EXPECT_EQ(Message().text(bytes).c_str(), std::string(bytes));
  EXPECT_EQ(Message().text("\xc2\x9bm").c_str(), std::string("\xc2\\x9bm"));
}

TEST(Message, leaves_room_behind_a_value) {
  const std::string longest(Message::kLongestValue, 'v');
  EXPECT_EQ(Message().value(longest.c_str()).text("; do this").c_str(), longest + "; do this");
  EXPECT_EQ(Message().value((longest + "v").c_str()).text("; do this").c_str(),
            longest + "...; do this");
  EXPECT_EQ(Message().value(repeated("\xe2\x82\xac", 100).c_str()).text("!").c_str(),
            repeated("\xe2\x82\xac", 33) + "...!");
}

// Wherever the buffer ends: in a value, in its ellipsis, in what comes behind.
TEST(Message, is_never_longer_than_its_buffer) {
  const std::string value(1000, 'v');
  for (std::size_t before = 380; before <= kWhole + 5; ++before) {
    const std::string begin(before, 'a');
    Message message;
    message.text(begin.c_str()).value(value.c_str()).value(value.c_str()).number(UINT64_MAX);
    const std::string text = message.c_str();
    EXPECT_EQ(text.size(), message.length()) << before;
    EXPECT_LE(text.size(), kWhole + 3) << before;
    EXPECT_TRUE(ends_with(text, "...")) << text;
    EXPECT_FALSE(ends_with(text, "....")) << text;
  }
}

TEST(ControlCharacter, is_none_within_a_letter_of_utf_8) {
  using rdmalloc::os::is_control_character;
  for (unsigned c = 0; c < 256; ++c) {
    auto byte = static_cast<unsigned char>(c);
    const bool is_c0 = c < 0x20 || c == 0x7f, is_c1 = c >= 0x80 && c < 0xa0;
    EXPECT_EQ(is_control_character(0, byte), is_c0 || is_c1) << c;
    EXPECT_EQ(is_control_character('a', byte), is_c0 || is_c1) << c;
    EXPECT_EQ(is_control_character(0xc2, byte), is_c0 || is_c1) << c;
    EXPECT_EQ(is_control_character(0xe2, byte), is_c0) << c;
  }
}

}  // namespace
