// Libraries that were to look for symbols in themselves before all others (RTLD_DEEPBIND). Counted
// where dlopen() leaves that out (regcache/interpose/dlopen.cc), printed with the statistics.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmalloc {

inline constinit std::atomic<std::uint64_t> deep_binds{0};  // relaxed: a counter

}  // namespace rdmalloc
