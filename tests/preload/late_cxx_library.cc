// SPDX-License-Identifier: BSD-3-Clause
//
// For late_cxx.c: operator new without memory, in all its forms.
//
// Seen to fail where only the weak symbols were asked: `throws`, `aligned` and `handler` were ended
// by SIGABRT, `nothrow` never called its handler.
#include <cstddef>
#include <cstring>
#include <new>

namespace {

// More than there are addresses, and not known to the compiler.
volatile std::size_t too_much = std::size_t{1} << 60;
constexpr std::align_val_t kAligned{256};
int handled = 0;

struct GivesUp {};
void give_up_at_the_third() {
  if (++handled == 3) throw GivesUp();
}

template <typename Exception, typename New>
bool throws(New make) {
  try {
    make();
  } catch (const Exception&) {
    return true;
  }
  return false;
}
template <typename New>
bool calls_the_handler(New make) {
  handled = 0;
  return make() && handled == 3;
}

auto plain = [] { return ::operator new(too_much); };
auto aligned = [] { return ::operator new(too_much, kAligned); };
auto nothrow = [] { return ::operator new(too_much, std::nothrow) == nullptr; };
auto aligned_nothrow = [] { return ::operator new(too_much, kAligned, std::nothrow) == nullptr; };

bool is_right(const char* what) {
  if (std::strcmp(what, "throws") == 0) return throws<std::bad_alloc>(plain);
  if (std::strcmp(what, "aligned") == 0) return throws<std::bad_alloc>(aligned);
  if (std::strcmp(what, "handler") == 0) {
    std::set_new_handler(give_up_at_the_third);
    return calls_the_handler([] { return throws<GivesUp>(plain); }) &&
           calls_the_handler([] { return throws<GivesUp>(aligned); });
  }
  if (std::strcmp(what, "nothrow") == 0) {
    if (!nothrow() || !aligned_nothrow()) return false;
    std::set_new_handler(give_up_at_the_third);
    bool is_right = calls_the_handler(nothrow) && calls_the_handler(aligned_nothrow);
    std::set_new_handler(nullptr);
    return is_right;
  }
  return false;
}

}  // namespace

extern "C" int run(const char* what) {
  return is_right(what) ? 0 : 1;
}
