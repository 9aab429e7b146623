// A registrar that only keeps books, strictly: what is registered now, what a deregistration may
// undo, and the generation of each page at registration, so that a use of a key can be told from a
// use of a stale one without a device.
#pragma once

#include <rdmalloc/regcache.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "tests/unit/regcache/fake_allocator.h"

class StubFabric {
 public:
  struct Entry {
    char* base;
    std::size_t length;
    std::uint32_t access;
    unsigned first_generation, last_generation;  // of the first and the last page, if owned
  };

  explicit StubFabric(std::uint32_t flags = RDMALLOC_REGISTRAR_ANY_THREAD |
                                            RDMALLOC_REGISTRAR_SYNC_DEREG |
                                            RDMALLOC_REGISTRAR_EXACT_ACCESS) {
    ops.size = sizeof ops;
    ops.name = "stub";
    ops.flags = flags;
    ops.register_ = [](void* context, void* addr, size_t length, uint32_t access,
                       rdmalloc_key* key) {
      return static_cast<StubFabric*>(context)->enter(addr, length, access, key);
    };
    ops.deregister = [](void* context, void* addr, size_t length, const rdmalloc_key* key) {
      return static_cast<StubFabric*>(context)->leave(addr, length, key);
    };
    ops.close = [](void* context) { ++static_cast<StubFabric*>(context)->closes; };
  }

  rdmalloc_registrar_ops ops = {};
  std::atomic<int> closes{0};
  std::atomic<std::uint64_t> calls{0};   // of register_, failed ones too
  std::atomic<std::uint64_t> leaves{0};  // successful deregistrations
  std::atomic<int> errors{0};            // deregistrations of what is not registered
  // Runs in register_ and deregister, before they do anything; an error from it is returned.
  std::function<int(void*addr, std::size_t length)> before_enter, before_leave;
  // -ENOMEM when more bytes would be registered.
  std::size_t capacity_bytes = SIZE_MAX;

  std::size_t live() const {
    std::lock_guard<std::mutex> guard(mutex_);
    return entries_.size();
  }
  std::size_t bytes() const {
    std::lock_guard<std::mutex> guard(mutex_);
    return bytes_;
  }
  std::vector<Entry> entries() const {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Entry> all;
    for (auto& [key, entry] : entries_) all.push_back(entry);
    return all;
  }
  bool touches(void* base, std::size_t length) const {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto& [key, entry] : entries_)
      if (entry.base < static_cast<char*>(base) + length &&
          entry.base + entry.length > static_cast<char*>(base))
        return true;
    return false;
  }
  // The device goes, with all that is registered.
  void forget_all() {
    std::lock_guard<std::mutex> guard(mutex_);
    entries_.clear();
    bytes_ = 0;
  }
  // What a device would find at `addr` by this key: the pages that are there now?
  enum class Use { kRight, kStale, kNoSuchKey, kOutOfRange };
  Use use(const rdmalloc_key& key, const void* addr, std::size_t length) const {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = entries_.find(key.lkey);
    if (found == entries_.end()) return Use::kNoSuchKey;
    const Entry& entry = found->second;
    const char* begin = static_cast<const char*>(addr);
    if (begin < entry.base || begin + length > entry.base + entry.length) return Use::kOutOfRange;
    return generations(entry.base, entry.length) ==
                   std::make_pair(entry.first_generation, entry.last_generation)
               ? Use::kRight
               : Use::kStale;
  }

 private:
  static std::pair<unsigned, unsigned> generations(const char* base, std::size_t length) {
    if (!rdmalloc_owns(base)) return {0, 0};
    return {fake::page_generation(base), fake::page_generation(base + length - 1)};
  }
  int enter(void* addr, std::size_t length, std::uint32_t access, rdmalloc_key* key) {
    ++calls;
    if (before_enter)
      if (int error = before_enter(addr, length)) return error;
    std::lock_guard<std::mutex> guard(mutex_);
    if (length > capacity_bytes - bytes_) return -ENOMEM;
    auto [first, last] = generations(static_cast<char*>(addr), length);
    key->lkey = ++next_key_;
    key->rkey = (access & RDMALLOC_ACCESS_REMOTE) != 0 ? next_key_ + 1000000000 : 0;
    entries_[key->lkey] = {static_cast<char*>(addr), length, access, first, last};
    bytes_ += length;
    return 0;
  }
  int leave(void* addr, std::size_t length, const rdmalloc_key* key) {
    if (before_leave)
      if (int error = before_leave(addr, length)) return error;
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = entries_.find(key->lkey);
    if (found == entries_.end() || found->second.base != addr || found->second.length != length) {
      ++errors;
      return -EINVAL;
    }
    bytes_ -= length;
    entries_.erase(found);
    ++leaves;
    return 0;
  }

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Entry> entries_;
  std::size_t bytes_ = 0;
  std::uint64_t next_key_ = 0;
};

// A call of the registrar that lasts until the test lets it go.
class RegistrarGate {
 public:
  int pass() {
    is_inside_ = true;
    while (!is_open_) std::this_thread::yield();
    return 0;
  }
  void wait_until_inside() const {
    while (!is_inside_) std::this_thread::yield();
  }
  void open() { is_open_ = true; }

 private:
  std::atomic<bool> is_inside_{false}, is_open_{false};
};

// A domain over a stub, closed at the end of its scope. Every purge checks that nothing over the
// range is registered with it any more (I3).
class StubDomain {
 public:
  explicit StubDomain(StubFabric& stub, rdmalloc_domain_attr attr = {}) : fabric(stub) {
    attr.size = sizeof attr;
    open_error = rdmalloc_domain_open(&fabric.ops, &fabric, &attr, &handle);
  }
  ~StubDomain() {
    if (handle != nullptr) rdmalloc_domain_close(handle);
  }
  StubDomain(const StubDomain&) = delete;
  StubDomain& operator=(const StubDomain&) = delete;

  int close() {
    int error = rdmalloc_domain_close(handle);
    if (error == 0) handle = nullptr;
    return error;
  }
  struct rdmalloc_domain_counters counters() const {
    struct rdmalloc_domain_counters now = {};
    now.size = sizeof now;
    rdmalloc_domain_stats(handle, &now);
    return now;
  }
  rdmalloc_reg* get(const void* addr, std::size_t length,
                    std::uint32_t access = RDMALLOC_ACCESS_LOCAL) {
    rdmalloc_reg* reg = nullptr;
    int error = rdmalloc_reg_get(handle, addr, length, access, &reg);
    last_error = error;
    return error == 0 ? reg : nullptr;
  }
  // Gets and puts at once; the registration's generation, or 0 with last_error set.
  std::uint64_t touch(const void* addr, std::size_t length,
                      std::uint32_t access = RDMALLOC_ACCESS_LOCAL) {
    rdmalloc_reg* reg = get(addr, length, access);
    if (reg == nullptr) return 0;
    rdmalloc_key key;
    rdmalloc_reg_key_of(reg, &key);
    rdmalloc_reg_put(reg);
    return key.generation;
  }

  StubFabric& fabric;
  rdmalloc_domain* handle = nullptr;
  int open_error = 0;
  std::atomic<int> last_error{0};  // of the latest get, on any thread
};
