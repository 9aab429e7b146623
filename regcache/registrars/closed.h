// For registrars that close what they opened themselves at a quiesce.
#pragma once

#include <errno.h>
#include <rdmalloc/regcache.h>

namespace rdmalloc::registrars {

// Why it is not there now: -EAGAIN until the resume; -ENODEV when none will come, because a resume
// could not open it again or the domain was lost meanwhile.
inline int why_closed(rdmalloc_domain* domain) {
  rdmalloc_domain_counters now = {};
  now.size = sizeof now;
  return rdmalloc_domain_stats(domain, &now) == 0 && now.is_lost != 0 ? -ENODEV : -EAGAIN;
}

}  // namespace rdmalloc::registrars
