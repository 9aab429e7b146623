#include "alloc/core/report.h"

#include "alloc/core/options.h"
#include "alloc/core/standard_error.h"
#include "alloc/os/control_character.h"
#include "alloc/os/decimal.h"
#include "alloc/os/os.h"

namespace rdmalloc {

namespace {

constexpr const char* kDigits = "0123456789abcdef";

// How many bytes there belong together: a letter of UTF-8, or a byte that begins none.
std::size_t bytes_of_letter(const char* words) {
  auto first = static_cast<unsigned char>(*words);
  std::size_t whole = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  for (std::size_t i = 1; i < whole; ++i) {
    auto c = static_cast<unsigned char>(words[i]);
    auto before = static_cast<unsigned char>(words[i - 1]);
    if (c < 0x80 || c >= 0xc0 || os::is_control_character(before, c)) return 1;
  }
  return whole;
}

}  // namespace

// One is enough where a value ended in one.
void Message::cut() {
  std::size_t there = 0;
  while (there < kEllipsisBytes && there < length_ && buffer_[length_ - 1 - there] == '.') ++there;
  for (; there < kEllipsisBytes; ++there) buffer_[length_++] = '.';
}

// As far as whole letters, and whole \x1b, end before `end`.
void Message::add(const char* words, std::size_t end) {
  if (end + kEllipsisBytes > kMost) end = kMost;
  while (!is_cut_ && *words != 0) {
    auto before = static_cast<unsigned char>(length_ != 0 ? buffer_[length_ - 1] : 0);
    auto c = static_cast<unsigned char>(*words);
    bool is_control = os::is_control_character(before, c);
    const char shown[] = {'\\', 'x', kDigits[c >> 4], kDigits[c & 15]};
    std::size_t taken = is_control ? 1 : bytes_of_letter(words);
    std::size_t count = is_control ? sizeof shown : taken;
    if (length_ + count > end) {
      cut();
      is_cut_ = end == kMost;
      return;
    }
    for (std::size_t i = 0; i < count; ++i) buffer_[length_++] = is_control ? shown[i] : words[i];
    words += taken;
  }
}

Message& Message::text(const char* words) {
  add(words, kMost);
  return *this;
}

Message& Message::value(const char* words) {
  add(words, length_ + kLongestValue);
  return *this;
}

Message& Message::number(std::uint64_t value) {
  return text(os::Decimal(value).c_str());
}

Message& Message::signed_number(std::int64_t value) {
  if (value < 0) text("-");
  return number(value < 0 ? -static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value));
}

Message& Message::address(const void* pointer) {
  auto value = reinterpret_cast<std::uintptr_t>(pointer);
  char words[sizeof "0x" + 16] = "0x";
  int shift = 60;
  while (shift > 0 && (value >> shift) == 0) shift -= 4;
  for (char* next = words + 2; shift >= 0; shift -= 4) *next++ = kDigits[(value >> shift) & 15];
  return text(words);
}

void Message::print() const {
  if (has_standard_error()) print_anyhow();
}

void Message::warn() const {
  if (!options().quiet) print();
}

void Message::print_anyhow() const {
  // One write, so that lines of several ranks do not mix.
  char line[sizeof buffer_ + 16];
  std::size_t used = 0;
  for (const char* c = "rdmalloc: "; *c != 0; ++c) line[used++] = *c;
  for (std::size_t i = 0; i < length_; ++i) line[used++] = buffer_[i];
  line[used++] = '\n';
  os::write_all(2, line, used);
}

void report_fatal(const char* what, const char* detail) {
  Message().text(what).text(": ").text(detail).print_anyhow();
  os::abort_process();
}

void report_fatal_address(const char* what, const void* address) {
  Message().text(what).text(": ").address(address).print_anyhow();
  os::abort_process();
}

void report_warning(const char* what, const char* detail) {
  Message().text("warning: ").text(what).text(": ").text(detail).warn();
}

}  // namespace rdmalloc
