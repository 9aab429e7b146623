#include "alloc/core/init.h"

#include <dlfcn.h>
#include <link.h>

#include "alloc/cache/thread_cache.h"
#include "alloc/core/options.h"
#include "alloc/core/standard_error.h"
#include "alloc/os/at_start.h"
#include "alloc/os/fault.h"
#include "alloc/os/os.h"
#include "alloc/pages/arena.h"
#include "alloc/process/exit.h"
#include "alloc/process/fork.h"
#include "alloc/purge/purge.h"

// The linker makes one of the file that this is linked into; a program that is linked statically
// has neither.
#pragma weak _DYNAMIC
#pragma weak _r_debug

// What a program takes of librdmalloc.a takes malloc() with it: the linker asks the archive for
// none where link-time optimisation holds the program's calls for builtins, or where only libc
// allocates (strdup). The linker leaves the section out ("e").
asm(".pushsection .rdmalloc.takes,\"e\",@progbits\n.quad rdmalloc_malloc\n.popsection");

namespace rdmalloc::detail {

RDMALLOC_AT_START constinit std::atomic<bool> initialised{false};

namespace {
// The thread that initialises, by the kernel's id; 0: none.
RDMALLOC_AT_START constinit std::atomic<std::uint32_t> initialiser{0};
// Steps done so far, so that a second try after a failure continues where the first one stopped.
RDMALLOC_AT_START constinit std::atomic<bool> options_are_read{false};
constinit bool arena_is_reserved = false;

// A destructor of the library, so after the program's atexit handlers; here, so that a program of
// static libraries has it as soon as it allocates.
__attribute__((destructor)) void at_exit() {
  statistics_at_exit();
}

bool is_linked_to_stay() {
  for (const ElfW(Dyn)* entry = _DYNAMIC; entry->d_tag != DT_NULL; ++entry)
    if (entry->d_tag == DT_FLAGS_1) return (entry->d_un.d_val & DF_1_NODELETE) != 0;
  return false;
}

// A plugin that librdmalloc.a or librdmalloc_prefixed.a is linked into stays when it is closed, as
// librdmalloc.so does: the ends of threads, the purge thread and a program's end come here.
// Constructors run under the loader's lock, so the list stands still and dlopen() waits for no
// thread.
__attribute__((constructor)) void stay_loaded() {
  if (_DYNAMIC == nullptr || &_r_debug == nullptr || is_linked_to_stay()) return;
  const link_map* program = _r_debug.r_map;
  for (const link_map* map = program; map != nullptr; map = map->l_next)
    if (map->l_ld == _DYNAMIC && map != program && !os::should_fail(os::Site::kOpenLibrary))
      dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}
}  // namespace

namespace {

// Of one thread, also after another that is no more: a process may fork while another of its
// threads makes the very first allocation, and the child finds that under way for ever. (Later
// forks are recognised by fork.h, which is set up here.) Every step below may be repeated after
// half of it.
void begin_alone() {
  auto mine = static_cast<std::uint32_t>(os::thread_id());
  for (;;) {
    std::uint32_t seen = 0;
    // Acquire: pairs with the release in end_alone().
    if (initialiser.compare_exchange_strong(seen, mine, std::memory_order_acquire)) return;
    // Its own id is that of one that vanished: a pid namespace gives it anew.
    if (seen == mine || !os::thread_exists(seen))
      initialiser.compare_exchange_strong(seen, 0, std::memory_order_relaxed);
    else
      os::sleep_ns(100000);
  }
}
void end_alone() {
  initialiser.store(0, std::memory_order_release);
}

void read_settings_alone() {
  if (options_are_read.load(std::memory_order_relaxed)) return;
  standard_error_note();
  options_read();
  cache_make_key();  // a failure is no state
  // Release: pairs with the acquire in ensure_settings().
  options_are_read.store(true, std::memory_order_release);
}
bool initialise_alone();

}  // namespace

bool initialise() {
  begin_alone();
  bool is_done = initialised.load(std::memory_order_relaxed) || initialise_alone();
  end_alone();
  return is_done;
}

namespace {

bool initialise_alone() {
  read_settings_alone();
  if (!arena_is_reserved) {
    if (arena_reserve() != 0) return false;
    arena_is_reserved = true;
  }
  if (cache_init() != 0) return false;
  os::clock_learn();
  fork_init(initialiser.load(std::memory_order_relaxed));
  purge_init();
  // Release: pairs with the acquire in is_initialised(). seq_cst: with the look at `held_until_ms`
  // that each round of purging begins with, against purge_hold().
  initialised.store(true, std::memory_order_seq_cst);
  return true;
}

}  // namespace

}  // namespace rdmalloc::detail

void rdmalloc::ensure_settings() {
  if (detail::options_are_read.load(std::memory_order_acquire)) return;
  detail::begin_alone();
  detail::read_settings_alone();
  detail::end_alone();
}
