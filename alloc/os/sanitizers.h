// Which sanitizers this is built with, by either compiler.
#pragma once

namespace rdmalloc::os {

#if !defined(__has_feature)
#define RDMALLOC_HAS_FEATURE(name) 0
#else
#define RDMALLOC_HAS_FEATURE(name) __has_feature(name)
#endif
#if defined(__SANITIZE_THREAD__) || RDMALLOC_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || RDMALLOC_HAS_FEATURE(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#undef RDMALLOC_HAS_FEATURE

}  // namespace rdmalloc::os
