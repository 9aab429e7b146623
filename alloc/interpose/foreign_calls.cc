#include "alloc/interpose/foreign_calls.h"

#if RDMALLOC_CHECKED

#include "alloc/core/report.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/purge_turn.h"

namespace rdmalloc {

void check_foreign_call(const char* call, const void* address, std::size_t length) {
  std::size_t extent = arena.extent();  // before base: see arena.h. 0: nothing is ours yet
  auto begin = reinterpret_cast<std::uintptr_t>(address);
  std::size_t room = UINTPTR_MAX - begin;
  std::uintptr_t end = begin + (length < room ? length : room);
  if (extent == 0 || length == 0 || begin >= arena.base + extent || end <= arena.base) return;
  if (purge_turn_is_mine()) return;
  Message what;
  what.text(call).text(" by others over memory of malloc's");
  report_fatal_address(what.c_str(), address);
}

}  // namespace rdmalloc

#endif
