// A domain whose registrar registers at once: what is measured is the cache's side alone.
#pragma once

#include <rdmalloc/regcache.h>

#include <cstdint>

namespace rdmalloc::bench {

class StubDomain {
 public:
  // `largest`: bytes of one registration at most; `max_count`: registrations at most. 0: no limit.
  explicit StubDomain(std::size_t largest = 0, std::uint64_t max_count = 0) {
    rdmalloc_registrar_ops ops{};
    ops.size = sizeof(ops);
    ops.name = "stub";
    ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
                RDMALLOC_REGISTRAR_EXACT_ACCESS;
    ops.register_ = register_nothing;
    ops.deregister = deregister_nothing;
    ops.largest = largest;
    rdmalloc_domain_attr attr{};
    attr.size = sizeof(attr);
    attr.max_count = max_count;
    error_ = rdmalloc_domain_open(&ops, nullptr, &attr, &domain_);
  }
  ~StubDomain() {
    if (domain_ != nullptr) rdmalloc_domain_close(domain_);
  }
  StubDomain(const StubDomain&) = delete;
  StubDomain& operator=(const StubDomain&) = delete;

  int error() const { return error_; }  // of opening it
  rdmalloc_domain* get() const { return domain_; }
  rdmalloc_domain_counters counters() const {
    rdmalloc_domain_counters counters{};
    counters.size = sizeof(counters);
    if (domain_ != nullptr) rdmalloc_domain_stats(domain_, &counters);
    return counters;
  }

 private:
  static int register_nothing(void* context, void* addr, size_t length, uint32_t access,
                              rdmalloc_key* key) {
    (void)context, (void)length, (void)access;
    // Of the address: a counter would be a line that all threads write.
    key->lkey = reinterpret_cast<std::uintptr_t>(addr);
    key->rkey = 0;
    key->handle = nullptr;
    return 0;
  }
  static int deregister_nothing(void* context, void* addr, size_t length, const rdmalloc_key* key) {
    (void)context, (void)addr, (void)length, (void)key;
    return 0;
  }

  rdmalloc_domain* domain_ = nullptr;
  int error_ = 0;
};

}  // namespace rdmalloc::bench
