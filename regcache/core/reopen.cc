// Domains at a resume that refuse to be opened again.
#include "alloc/for_regcache.h"
#include "regcache/core/domain.h"
#include "regcache/core/gate.h"
#include "regcache/core/rooms.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {

bool is_to_be_reopened(const Domain& domain) {
  // Acquire: pairs with the release of the thread that suspends or loses it.
  Phase phase = domain.phase.load(std::memory_order_acquire);
  return (phase == Phase::kIsChanging || phase == Phase::kIsQuiesced) &&
         !domain.is_lost.load(std::memory_order_acquire);
}

void lose_at_resume(Domain& domain, int error) {
  {
    WholeGuard guard(domain);
    // After another error there is a device, which may reach what it was asked to deregister.
    if (error == -ENODEV) domain.is_lost.store(true, std::memory_order_release);
    // What is registered in it ends in reopen_domain(). Release: pairs with the acquire of
    // domain_check().
    domain.phase.store(Phase::kIsLost, std::memory_order_release);
  }
  // Statistics: relaxed, they order nothing.
  freezer_here().lost_domains.fetch_add(1, std::memory_order_relaxed);
  Message()
      .text("warning: rdmalloc_resume: ")
      .value(domain.ops.name)
      .text(" could not be opened again (error ")
      .signed_number(error)
      .text("): calls for its domain fail from now on (-ENODEV); its memory stays usable")
      .warn();
}

}  // namespace rdmalloc::regcache
