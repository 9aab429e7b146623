#include "alloc/pages/give_back.h"

#include <errno.h>

#include "alloc/core/fork.h"
#include "alloc/core/lock.h"
#include "alloc/core/options.h"
#include "alloc/os/os.h"
#include "alloc/pages/purge_turn.h"

namespace rdmalloc {
namespace {

using Decommit = int (*)(std::uintptr_t base, std::size_t length);

// Whether `decommit` does what it says. A seccomp filter that answers 0 for the kernel, and old
// emulators, do not take the pages away, and what then lies there is no zeroes for calloc(). Tried
// on a page of ours, once in each turn: a filter is one thread's, and may come at any time.
class Probe {
 public:
  bool takes_pages_away(Decommit decommit) {
    if (turn_ == purge_turn.number() && decommit_ == decommit) return takes_;
    std::uintptr_t page = page_;
    if (page == 0 && os::map_metadata(os::page_bytes(), &page) != 0) return true;
    auto* word = reinterpret_cast<volatile std::uint64_t*>(page);
    *word = 1;
    // A refusal is no lie.
    takes_ = decommit(page, os::page_bytes()) != 0 || *word == 0;
    // Forgotten before it is unmapped: a child forked in between would write to what it has not.
    page_ = 0;
    order_for_fork();
    if (os::unreserve(page, os::page_bytes()) != 0) page_ = page;
    turn_ = purge_turn.number();
    decommit_ = decommit;
    return takes_;
  }

 private:
  std::uint64_t turn_ = 0;
  Decommit decommit_ = nullptr;
  bool takes_ = true;
  std::uintptr_t page_ = 0;  // what the kernel did not take back, for the next try
};
constinit Probe probe;  // with the turn

}  // namespace

int notify_and_decommit(std::uintptr_t base, std::size_t length) {
  bool is_raw = events_notify_decommit(base, length) || options().notify == NotifyMode::kOff;
  // libc's runs what other libraries have hooked to it.
  assert_no_lock_held("decommit");
  Decommit decommit = is_raw ? os::decommit : os::decommit_hooked;
  int error = decommit(base, length);
  if (error == 0 && !probe.takes_pages_away(decommit)) error = -ENOTSUP;
  fork_check();  // as after a page event
  return error;
}

}  // namespace rdmalloc
