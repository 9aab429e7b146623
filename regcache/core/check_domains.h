// The domains that a heap or a pool is to be made with.
#pragma once

#include <cstddef>

struct rdmalloc_domain;

namespace rdmalloc::regcache {

// 0: there are 1 to 64, each is open, and none is named twice. Otherwise -EINVAL or the error of
// domain_check(), and, but for a state that passes (-EAGAIN), a warning that says which one it is
// and what to do. `who`: the function that was called; NULL: no warning.
int check_domains(const char* who, rdmalloc_domain* const* domains, std::size_t count);

}  // namespace rdmalloc::regcache
