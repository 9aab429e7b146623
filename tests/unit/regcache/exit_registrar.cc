// A registrar whose library has a destructor, after which it must not be called. The destructor
// gives the threads of rdmalloc time to do so.
#include "tests/unit/regcache/exit_registrar.h"

#include <sys/mman.h>
#include <unistd.h>

namespace {

ExitRegistrar self = {};

int register_range(void*, void*, size_t, uint32_t, rdmalloc_key*) {
  return 0;
}
int deregister_range(void*, void*, size_t, const rdmalloc_key*) {
  bool is_held = ++self.deregistrations == 1 && self.holds_first;
  if (self.is_over) ++self.late;
  while (is_held && !self.is_closing) usleep(1000);
  if (is_held) usleep(100000);
  usleep(self.slow_us);
  if (self.is_over) ++self.late;
  return 0;
}

__attribute__((destructor)) void end() {
  self.is_over = true;
  if (self.unmapped_at_end != nullptr) munmap(self.unmapped_at_end, self.unmapped_bytes);
  for (int i = 0; i < 1000 && self.late == 0; ++i) usleep(1000);
  if (self.late == 0) return;
  static const char kWhat[] = "a registrar was called after its library's destructor\n";
  if (write(STDERR_FILENO, kWhat, sizeof kWhat - 1) < 0) _exit(8);
  _exit(7);
}

}  // namespace

ExitRegistrar* exit_registrar() {
  self.ops.size = sizeof self.ops;
  self.ops.name = "exit";
  self.ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  self.ops.register_ = register_range;
  self.ops.deregister = deregister_range;
  return &self;
}
