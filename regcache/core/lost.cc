// A domain whose device is gone: its calls fail, and it delays no purge and no other domain.
#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/drop.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

struct Loss {
  Registration* drops = nullptr;
  std::uint64_t dropped = 0;
  std::uint64_t held = 0;
};

// Closes every registration, held or not. Under the lock.
Loss close_whatever_is_open(Domain& domain) {
  // What purges and invalidations have left for a thread of the user's is closed already.
  Loss loss{take_deferred(domain), 0, 0};
  for (Registration* reg = loss.drops; reg != nullptr; reg = reg->next()) ++loss.dropped;
  auto close = [&](Registration* reg) {
    if (reg->is_open() && close_held_too(domain, reg)) {
      push(&loss.drops, reg);
      ++loss.dropped;
    } else if (reg->refs() != 0) {
      ++loss.held;
    }
    return true;
  };
  visit_all(domain, close);
  return loss;
}

void warn_lost(const Domain& domain, const Loss& loss) {
  Message()
      .text("warning: the device of ")
      .value(domain.ops.name)
      .text(" is gone: calls for its domain fail from now on (-ENODEV); ")
      .number(loss.dropped)
      .text(" registrations end now, ")
      .number(loss.held)
      .text(" at their last put")
      .warn();
}

}  // namespace

bool lose_domain(Domain& domain) {
  Loss loss;
  {
    WholeGuard guard(domain);
    // Release: a thread that sees it sees the device's loss. A close that is under way delays no
    // purge any more either.
    bool was_lost = domain.is_lost.exchange(true, std::memory_order_release);
    if (was_lost) return false;
    Phase phase = domain.phase.load(std::memory_order_relaxed);
    // In a checkpoint: the way back ends what is registered, and says so.
    if (phase == Phase::kIsChanging || phase == Phase::kIsQuiesced) return true;
    // Refused at a resume, and everything closed there: now its device is gone too.
    if (phase != Phase::kIsOpen) return phase == Phase::kIsLost;
    // Release: pairs with the acquire of domain_check().
    domain.phase.store(Phase::kIsLost, std::memory_order_release);
    loss = close_whatever_is_open(domain);
  }
  warn_lost(domain, loss);
  drop_list(domain, loss.drops, Reason::kAsked);
  return true;
}

}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_domain_lost(rdmalloc_domain* handle) {
  Domain* domain = domain_of(handle);
  if (rdmalloc::is_in_page_event()) return -EDEADLK;
  int error = domain_check(domain);
  // -EAGAIN: in a checkpoint. -ENODEV: lost, or refused at a resume.
  if (error != 0 && error != -EAGAIN && error != -ENODEV) return error;
  return lose_domain(*domain) ? 0 : -EALREADY;
}
