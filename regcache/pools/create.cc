// Making and unmaking pools.
#include <errno.h>
#include <limits.h>

#include "alloc/for_regcache.h"
#include "regcache/core/drop.h"
#include "regcache/core/gate.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"
#include "regcache/core/wiped_on_fork.h"
#include "regcache/pools/pool_plan.h"

namespace rdmalloc::regcache {
namespace {

int refuse_size(const PoolPlan& plan, const PoolRoom& room, const PoolPlan& fitting) {
  PoolLayout layout(plan);
  for (Side side : {kSmall, kLarge}) layout.skip(side, plan.count[side]);
  Message message = because();
  message.number(plan.count[kSmall])
      .text(" small and ")
      .number(plan.count[kLarge])
      .text(" large buffers take ")
      .number(layout.end())
      .text(" bytes");
  // What is asked, and then what each limit leaves of it.
  bool are_many_bytes = layout.end() > room.bytes;
  bool are_many_registrations = layout.pieces() > room.registrations;
  if (are_many_registrations) message.text(" and ").number(layout.pieces()).text(" registrations");
  if (are_many_bytes)
    message.text("; ").value(room.bytes_by).text(" leaves ").number(room.bytes).text(" bytes");
  if (are_many_registrations)
    message.text("; ").value(room.registrations_by).text(" leaves ").number(room.registrations);
  if (are_many_bytes && are_many_registrations) message.text(" registrations");
  message.text(": ")
      .number(fitting.count[kSmall])
      .text(" small and ")
      .number(fitting.count[kLarge])
      .text(" large would fit");
  return refuse(true, -ENOMEM, message);
}

int warn_refused(const char* who, int error, std::uint64_t done, std::uint64_t all) {
  return refuse(true, error,
                because()
                    .value(who)
                    .text(" refused (error ")
                    .signed_number(error)
                    .text(") after ")
                    .number(done)
                    .text(" of ")
                    .number(all)
                    .text(" bytes"));
}

// `length` bytes in a mapping that the place keeps for its next pool. It grows by doubling and the
// smaller one stays: together less than twice the largest, and no record of ours is ever unmapped.
int map_kept(KeptMapping& kept, std::size_t length, bool is_wiped_on_fork, std::uintptr_t* base) {
  *base = kept.base.load(std::memory_order_relaxed);
  if (length <= kept.length.load(std::memory_order_relaxed)) return 0;
  std::size_t rounded = 65536;
  while (rounded < length) rounded *= 2;
  int error = is_wiped_on_fork ? map_wiped_on_fork(rounded, base) : os::map_metadata(rounded, base);
  if (error != 0) return -ENOMEM;
  // In this order for a child forked in between: a base without a length is mapped anew.
  kept.length.store(0, std::memory_order_release);
  kept.base.store(*base, std::memory_order_release);
  kept.length.store(rounded, std::memory_order_release);
  return 0;
}

// One that was not open in a parent process: a handle the child inherited must not mean its own.
BufferPool* take_place() {
  LockGuard guard(buffer_pools->lock);
  for (std::size_t i = 0; i < kMostPools; ++i) {
    BufferPool& pool = buffer_pools->places[i];
    if (pool.phase.load(std::memory_order_acquire) != Phase::kUnused) continue;
    if (pool_survivors.is_open[i].load(std::memory_order_relaxed)) continue;
    pool.index = static_cast<std::uint16_t>(i);
    pool.phase.store(Phase::kBeingOpened, std::memory_order_relaxed);
    return &pool;
  }
  return nullptr;
}

// The tables: [piece][domain] of keys, the same of registrations, then each side's free stack.
int map_tables(BufferPool& pool, const PoolPlan& plan, std::uint64_t pieces, rdmalloc_key** keys) {
  std::uint64_t pairs = pieces * pool.domain_count;
  std::uintptr_t base = 0;
  std::size_t length =
      pairs * (sizeof(rdmalloc_key) + sizeof(void*)) + plan.total() * sizeof(void*);
  if (int error = map_kept(pool_survivors.tables[pool.index], length, true, &base)) return error;
  *keys = reinterpret_cast<rdmalloc_key*>(base);
  pool.registrations = reinterpret_cast<rdmalloc_reg**>(*keys + pairs);
  auto* stack = reinterpret_cast<Buffer**>(pool.registrations + pairs);
  for (Side side : {kSmall, kLarge}) {
    pool.sides[side] = {};
    pool.sides[side].length = plan.length[side];
    pool.sides[side].count = static_cast<std::uint32_t>(plan.count[side]);
    pool.sides[side].free = stack;
    stack += plan.count[side];
    pool.waiting[side].store(0, std::memory_order_relaxed);
  }
  length = plan.total() * sizeof(Buffer);
  if (int error = map_kept(pool_survivors.buffers[pool.index], length, false, &base)) return error;
  pool.buffers = reinterpret_cast<Buffer*>(base);
  pool.total = static_cast<std::uint32_t>(plan.total());
  pool.caches = nullptr;
  return 0;
}

int take_memory(BufferPool& pool, const PoolPlan& plan, std::uint64_t length) {
  int saved = errno;
  pool.memory = rdmalloc_memalign(plan.alignment, length);
  errno = saved;
  if (pool.memory == nullptr) return warn_refused("rdmalloc_memalign", -ENOMEM, 0, length);
  pool.memory_bytes = length;
  pool_survivors.memory[pool.index].store(pool.memory, std::memory_order_relaxed);
  int error = os::populate_pages(reinterpret_cast<std::uintptr_t>(pool.memory), length);
  return error == 0 ? 0 : warn_refused("the kernel, asked for the pages,", error, 0, length);
}

// Lays the buffers out, all of them free, the first on top of its stack.
void fill(BufferPool& pool, const PoolPlan& plan, const rdmalloc_key* keys) {
  PoolLayout layout(plan);
  std::uint32_t index = 0;
  for (Side side : {kSmall, kLarge}) {
    PoolSide& shelf = pool.sides[side];
    shelf.free_count = shelf.count;
    for (std::uint32_t i = 0; i < shelf.count; ++i, ++index) {
      std::uint64_t offset = layout.next(side);
      std::uint64_t piece = plan.is_remote ? index : offset / plan.piece_bytes;
      Buffer& buffer = pool.buffers[index];
      buffer.address = static_cast<char*>(pool.memory) + offset;
      buffer.length = plan.length[side];
      buffer.keys = keys + piece * pool.domain_count;
      buffer.is_out.store(0, std::memory_order_relaxed);
      buffer.side = side;
      shelf.free[shelf.count - 1 - i] = &buffer;
    }
  }
}

// Registers the index-th of the pool's ranges, [piece][domain], and fills in its keys.
int register_one(BufferPool& pool, std::uint64_t index) {
  std::uint64_t piece = index / pool.domain_count;
  void* begin;
  std::uint64_t length;
  if (pool.is_remote) {
    begin = pool.buffers[piece].address;
    length = pool.buffers[piece].length;
  } else {
    std::uint64_t offset = piece * pool.piece_bytes, left = pool.memory_bytes - offset;
    begin = static_cast<char*>(pool.memory) + offset;
    length = pool.piece_bytes < left ? pool.piece_bytes : left;
  }
  Domain& domain = state()->domains[pool.domains[index % pool.domain_count]];
  rdmalloc_reg* reg = nullptr;
  if (int error = rdmalloc_reg_get(reinterpret_cast<rdmalloc_domain*>(&domain), begin, length,
                                   pool.access, &reg))
    return error;
  pool.registrations[index] = reg;
  rdmalloc_reg_key_of(reg, pool.keys + index);
  return 0;
}

int register_all(BufferPool& pool, std::uint64_t pieces) {
  for (std::uint64_t i = 0; i < pieces * pool.domain_count; ++i) {
    if (int error = register_one(pool, i)) {
      std::uint64_t done = pool.is_remote ? i / pool.domain_count * pool.buffers[0].length
                                          : i / pool.domain_count * pool.piece_bytes;
      const Domain& domain = state()->domains[pool.domains[i % pool.domain_count]];
      return warn_refused(domain.ops.name, error, done, pool.memory_bytes);
    }
    ++pool.registration_count;
  }
  return 0;
}

// Undoes what of the pool there is.
void dismantle(BufferPool& pool) {
  while (pool.registration_count != 0)
    rdmalloc_reg_put(pool.registrations[--pool.registration_count]);
  void* memory = pool.memory;
  pool.memory = nullptr;
  pool_survivors.memory[pool.index].store(nullptr, std::memory_order_relaxed);
  int saved = errno;
  rdmalloc_free(memory);
  errno = saved;
  pool_survivors.is_open[pool.index].store(false, std::memory_order_relaxed);
  // Release: pairs with the acquire of the thread that takes the place next.
  pool.phase.store(Phase::kUnused, std::memory_order_release);
}

int build(BufferPool& pool, const PoolPlan& plan, rdmalloc_domain* const* domains) {
  PoolLayout layout(plan);
  for (Side side : {kSmall, kLarge}) layout.skip(side, plan.count[side]);
  std::uint64_t pieces = layout.pieces();
  rdmalloc_key* keys = nullptr;
  if (int error = map_tables(pool, plan, pieces, &keys))
    return warn_refused("the kernel, asked for the pool's tables,", error, 0, layout.end());
  if (int error = take_memory(pool, plan, layout.end())) return error;
  fill(pool, plan, keys);
  pool.keys = keys;
  pool.access = plan.access;
  pool.is_remote = plan.is_remote;
  pool.piece_bytes = plan.piece_bytes;
  for (std::size_t i = 0; i < pool.domain_count; ++i)
    pool.domains[i] = static_cast<std::uint8_t>(domain_of(domains[i])->index);
  return register_all(pool, pieces);
}

// The child's own copy of the memory of a parent's pool.
int forget_inherited(std::size_t index) {
  pool_survivors.is_open[index].store(false, std::memory_order_relaxed);
  rdmalloc_free(pool_survivors.memory[index].exchange(nullptr, std::memory_order_relaxed));
  return 0;
}

int begin_closing(BufferPool& pool) {
  LockGuard guard(buffer_pools->lock);
  LockGuard pool_guard(pool.lock);
  if (pool.phase.load(std::memory_order_relaxed) != Phase::kIsOpen) return -EINVAL;
  for (Side side : {kSmall, kLarge})
    if (pool.sides[side].free_count + cached_count(pool, side) != pool.sides[side].count)
      return -EBUSY;
  pool.phase.store(Phase::kBeingClosed, std::memory_order_relaxed);
  retire_caches(pool);
  return 0;
}

// Calls fn(pool, index, registration) for each range that pools have registered, or had.
template <class Fn>
void each_registration(Fn fn) {
  for (BufferPool& pool : buffer_pools->places)
    // Acquire: pairs with create's release.
    if (pool.phase.load(std::memory_order_acquire) == Phase::kIsOpen)
      for (std::size_t i = 0; i < pool.registration_count; ++i)
        fn(pool, i, registration_of(pool.registrations[i]));
}

// ---- pools as holders of registrations (core/rooms.h) ----

int prepare() {
  return buffer_pools.prepare();
}

bool has_domain(std::size_t domain) {
  LockGuard guard(buffer_pools->lock);  // under it places are taken
  for (BufferPool& pool : buffer_pools->places) {
    if (pool.phase.load(std::memory_order_acquire) != Phase::kIsOpen) continue;
    for (std::size_t i = 0; i < pool.domain_count; ++i)
      if (pool.domains[i] == domain) return true;
  }
  return false;
}

std::uint64_t references(std::size_t domain) {
  std::uint64_t count = 0;
  each_registration([&](BufferPool&, std::size_t, Registration* reg) {
    if (reg != nullptr && reg->domain_index() == domain) ++count;
  });
  return count;
}

void give_back(State& all, Registration** drops) {
  each_registration([&](BufferPool& pool, std::size_t i, Registration* reg) {
    pool.registrations[i] = nullptr;
    pool.keys[i] = {};
    if (reg == nullptr) return;
    std::size_t domain = reg->domain_index();
    RangeGuard guard(all.domains[domain], reg);
    give_reference_back(reg, &drops[domain]);
  });
}

int register_again(State& all) {
  int first_error = 0;
  each_registration([&](BufferPool& pool, std::size_t i, Registration*) {
    std::size_t index = pool.domains[i % pool.domain_count];
    if (!is_to_be_reopened(all.domains[index])) return;
    int error = register_one(pool, i);
    if (error == 0) {
      freezer_here().reregistered.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    lose_at_resume(all.domains[index], error);
    if (first_error == 0) first_error = error;
  });
  return first_error;
}

// Pools are not abandoned.
bool end_abandoned_pools() {
  return false;
}

}  // namespace

constinit WipedObject<BufferPools> buffer_pools;
constinit PoolSurvivors pool_survivors;

const Holder pool_holder = {prepare,   has_domain,     references,
                            give_back, register_again, end_abandoned_pools};

}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_pool_fit(rdmalloc_domain* const* domains, size_t domain_count,
                                              const rdmalloc_pool_attr* attr, uint32_t* small_count,
                                              uint32_t* large_count) {
  PoolPlan plan = {}, fitting = {};
  if (small_count == nullptr || large_count == nullptr) return -EINVAL;
  if (int error = plan_pool(domains, domain_count, attr, false, &plan)) return error;
  fit_pool(plan, room_for(plan, domains, domain_count), &fitting);
  *small_count = static_cast<std::uint32_t>(fitting.count[kSmall]);
  *large_count = static_cast<std::uint32_t>(fitting.count[kLarge]);
  return 0;
}

extern "C" RDMALLOC_API int rdmalloc_pool_create(rdmalloc_domain* const* domains,
                                                 size_t domain_count,
                                                 const rdmalloc_pool_attr* attr,
                                                 rdmalloc_pool** handle) {
  PoolPlan plan = {}, fitting = {};
  if (handle == nullptr)
    return refuse(true, -EINVAL,
                  because().text("`pool` is NULL: there is no place for the pool's name"));
  if (int error = plan_pool(domains, domain_count, attr, true, &plan)) return error;
  PoolRoom room = room_for(plan, domains, domain_count);
  fit_pool(plan, room, &fitting);
  if (fitting.total() != plan.total()) return refuse_size(plan, room, fitting);
  if (int error = pool_threads_prepare())
    return refuse(true, error,
                  because()
                      .text("pthread_key_create() refused (error ")
                      .signed_number(error)
                      .text("); a process has ")
                      .number(PTHREAD_KEYS_MAX)
                      .text(" keys at most; delete one that the program uses no more"));
  GateScope scope(*state(), Gate::kMakes);
  if (int error = scope.error()) return error;
  BufferPool* pool = take_place();
  if (pool == nullptr)
    return refuse(true, -EMFILE,
                  because()
                      .text("there are ")
                      .number(kMostPools)
                      .text(" pools, and can't be more; destroy one"));
  pool->domain_count = domain_count;
  pool->registration_count = 0;
  pool->memory = nullptr;
  if (int error = build(*pool, plan, domains)) {
    dismantle(*pool);
    return error;
  }
  pool_survivors.is_open[pool->index].store(true, std::memory_order_relaxed);
  // Release: pairs with the acquire of pool_check().
  pool->phase.store(Phase::kIsOpen, std::memory_order_release);
  *handle = reinterpret_cast<rdmalloc_pool*>(pool);
  return 0;
}

extern "C" RDMALLOC_API int rdmalloc_pool_destroy(rdmalloc_pool* handle) {
  BufferPool* pool = pool_of(handle);
  int error = pool_check(pool);
  if (error == -ECHILD)
    return forget_inherited(static_cast<std::size_t>(pool - buffer_pools->places));
  if (error != 0) return error;
  GateScope scope(*state(), Gate::kUnmakes);
  if (int busy = scope.error()) return busy;
  if (int busy = begin_closing(*pool)) return busy;
  dismantle(*pool);
  return 0;
}
