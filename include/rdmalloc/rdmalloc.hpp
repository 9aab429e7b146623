// SPDX-License-Identifier: BSD-3-Clause
//
// rdmalloc for C++20: what the C headers offer, with ownership. Nothing here throws; functions that
// can fail return a result, which holds a value or a std::error_code (std::generic_category, the
// errno of the C function). See rdmalloc.h and regcache.h for what each call promises, which
// threads may call it, and what may not be called inside a fabric's callback.
#ifndef RDMALLOC_RDMALLOC_HPP
#define RDMALLOC_RDMALLOC_HPP

#include <rdmalloc/rdmalloc.h>
#include <rdmalloc/regcache.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

namespace rdmalloc {

// A value or an error. Looking at the value of an error is a mistake, as with std::optional.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : value_(std::move(value)) {}
  result(std::error_code error) : error_(error) {}

  explicit operator bool() const { return value_.has_value(); }
  const std::error_code& error() const { return error_; }
  T& operator*() & { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  std::error_code error_;
};

// The error of a C function: 0 is none.
[[nodiscard]] inline std::error_code error_of(int negative_errno) {
  return {-negative_errno, std::generic_category()};
}

using key = rdmalloc_key;

// Rights, to be or-ed together.
enum class access : std::uint32_t {
  local_read = RDMALLOC_ACCESS_LOCAL_READ,
  local_write = RDMALLOC_ACCESS_LOCAL_WRITE,
  local = RDMALLOC_ACCESS_LOCAL,
  remote_read = RDMALLOC_ACCESS_REMOTE_READ,
  remote_write = RDMALLOC_ACCESS_REMOTE_WRITE,
  remote_atomic = RDMALLOC_ACCESS_REMOTE_ATOMIC,
  // Not a right: fail with ENOENT instead of registering.
  look_only = RDMALLOC_NO_REGISTER,
};
constexpr access operator|(access a, access b) {
  return static_cast<access>(static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b));
}

// A counted registration: holds its pages and its keys until it is destroyed or put.
class registration {
 public:
  registration() = default;
  explicit registration(rdmalloc_reg* reg) : reg_(reg) {}
  registration(registration&& other) noexcept : reg_(std::exchange(other.reg_, nullptr)) {}
  registration& operator=(registration&& other) noexcept {
    if (this != &other) {
      put();
      reg_ = std::exchange(other.reg_, nullptr);
    }
    return *this;
  }
  ~registration() { put(); }

  explicit operator bool() const { return reg_ != nullptr; }
  void put() { rdmalloc_reg_put(std::exchange(reg_, nullptr)); }
  // What is registered, which may be more than was asked for.
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(rdmalloc_reg_addr(reg_)), rdmalloc_reg_length(reg_)};
  }
  key keys() const {
    key keys;
    rdmalloc_reg_key_of(reg_, &keys);
    return keys;
  }
  rdmalloc_reg* get() const { return reg_; }

 private:
  rdmalloc_reg* reg_ = nullptr;
};

// A domain; closed at its end. A domain that can't be closed because a registration is still held
// is left open, since its registrar is still needed: close() tells, the destructor can't.
class domain {
 public:
  domain() = default;
  explicit domain(rdmalloc_domain* handle) : handle_(handle) {}
  domain(domain&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  domain& operator=(domain&& other) noexcept {
    if (this != &other) {
      (void)close();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~domain() { (void)close(); }

  // `context` is the registrar's, and must outlive the domain. The ready registrars have functions
  // of their own: domain(handle) takes over what they open.
  static result<domain> open(const rdmalloc_registrar_ops& ops, void* context,
                             rdmalloc_domain_attr attr = {}) {
    attr.size = sizeof attr;
    rdmalloc_domain* handle = nullptr;
    if (int error = rdmalloc_domain_open(&ops, context, &attr, &handle)) return error_of(error);
    return domain(handle);
  }
  std::error_code close() {
    if (handle_ == nullptr) return {};
    int error = rdmalloc_domain_close(handle_);
    if (error == 0) handle_ = nullptr;
    return error_of(error);
  }

  explicit operator bool() const { return handle_ != nullptr; }
  rdmalloc_domain* get() const { return handle_; }

  // The key of a live block, good until the block is freed: a few instructions once registered.
  result<key> key_of(const void* addr, std::size_t length, access rights = access::local) const {
    key found;
    int error = rdmalloc_reg_key(handle_, addr, length, static_cast<std::uint32_t>(rights), &found);
    if (error != 0) return error_of(error);
    return found;
  }
  // A counted registration, of any memory.
  result<registration> register_memory(const void* addr, std::size_t length,
                                       access rights = access::local) const {
    rdmalloc_reg* reg = nullptr;
    int error = rdmalloc_reg_get(handle_, addr, length, static_cast<std::uint32_t>(rights), &reg);
    if (error != 0) return error_of(error);
    return registration(reg);
  }
  template <class T>
  result<registration> register_memory(std::span<T> range, access rights = access::local) const {
    return register_memory(range.data(), range.size_bytes(), rights);
  }
  // Registrations dropped.
  result<std::int64_t> flush() const { return count_of(rdmalloc_domain_flush(handle_)); }
  // Registrations forgotten; without waiting for their users.
  result<std::int64_t> invalidate(const void* addr, std::size_t length) const {
    return count_of(rdmalloc_invalidate(handle_, addr, length, nullptr, nullptr));
  }
  result<rdmalloc_domain_counters> counters() const {
    rdmalloc_domain_counters now = {};
    now.size = sizeof now;
    if (int error = rdmalloc_domain_stats(handle_, &now)) return error_of(error);
    return now;
  }

 private:
  static result<std::int64_t> count_of(std::int64_t value) {
    if (value < 0) return error_of(static_cast<int>(value));
    return value;
  }
  rdmalloc_domain* handle_ = nullptr;
};

// What an observer is told of pages; any may be empty. They run on the purge thread: see
// struct rdmalloc_observer_ops.
struct page_events {
  std::function<void(std::span<std::byte>)> reserve, use, reuse;
  // False refuses the purge.
  std::function<bool(std::span<std::byte>, rdmalloc_purge_reason)> purge;
  std::function<void(std::span<std::byte>, std::error_code)> purged;
};

// Told of page events until its end, which waits for those under way.
class observer {
 public:
  observer() = default;
  observer(observer&& other) noexcept
      : events_(std::move(other.events_)), handle_(std::exchange(other.handle_, nullptr)) {}
  observer& operator=(observer&& other) noexcept {
    if (this != &other) {
      (void)remove();
      events_ = std::move(other.events_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~observer() { (void)remove(); }

  static result<observer> add(page_events events) {
    observer made;
    made.events_.reset(new (std::nothrow) page_events(std::move(events)));
    if (made.events_ == nullptr) return error_of(-ENOMEM);
    rdmalloc_observer_ops ops = {};
    ops.size = sizeof ops;
    ops.reserve = tell<&page_events::reserve>;
    ops.use = tell<&page_events::use>;
    ops.reuse = tell<&page_events::reuse>;
    ops.purge = [](void* arg, void* base, std::size_t length, rdmalloc_purge_reason reason) {
      auto& told = *static_cast<page_events*>(arg);
      return !told.purge || told.purge(range(base, length), reason) ? 0 : -EBUSY;
    };
    ops.purged = [](void* arg, void* base, std::size_t length, int outcome) {
      auto& told = *static_cast<page_events*>(arg);
      if (told.purged) told.purged(range(base, length), error_of(outcome));
    };
    int error = rdmalloc_observer_add(&ops, made.events_.get(), &made.handle_);
    if (error != 0) return error_of(error);
    return result<observer>(std::move(made));
  }
  // EDEADLK inside a page event: the observer then stays.
  std::error_code remove() {
    if (handle_ == nullptr) return {};
    int error = rdmalloc_observer_remove(handle_);
    if (error == -EDEADLK) return error_of(error);
    handle_ = nullptr;
    events_.reset();
    return error_of(error);
  }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  static std::span<std::byte> range(void* base, std::size_t length) {
    return {static_cast<std::byte*>(base), length};
  }
  template <auto event>
  static void tell(void* arg, void* base, std::size_t length) {
    auto& events = *static_cast<page_events*>(arg);
    if (events.*event) (events.*event)(range(base, length));
  }
  std::unique_ptr<page_events> events_;
  rdmalloc_observer* handle_ = nullptr;
};

}  // namespace rdmalloc
#endif
