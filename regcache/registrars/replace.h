// For registrars over an object of the user's, which the user may replace round a checkpoint.
#pragma once

#include <errno.h>
#include <rdmalloc/regcache.h>

namespace rdmalloc::registrars {

// The context of an open domain whose registrar has this `register_`: it may get another object to
// register with, for it has no registration but those in quarantine, which no deregister is called
// for. They stay there (no RDMALLOC_RESUMED_ANEW): what ends them is the close of the object
// before, which is the user's and may have failed because of them, as fi_close() of a fid_domain
// does with -FI_EBUSY; the old keys then reach their pages still. 0; -EINVAL: no such domain;
// -EBUSY; -ENODEV: it is lost, and another object would bring it no call back.
inline int replaceable(rdmalloc_domain* domain, decltype(rdmalloc_registrar_ops::register_) mine,
                       void** context) {
  rdmalloc_registrar_ops ops = {};
  ops.register_ = mine;
  if (rdmalloc_domain_context(domain, &ops, context) != 0) return -EINVAL;
  rdmalloc_domain_counters now = {};
  now.size = sizeof now;
  if (rdmalloc_domain_stats(domain, &now) != 0) return -EBUSY;
  if (now.is_lost != 0) return -ENODEV;
  // lost_drops: of a domain that is not lost, those whose quarantine has ended.
  return now.live_count == 0 || now.live_count + now.lost_drops == now.quarantined ? 0 : -EBUSY;
}

}  // namespace rdmalloc::registrars
