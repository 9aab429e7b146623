// Seen to fail: with bytes counted instead of characters in the table's widths; with "K" read as
// 1000; with a unit that shifts bits out; with a kind that has not run taken for the average
// although its time is expected; with what is expected of a slow machine not scaled by what others
// took.
#include <gtest/gtest.h>

#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

TEST(Text, sizes_are_read_as_people_write_them) {
  EXPECT_EQ(parse_bytes("4K"), 4096u);
  EXPECT_EQ(parse_bytes("4KiB"), 4096u);
  EXPECT_EQ(parse_bytes("258048"), 258048u);
  EXPECT_EQ(parse_bytes("258048B"), 258048u);
  EXPECT_EQ(parse_bytes("16m"), 16u << 20);
  EXPECT_EQ(parse_bytes("1G"), 1u << 30);
}

TEST(Text, what_is_no_size_reads_as_zero) {
  for (const char* text : {"", "K", "-4K", "4X", "4 K", "1e6", "99999999999999999999",
                           "17179869184G", "17179869185G", "999999999999999M"})
    EXPECT_EQ(parse_bytes(text), 0u) << text;
}

TEST(Text, sizes_are_written_as_people_write_them) {
  EXPECT_EQ(bytes_text(4096), "4 KiB");
  EXPECT_EQ(bytes_text(258048), "258048 B");
  EXPECT_EQ(bytes_text(64 << 20), "64 MiB");
  EXPECT_EQ(bytes_text(17), "17 B");
}

TEST(Text, times_are_written_with_three_digits) {
  EXPECT_EQ(nanoseconds_text(12.34), "12.34 ns");
  EXPECT_EQ(nanoseconds_text(123.4), "123 ns");
  EXPECT_EQ(nanoseconds_text(12'345), "12.3 us");
}

TEST(Text, tables_align_by_characters_not_bytes) {
  Table table({"", "a"});
  table.add({"x", "1±2%"});
  table.add({"yy", "10.0"});
  EXPECT_EQ(table.text(), "         a\n  x   1±2%\n  yy  10.0\n");
}

TEST(Text, lists_are_split_at_commas) {
  EXPECT_EQ(split_list("a,b"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(split_list("").empty());
}

TEST(Text, time_left_is_that_of_the_kinds_that_are_left) {
  const std::vector<std::string> left = {"long", "short", "short"};
  EXPECT_EQ(estimate_seconds(left, {}, {}), -1);
  EXPECT_DOUBLE_EQ(estimate_seconds(left, {{"long", {6, 2}}, {"short", {1, 2}}}, {}), 4);
  // Before any short one has run: as long as the others, unless it is known to be shorter.
  EXPECT_DOUBLE_EQ(estimate_seconds(left, {{"long", {6, 2}}}, {}), 9);
  EXPECT_DOUBLE_EQ(estimate_seconds(left, {{"long", {6, 2}}}, {{"long", 1}, {"short", 0.5}}), 6);
}

}  // namespace
}  // namespace rdmalloc::bench
