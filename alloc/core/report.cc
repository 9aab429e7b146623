#include "alloc/core/report.h"

#include "alloc/core/options.h"
#include "alloc/core/standard_error.h"
#include "alloc/os/control_character.h"
#include "alloc/os/decimal.h"
#include "alloc/os/os.h"

namespace rdmalloc {

void Message::put(char c) {
  if (length_ + 2 < sizeof buffer_) buffer_[length_++] = c;  // room for '\n' and the zero
}

Message& Message::text(const char* words) {
  for (; *words != 0; ++words) {
    auto c = static_cast<unsigned char>(*words);
    auto before = static_cast<unsigned char>(length_ != 0 ? buffer_[length_ - 1] : 0);
    if (!os::is_control_character(before, c)) {
      put(*words);
      continue;
    }
    constexpr const char* kDigits = "0123456789abcdef";
    for (char shown : {'\\', 'x', kDigits[c >> 4], kDigits[c & 15]}) put(shown);
  }
  return *this;
}

Message& Message::number(std::uint64_t value) {
  return text(os::Decimal(value).c_str());
}

Message& Message::signed_number(std::int64_t value) {
  if (value < 0) put('-');
  return number(value < 0 ? -static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value));
}

Message& Message::address(const void* pointer) {
  text("0x");
  auto value = reinterpret_cast<std::uintptr_t>(pointer);
  int shift = 60;
  while (shift > 0 && (value >> shift) == 0) shift -= 4;
  for (; shift >= 0; shift -= 4) put("0123456789abcdef"[(value >> shift) & 15]);
  return *this;
}

void Message::print() const {
  if (has_standard_error()) print_anyhow();
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
  if (options().quiet) return;
  Message().text("warning: ").text(what).text(": ").text(detail).print();
}

}  // namespace rdmalloc
