// SPDX-License-Identifier: BSD-3-Clause
//
// rdmalloc for C++20: what the C headers offer, with ownership. Functions that can fail return a
// result, which holds a value or a std::error_code (std::generic_category, the errno of the C
// function). Nothing here throws, but for heap_resource and allocator, from which the standard
// wants std::bad_alloc.
//
// How what is owned ends. destroy(), close(), put() and remove() tell whether they could; the
// object gives its handle up when, and only when, there is nothing left that it names, and can be
// asked again otherwise. A destructor, and an assignment over an object, can't tell and don't wait:
// what can't end now (EBUSY: something of it is held; EAGAIN: a checkpoint is under way; EDEADLK:
// inside a callback) is left to the library, which ends it as soon as it can be
// (rdmalloc_heap_abandon(), rdmalloc_domain_abandon()). Nothing is lost, and nothing is ended that
// belongs to another. So what a domain's registrar uses must live until its `close` was called.
//
// See rdmalloc.h and regcache.h for what each call promises, which
// threads may call it, and what may not be called inside a fabric's callback.
#ifndef RDMALLOC_RDMALLOC_HPP
#define RDMALLOC_RDMALLOC_HPP

#include <rdmalloc/rdmalloc.h>
#include <rdmalloc/regcache.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <memory_resource>
#include <new>
#include <optional>
#include <span>
#include <system_error>
#include <type_traits>
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

// Of a heap's pages: heap::create() and create_registered().
enum class page_size : std::uint32_t {
  any = 0,
  small = RDMALLOC_PAGE_4K,
  transparent = RDMALLOC_PAGE_THP,
  huge_2m = RDMALLOC_PAGE_2M,  // of the kernel's pool of them (hugetlb)
  huge_1g = RDMALLOC_PAGE_1G,
};

class domain;

// A heap of the user: destroyed at its end, and with it every block that is still in it. The blocks
// are like those of malloc: any thread frees them, by free() or by release().
class heap {
 public:
  heap() = default;
  explicit heap(rdmalloc_heap* handle) : handle_(handle) {}
  heap(heap&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  heap& operator=(heap&& other) noexcept {
    if (this != &other) {
      abandon();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~heap() { abandon(); }

  static result<heap> create(rdmalloc_heap_attr attr = {}) {
    attr.size = sizeof attr;
    rdmalloc_heap* handle = nullptr;
    if (int error = rdmalloc_heap_create(&attr, &handle)) return error_of(error);
    return heap(handle);
  }
  // A heap on pages of that size; all of its memory is taken now.
  static result<heap> create(page_size pages, std::size_t budget_bytes) {
    // With no domain, and so no rights.
    return create_registered(std::span<rdmalloc_domain* const>(), budget_bytes, access(), pages);
  }
  // A registered heap: `budget_bytes` of memory with these rights in each of the domains, from now
  // until the heap's end. Every block has its keys from the start. The domains must outlive it.
  static result<heap> create_registered(std::span<rdmalloc_domain* const> domains,
                                        std::size_t budget_bytes, access rights = access::local,
                                        page_size pages = page_size::any) {
    rdmalloc_heap_attr attr = {};
    attr.budget_bytes = budget_bytes;
    attr.domains = domains.data();
    attr.domain_count = domains.size();
    attr.access = static_cast<std::uint32_t>(rights);
    attr.page_size = static_cast<std::uint32_t>(pages);
    return create(attr);
  }
  static result<heap> create_registered(const domain& with, std::size_t budget_bytes,
                                        access rights = access::local,
                                        page_size pages = page_size::any);
  // More memory for a registered one, by this call only.
  std::error_code grow(std::size_t bytes) { return error_of(rdmalloc_heap_grow(handle_, bytes)); }

  // EINVAL: it was destroyed by its handle. EBUSY: a registration of its memory is held; EAGAIN: a
  // checkpoint is under way; the heap is there still. Nothing to do for an empty one.
  std::error_code destroy() {
    if (handle_ == nullptr) return {};
    int error = rdmalloc_heap_destroy(handle_);
    if (error == 0 || error == -EINVAL) handle_ = nullptr;
    return error_of(error);
  }

  explicit operator bool() const { return handle_ != nullptr; }
  rdmalloc_heap* get() const { return handle_; }

  // At least `bytes`, at a multiple of `alignment` (a power of two).
  result<void*> allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
    void* block = rdmalloc_heap_aligned(handle_, alignment, bytes);
    if (block == nullptr) return error_of(-errno);
    return block;
  }
  // EINVAL, and nothing is freed, when the block is of another heap or of none.
  std::error_code release(void* block) { return error_of(rdmalloc_heap_free(handle_, block)); }

  // The key of bytes in a block of a registered heap, with the domain_index-th of its domains. No
  // registrar is called, no lock taken.
  result<key> key_of(const void* addr, std::size_t length, std::size_t domain_index = 0) const {
    key found;
    int error = rdmalloc_heap_key(handle_, domain_index, addr, length, &found);
    if (error != 0) return error_of(error);
    return found;
  }
  // A region of it, for a peer that is to know base and keys of all of it: ENOENT past the last.
  result<rdmalloc_heap_region_info> region(std::size_t index) const {
    rdmalloc_heap_region_info info = {};
    info.size = sizeof info;
    if (int error = rdmalloc_heap_region(handle_, index, &info)) return error_of(error);
    return info;
  }

  // Calls `visit` with each block in use, as a span of bytes, until it returns false. It may
  // allocate, free, and destroy the heap, but not throw. The result: whether none was left out.
  template <class Visit>
  result<bool> walk(Visit&& visit) const {
    using Function = std::remove_reference_t<Visit>;
    int stopped = rdmalloc_heap_walk(
        handle_,
        [](void* block, std::size_t bytes, void* function) noexcept {
          std::span<std::byte> range(static_cast<std::byte*>(block), bytes);
          return (*static_cast<Function*>(function))(range) ? 0 : 1;
        },
        const_cast<void*>(static_cast<const volatile void*>(std::addressof(visit))));
    if (stopped < 0) return error_of(stopped);
    return stopped == 0;
  }
  result<rdmalloc_heap_counters> counters() const {
    rdmalloc_heap_counters now = {};
    now.size = sizeof now;
    if (int error = rdmalloc_heap_stats(handle_, &now)) return error_of(error);
    return now;
  }

 private:
  void abandon() {
    if (handle_ != nullptr) rdmalloc_heap_abandon(std::exchange(handle_, nullptr));
  }
  rdmalloc_heap* handle_ = nullptr;
};

namespace detail {
[[noreturn]] inline void throw_bad_alloc() {
#if defined(__cpp_exceptions)
  throw std::bad_alloc();
#else
  std::abort();
#endif
}
// What the containers' allocators are made of.
inline void* allocate_or_throw(rdmalloc_heap* heap, std::size_t bytes, std::size_t alignment) {
  void* block = rdmalloc_heap_aligned(heap, alignment, bytes);
  if (block == nullptr) throw_bad_alloc();
  return block;
}
}  // namespace detail

// A heap for the containers of std::pmr. Does not own it: the heap must outlive the containers.
// Two resources of one heap are equal; with -fno-rtti, two of the same class.
class heap_resource : public std::pmr::memory_resource {
 public:
  explicit heap_resource(const heap& of) : heap_(of.get()) {}

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    return detail::allocate_or_throw(heap_, bytes, alignment);
  }
  void do_deallocate(void* block, std::size_t, std::size_t) override { rdmalloc_free(block); }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
#if defined(__cpp_rtti)
    const auto* same = dynamic_cast<const heap_resource*>(&other);
    return same != nullptr && same->heap_ == heap_;
#else
    // Both begin with the pointer to their class's table of virtual functions (Itanium C++ ABI).
    const void *mine = nullptr, *others = nullptr;
    std::memcpy(&mine, static_cast<const void*>(this), sizeof mine);
    std::memcpy(&others, static_cast<const void*>(&other), sizeof others);
    return mine == others && static_cast<const heap_resource&>(other).heap_ == heap_;
#endif
  }
  rdmalloc_heap* heap_;
};

// The same as an allocator of the other containers: std::vector<T, rdmalloc::allocator<T>>.
template <class T>
class allocator {
 public:
  using value_type = T;

  explicit allocator(const heap& of) noexcept : heap_(of.get()) {}
  template <class Other>
  allocator(const allocator<Other>& other) noexcept : heap_(other.get()) {}

  T* allocate(std::size_t count) {
    if (count > PTRDIFF_MAX / sizeof(T)) detail::throw_bad_alloc();
    return static_cast<T*>(detail::allocate_or_throw(heap_, count * sizeof(T), alignof(T)));
  }
  void deallocate(T* block, std::size_t) noexcept { rdmalloc_free(block); }
  rdmalloc_heap* get() const noexcept { return heap_; }

  template <class Other>
  friend bool operator==(const allocator& one, const allocator<Other>& other) noexcept {
    return one.get() == other.get();
  }

 private:
  rdmalloc_heap* heap_;
};

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

// A domain; closed at its end.
class domain {
 public:
  domain() = default;
  explicit domain(rdmalloc_domain* handle) : handle_(handle) {}
  domain(domain&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  domain& operator=(domain&& other) noexcept {
    if (this != &other) {
      abandon();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~domain() { abandon(); }

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
    if (error == 0 || error == -EINVAL) handle_ = nullptr;
    return error_of(error);
  }

  // The device is gone: see rdmalloc_domain_lost().
  std::error_code lost() { return error_of(rdmalloc_domain_lost(handle_)); }

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
  void abandon() {
    if (handle_ != nullptr) rdmalloc_domain_abandon(std::exchange(handle_, nullptr));
  }
  static result<std::int64_t> count_of(std::int64_t value) {
    if (value < 0) return error_of(static_cast<int>(value));
    return value;
  }
  rdmalloc_domain* handle_ = nullptr;
};

inline result<heap> heap::create_registered(const domain& with, std::size_t budget_bytes,
                                            access rights, page_size pages) {
  rdmalloc_domain* one = with.get();
  return create_registered(std::span(&one, 1), budget_bytes, rights, pages);
}

// The key of what a container holds: std::vector, std::basic_string, or any other with data(),
// size() and an allocator<T> of a registered heap. Good until the container moves its elements, as
// a pointer to them is. EINVAL for an empty one.
template <class Container>
result<key> key_of(const Container& container, std::size_t domain_index = 0) {
  key found;
  int error = rdmalloc_heap_key(container.get_allocator().get(), domain_index, container.data(),
                                container.size() * sizeof(*container.data()), &found);
  if (error != 0) return error_of(error);
  return found;
}

// Backs the pages of all ranges and registers them with all domains, by `threads` threads (0: as
// many as this one may run on); see rdmalloc_reg_prefault(). `progress` is called on this thread
// with a const rdmalloc_prefault_progress&, and cancels by returning false; it may not throw.
template <class Progress>
std::error_code prefault(std::span<rdmalloc_domain* const> domains, std::span<const iovec> ranges,
                         unsigned threads, Progress&& progress) {
  using Function = std::remove_reference_t<Progress>;
  return error_of(rdmalloc_reg_prefault(
      domains.data(), domains.size(), ranges.data(), ranges.size(), threads,
      [](const rdmalloc_prefault_progress* now, void* function) noexcept {
        return (*static_cast<Function*>(function))(*now) ? 0 : 1;
      },
      const_cast<void*>(static_cast<const volatile void*>(std::addressof(progress)))));
}
inline std::error_code prefault(std::span<rdmalloc_domain* const> domains,
                                std::span<const iovec> ranges, unsigned threads = 0) {
  return error_of(rdmalloc_reg_prefault(domains.data(), domains.size(), ranges.data(),
                                        ranges.size(), threads, nullptr, nullptr));
}

// What an observer hears of pages; any may be empty. They run on the purge thread: see
// struct rdmalloc_observer_ops.
struct page_events {
  std::function<void(std::span<std::byte>)> reserve, use, reuse;
  // False refuses the purge.
  std::function<bool(std::span<std::byte>, rdmalloc_purge_reason)> purge;
  std::function<void(std::span<std::byte>, std::error_code)> purged;
};

// Hears of page events until its end, which waits for those under way. One that ends inside a page
// event hears nothing more, and its functions stay in memory, for they may be running; it keeps
// one of the 16 places for observers.
class observer {
 public:
  observer() = default;
  observer(observer&& other) noexcept
      : listener_(std::move(other.listener_)), handle_(std::exchange(other.handle_, nullptr)) {}
  observer& operator=(observer&& other) noexcept {
    if (this != &other) {
      abandon();
      listener_ = std::move(other.listener_);
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~observer() { abandon(); }

  static result<observer> add(page_events events) {
    observer made;
    made.listener_.reset(new (std::nothrow) listener{std::move(events), false});
    if (made.listener_ == nullptr) return error_of(-ENOMEM);
    rdmalloc_observer_ops ops = {};
    ops.size = sizeof ops;
    ops.reserve = tell<&page_events::reserve>;
    ops.use = tell<&page_events::use>;
    ops.reuse = tell<&page_events::reuse>;
    ops.purge = [](void* arg, void* base, std::size_t length, rdmalloc_purge_reason reason) {
      auto& self = *static_cast<listener*>(arg);
      if (self.is_over || !self.events.purge) return 0;
      return self.events.purge(range(base, length), reason) ? 0 : -EBUSY;
    };
    ops.purged = [](void* arg, void* base, std::size_t length, int outcome) {
      auto& self = *static_cast<listener*>(arg);
      if (!self.is_over && self.events.purged)
        self.events.purged(range(base, length), error_of(outcome));
    };
    int error = rdmalloc_observer_add(&ops, made.listener_.get(), &made.handle_);
    if (error != 0) return error_of(error);
    return result<observer>(std::move(made));
  }
  // EDEADLK inside a page event: the observer then stays.
  std::error_code remove() {
    if (handle_ == nullptr) return {};
    int error = rdmalloc_observer_remove(handle_);
    if (error == -EDEADLK) return error_of(error);
    handle_ = nullptr;
    listener_.reset();
    return error_of(error);
  }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  struct listener {
    page_events events;
    bool is_over;  // events come one at a time, on one thread
  };
  void abandon() {
    if (!remove() || listener_ == nullptr) return;
    listener_->is_over = true;
    (void)listener_.release();
    handle_ = nullptr;
  }
  static std::span<std::byte> range(void* base, std::size_t length) {
    return {static_cast<std::byte*>(base), length};
  }
  template <auto event>
  static void tell(void* arg, void* base, std::size_t length) {
    auto& self = *static_cast<listener*>(arg);
    if (!self.is_over && self.events.*event) (self.events.*event)(range(base, length));
  }
  std::unique_ptr<listener> listener_;
  rdmalloc_observer* handle_ = nullptr;
};

}  // namespace rdmalloc
#endif
