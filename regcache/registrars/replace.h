// For registrars over an object of the user's, which the user may replace round a checkpoint.
#pragma once

#include <errno.h>
#include <rdmalloc/regcache.h>

namespace rdmalloc::registrars {

// The context of an open domain whose registrar has this `register_` and that has no registration:
// it may get another object to register with. 0; -EINVAL: no such domain; -EBUSY.
inline int replaceable(rdmalloc_domain* domain, decltype(rdmalloc_registrar_ops::register_) mine,
                       void** context) {
  rdmalloc_registrar_ops ops = {};
  ops.register_ = mine;
  if (rdmalloc_domain_context(domain, &ops, context) != 0) return -EINVAL;
  rdmalloc_domain_counters now = {};
  now.size = sizeof now;
  return rdmalloc_domain_stats(domain, &now) == 0 && now.live_count == 0 ? 0 : -EBUSY;
}

}  // namespace rdmalloc::registrars
