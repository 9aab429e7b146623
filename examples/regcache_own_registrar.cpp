// SPDX-License-Identifier: BSD-3-Clause
//
// A registrar of one's own, and the cache in C++: for fabrics that rdmalloc has no registrar for.
// This one only prints; replace the two functions by your fabric's calls.
//
//     c++ -std=c++20 regcache_own_registrar.cpp $(pkg-config --cflags --libs rdmalloc)
#include <cstdio>
#include <memory>
#include <rdmalloc/rdmalloc.hpp>

namespace {

// What the fabric's handle would be.
struct Fabric {
  std::uint64_t next_key = 100;
};

int register_pages(void* context, void* addr, size_t length, uint32_t access, rdmalloc_key* key) {
  auto* fabric = static_cast<Fabric*>(context);
  key->lkey = ++fabric->next_key;
  key->rkey = (access & RDMALLOC_ACCESS_REMOTE) != 0 ? key->lkey : 0;
  std::printf("  register   %p + %zu, access %#x -> key %llu\n", addr, length, access,
              static_cast<unsigned long long>(key->lkey));
  return 0;
}

// Must not return before the fabric can't reach the pages any more: rdmalloc gives them back next.
int deregister_pages(void*, void* addr, size_t length, const rdmalloc_key* key) {
  std::printf("  deregister %p + %zu, key %llu\n", addr, length,
              static_cast<unsigned long long>(key->lkey));
  return 0;
}

rdmalloc_registrar_ops my_registrar() {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "printing";
  // What is declared here is promised: see RDMALLOC_REGISTRAR_*. Without ANY_THREAD the cache calls
  // the registrar only on threads that call the cache.
  ops.flags = RDMALLOC_REGISTRAR_SYNC_DEREG | RDMALLOC_REGISTRAR_EXACT_ACCESS;
  ops.register_ = register_pages;
  ops.deregister = deregister_pages;
  return ops;
}

int complain(const char* what, const std::error_code& error) {
  std::fprintf(stderr, "%s: %s\n", what, error.message().c_str());
  return 1;
}

}  // namespace

int main() {
  Fabric fabric;
  auto opened = rdmalloc::domain::open(my_registrar(), &fabric);
  if (!opened) return complain("domain", opened.error());
  rdmalloc::domain domain = std::move(*opened);

  std::puts("a block, twice: registered once, with its whole span");
  auto block = std::make_unique<char[]>(1 << 20);
  for (int i = 0; i < 2; ++i) {
    auto held = domain.register_memory(block.get(), 4096);
    if (!held) return complain("register_memory", held.error());
  }
  std::puts(
      "its neighbourhood stays private: remote access is exact, and ends with the registration");
  {
    auto remote = domain.register_memory(block.get() + 64, 100, rdmalloc::access::remote_write);
    if (!remote) return complain("register_memory", remote.error());
  }
  std::puts("memory that is not rdmalloc's: registered for each use");
  static char table[4096];
  (void)domain.register_memory(table, sizeof table, rdmalloc::access::local_read);
  std::puts("the end: what is left goes");
  return domain.close() ? 1 : 0;
}
