#include "alloc/cache/bin_table.h"

#include <cstring>

#include "alloc/os/topology.h"

namespace rdmalloc {

namespace detail {
constinit BinOffsets bin_offsets = {};
}  // namespace detail

namespace {

[[gnu::noinline]] void set_steps(unsigned size_class, std::uint8_t offset) {
  std::uint8_t* end = &detail::last_step_of(size_class) + 1;
  std::uint8_t* step = &detail::last_step_of(size_class - 1) + 1;
  if (!os::kThreadSanitizer) {
    // Bytes, which no reader sees half written; one by one they took 30,000 instructions.
    std::memset(step, offset, static_cast<std::size_t>(end - step));
    return;
  }
  for (; step != end; ++step)
    std::atomic_ref<std::uint8_t>(*step).store(offset, std::memory_order_relaxed);
}
std::uint8_t offset_of(unsigned size_class) {
  return static_cast<std::uint8_t>(size_class * sizeof(Bin) / 8);
}
void enter_steps(unsigned size_class) {
  set_steps(size_class, offset_of(size_class));
}

}  // namespace

void bin_table_init() {
  for (unsigned c = 1; c <= kSmallClasses; ++c) enter_steps(c);
}

[[gnu::cold]] void bin_table_enter_small(bool are_coarse) {
  for (unsigned c = 1; c <= kSmallClasses; ++c) {
    unsigned coarse = coarse_class_for(c);
    if (coarse != c) set_steps(c, offset_of(are_coarse ? coarse : c));
  }
}

[[gnu::cold]] void bin_table_enter_span(unsigned size_class) {
  enter_steps(size_class);
  // seq_cst, against bin_table_note_nodes(): this thread sees that there are several nodes, or that
  // one sees what is to go.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (os::node_count() != 1) bin_table_note_nodes();
}

void bin_table_note_nodes() {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see bin_table_enter_span()
  for (unsigned c = kFirstSpanClass; c < kClasses; ++c)
    if (bin_table_has(c)) set_steps(c, 0);
}

}  // namespace rdmalloc
