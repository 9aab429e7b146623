#include "alloc/api/cxx_library.h"

#include <link.h>

#include <atomic>
#include <cstddef>

#include "alloc/core/helper_threads.h"
#include "alloc/core/lock.h"
#include "alloc/core/symbol_tables.h"

// Of the loader, which the library is not linked with.
#pragma weak _r_debug

namespace rdmalloc {
namespace {

struct Search {
  const char* name;
  void* found;
};

bool look(const SymbolTables& tables, Search* search) {
  // Not another library with operators of its own, whose blocks may be of another malloc.
  if (tables.find("_ZSt17__throw_bad_allocv") != nullptr) search->found = tables.find(search->name);
  return search->found != nullptr;
}

}  // namespace

void* find_in_cxx_library(const char* name) {
  assert_no_lock_held("operator new");
  Search search = {name, nullptr};
  if (!loader_may_be_locked.load(std::memory_order_relaxed)) {
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* arg) {
          return look(SymbolTables(*info), static_cast<Search*>(arg)) ? 1 : 0;
        },
        &search);
    return search.found;
  }
  // In a child of fork that lock may be held for ever. An object stands in the list once it is
  // mapped whole.
  const link_map* map = &_r_debug != nullptr ? _r_debug.r_map : nullptr;
  while (map != nullptr && !look(SymbolTables(*map), &search)) map = map->l_next;
  return search.found;
}

}  // namespace rdmalloc
