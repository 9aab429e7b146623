// What a program runs one of, by name: its lists of patterns or programs.
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>
#include <string_view>

namespace rdmalloc::bench {

template <typename Named, std::size_t kLists>
void print_names(const std::span<const Named> (&lists)[kLists]) {
  for (const std::span<const Named>& list : lists)
    for (const Named& one : list)
      std::printf("{\"name\":\"%s\",\"what\":\"%s\"}\n", one.name, one.what);
}

// nullptr: there is none, as standard error then says.
template <typename Named, std::size_t kLists>
const Named* find(const std::span<const Named> (&lists)[kLists], const char* program,
                  std::string_view name) {
  for (const std::span<const Named>& list : lists)
    for (const Named& one : list)
      if (name == one.name) return &one;
  std::fprintf(stderr, "%s: there is no '%.*s'; --list names what there is\n", program,
               static_cast<int>(name.size()), name.data());
  return nullptr;
}

}  // namespace rdmalloc::bench
