// SPDX-License-Identifier: BSD-3-Clause
//
// Which beginnings of a function are a patch's jump. Seen to fail without the form with rax, which
// UCX writes in one run of fourteen beside librdmalloc.so.
#include "regcache/notifiers/patched_text.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace {

using rdmalloc::begins_with_jump_aarch64;
using rdmalloc::begins_with_jump_x86_64;

using Text = std::array<unsigned char, 16>;
using Words = std::array<std::uint32_t, 5>;

bool x86_64(const Text& text) {
  return begins_with_jump_x86_64(text.data());
}
Text behind_endbr64(const Text& text) {
  Text moved = {0xf3, 0x0f, 0x1e, 0xfa};
  std::memcpy(moved.data() + 4, text.data(), text.size() - 4);
  return moved;
}

TEST(PatchedText, jumps_of_every_patcher_are_known) {
  for (const Text& jump : {
           Text{0xe9, 0xcb, 0x20, 0xda, 0x01},                                     // near
           Text{0xff, 0x25, 0x00, 0x00, 0x00, 0x00},                               // through memory
           Text{0x49, 0xbb, 1, 2, 3, 4, 5, 6, 0, 0, 0x41, 0xff, 0xe3},             // through r11
           Text{0x48, 0xb8, 0xd0, 0x3b, 0xeb, 0xa5, 0xcc, 0x7f, 0, 0, 0xff, 0xe0}  // through rax
       }) {
    EXPECT_TRUE(x86_64(jump)) << int{jump[0]};
    EXPECT_TRUE(x86_64(behind_endbr64(jump))) << int{jump[0]};
  }
  EXPECT_TRUE(begins_with_jump_aarch64(
      Words{0xd2e0000f, 0xf2cfff8f, 0xf2b4a00f, 0xf282000f, 0xd61f01e0}.data()));  // x15
  EXPECT_TRUE(begins_with_jump_aarch64(Words{0x14000400, 0xd4000001}.data()));     // near
}

// Seen to fail with the near displacement counted from the jump's first byte, with the address
// behind the pointer in memory, and with all parts of a move shifted by 16.
TEST(PatchedText, where_a_jump_goes_is_known) {
  using rdmalloc::jump_target_x86_64, rdmalloc::jump_target_aarch64;
  auto address_of = [](const auto& text) { return reinterpret_cast<std::uint64_t>(text.data()); };
  Text near = {0xe9, 0xf0, 0xff, 0xff, 0xff};  // 16 back from its end
  EXPECT_EQ(jump_target_x86_64(near.data()), address_of(near) + 5 - 16);
  Text moved = behind_endbr64(near);
  EXPECT_EQ(jump_target_x86_64(moved.data()), address_of(moved) + 9 - 16);
  Text memory = {0xff, 0x25, 2, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0};
  EXPECT_EQ(jump_target_x86_64(memory.data()), 0x060504030201u);
  Text by_rax = {0x48, 0xb8, 0xd0, 0x3b, 0xeb, 0xa5, 0xcc, 0x7f, 0, 0, 0xff, 0xe0};
  EXPECT_EQ(jump_target_x86_64(by_rax.data()), 0x7fcca5eb3bd0u);
  EXPECT_EQ(
      jump_target_aarch64(Words{0xd2e0000f, 0xf2cfff8f, 0xf2b4a00f, 0xf282000f, 0xd61f01e0}.data()),
      0x00007ffca5001000u);
  Words back = {0xd503201f, 0x17ffffff};  // nop; b to the nop
  EXPECT_EQ(jump_target_aarch64(back.data()), address_of(back));
}

TEST(PatchedText, a_function_that_enters_the_kernel_is_none) {
  Text enters = {0xb8, 0x1c, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x73, 0x01};
  EXPECT_FALSE(x86_64(enters));
  EXPECT_FALSE(x86_64(behind_endbr64(enters)));
  // mov x8, #233; svc 0; cmn; b.cs; ret. Behind the svc anything may stand.
  EXPECT_FALSE(begins_with_jump_aarch64(
      Words{0xd2801d28, 0xd4000001, 0xb13ffc1f, 0x54000042, 0xd65f03c0}.data()));
  EXPECT_FALSE(begins_with_jump_aarch64(
      Words{0xd2801d28, 0xd4000001, 0xd61f01e0, 0x14000400, 0xd65f03c0}.data()));
}

TEST(PatchedText, libcs_own_madvise_is_not_patched) {
  auto* text = static_cast<const unsigned char*>(dlsym(RTLD_DEFAULT, "madvise"));
  ASSERT_NE(text, nullptr);
  EXPECT_FALSE(rdmalloc::begins_with_jump(text));
}

}  // namespace
