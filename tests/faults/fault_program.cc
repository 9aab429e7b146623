// A program that uses everything there is, with a fault armed: after each step that fails it looks
// whether the step was undone, and repeats it; at the end nothing may be left. fault_walk.py runs
// it for every site.
//
//     fault_program sites                 names, a line each
//     fault_program start                 one round and two more, with RDMALLOC_FAULT in the
//                                         environment: what happens first in a process
//     fault_program warm SITE few|all     rounds with the fault at the n-th call, for n = 1, 2, ...
//                                         until one passes without it; few: not every n
//
// The last line is "fired N": of N rounds. Exit status 0, or 1 after lines that say what is wrong.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdmalloc/rdmalloc.h>
#include <rdmalloc/regcache.h>
#include <rdmalloc/registrar_mlock.h>
#include <rdmalloc/registrar_uring.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "alloc/os/fault.h"
#include "tests/faults/attempt.h"
#include "tests/faults/held.h"
#include "tests/support/kernel_has.h"

namespace {

using namespace faults;

constexpr std::size_t kMiB = std::size_t{1} << 20;

rdmalloc_domain* table_domain = nullptr;
int threads_at_first = 1;  // TSan has one of its own
int descriptors_at_first = 0;

void use_malloc(unsigned seed) {
  std::vector<void*> blocks;
  rdmalloc_test::Random random(seed);
  for (int i = 0; i < 300; ++i) {
    std::size_t bytes = random.size_between(1, i % 50 == 0 ? 4 * kMiB : 20000);
    void* block = allocate(bytes);
    std::memset(block, i, bytes < 4096 ? bytes : 4096);
    if (i % 7 == 0) {
      void* grown = rdmalloc_realloc(block, 2 * bytes);
      if (grown == nullptr) grown = rdmalloc_realloc(block, 2 * bytes);
      require(grown != nullptr, "realloc(%zu) failed twice", 2 * bytes);
      if (grown != nullptr) block = grown;
    }
    blocks.push_back(block);
  }
  void* aligned = rdmalloc_memalign(2 * kMiB, 12 * kMiB);
  if (aligned == nullptr) aligned = rdmalloc_memalign(2 * kMiB, 12 * kMiB);
  require(aligned != nullptr, "memalign failed twice");
  rdmalloc_free(aligned);
  for (void* block : blocks) rdmalloc_free(block);
}

void use_threads() {
  constexpr int kThreads = 4;
  pthread_t threads[kThreads];
  static pthread_barrier_t together;
  pthread_barrier_init(&together, nullptr, kThreads);
  auto run = [](void* seed) -> void* {
    pthread_barrier_wait(&together);
    void* blocks[100];
    for (void*& block : blocks) block = allocate(1 + reinterpret_cast<std::uintptr_t>(seed) * 100);
    for (void* block : blocks) rdmalloc_free(block);
    pthread_barrier_wait(&together);
    return nullptr;
  };
  for (int i = 0; i < kThreads; ++i)
    pthread_create(&threads[i], nullptr, run, reinterpret_cast<void*>(std::uintptr_t(i + 1)));
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
  pthread_barrier_destroy(&together);
}

void use_fork() {
  if (kIsSanitized) return;
  std::fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    mistakes = 0;
    use_malloc(3);
    for (rdmalloc_domain* domain : open_domains)
      require(rdmalloc_domain_flush(domain) == -ECHILD, "a child's own domain");
    _exit(mistakes == 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x", status);
}

bool has_uring = true, may_lock = true, may_bind = true;

void use_heaps() {
  rdmalloc_heap_attr kinds[3] = {};
  for (rdmalloc_heap_attr& kind : kinds) {
    kind.size = sizeof kind;
    kind.budget_bytes = 4 * kMiB;
  }
  kinds[1].numa_node = RDMALLOC_NODE(0);
  kinds[2].page_size = RDMALLOC_PAGE_4K;
  const char* names[3] = {"a heap", "a heap on a node", "a heap of small pages"};
  for (int i = 0; i < 3; ++i) {
    if (i == 1 && !may_bind) continue;
    rdmalloc_heap* heap = nullptr;
    std::uint64_t used = counter("stats.heaps");
    attempt(names[i], [&] {
      int error = rdmalloc_heap_create(&kinds[i], &heap);
      if (error != 0) require(counter("stats.heaps") == used, "half a heap is left");
      if (i != 1 || (error != -EPERM && error != -EINVAL)) return error;
      std::printf("SKIP: no NUMA policy here\n");
      may_bind = false;
      return 0;
    });
    if (heap == nullptr) continue;
    for (std::size_t bytes : {100ul, 5000ul, 300000ul}) {
      void* block = rdmalloc_heap_malloc(heap, bytes);
      if (block == nullptr) block = rdmalloc_heap_malloc(heap, bytes);
      require(block != nullptr, "%s: malloc(%zu) failed twice", names[i], bytes);
      if (bytes != 5000) rdmalloc_free(block);
    }
    attempt("destroying a heap", [&] { return rdmalloc_heap_destroy(heap); });
  }
}

// ---- domains ----

std::atomic<int> registered_with_table{0};
bool is_table_open = true;  // its device
int last_event = 0;         // of it, by rdmalloc_domain_event

rdmalloc_registrar_ops table_of_functions() {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "a table";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
              RDMALLOC_REGISTRAR_EXACT_ACCESS;
  ops.register_ = [](void*, void*, std::size_t, std::uint32_t, rdmalloc_key* key) {
    key->lkey = key->rkey = static_cast<std::uint64_t>(++registered_with_table);
    return 0;
  };
  ops.deregister = [](void*, void*, std::size_t, const rdmalloc_key*) {
    --registered_with_table;
    return 0;
  };
  ops.quiesce = [](void*) {
    require(is_table_open, "a device is closed twice");
    is_table_open = false;
    return 0;
  };
  ops.resume = [](void*) {
    require(!is_table_open, "a device is opened twice");
    is_table_open = true;
    return 0;
  };
  ops.close = [](void*) { is_table_open = true; };
  return ops;
}

void open_all() {
  rdmalloc_domain* domain = nullptr;
  rdmalloc_uring* uring = nullptr;
  rdmalloc_uring_attr attr = {};
  attr.size = sizeof attr;
  attr.entries = 8;
  attr.buffers = 64;
  if (has_uring) {
    attempt("opening io_uring",
            [&] { return rdmalloc_domain_open_uring(&attr, nullptr, &domain, &uring); });
    open_domains.push_back(domain);
  }
  if (may_lock) {
    attempt("opening mlock", [&] { return rdmalloc_domain_open_mlock(nullptr, &domain); });
    open_domains.push_back(domain);
  }
  attempt("opening a table", [&] {
    rdmalloc_registrar_ops ops = table_of_functions();
    rdmalloc_domain_attr of_table = {};
    of_table.size = sizeof of_table;
    of_table.event = [](rdmalloc_domain*, rdmalloc_domain_event event, void*) {
      last_event = event;
      return 0;
    };
    return rdmalloc_domain_open(&ops, nullptr, &of_table, &domain);
  });
  open_domains.push_back(domain);
  table_domain = domain;
}

void close_all() {
  while (!open_domains.empty()) {
    rdmalloc_domain* domain = open_domains.back();
    open_domains.pop_back();
    attempt("closing", [&] { return rdmalloc_domain_close(domain); });
  }
}

void use_registrations() {
  auto* block = static_cast<char*>(allocate(kMiB));
  auto* foreign = static_cast<char*>(
      mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (rdmalloc_domain* domain : open_domains) {
    rdmalloc_reg *local = nullptr, *of_foreign = nullptr;
    rdmalloc_key key;
    attempt("a registration",
            [&] { return rdmalloc_reg_get(domain, block, kMiB, RDMALLOC_ACCESS_LOCAL, &local); });
    attempt("a key",
            [&] { return rdmalloc_reg_key(domain, block, 100, RDMALLOC_ACCESS_LOCAL, &key); });
    attempt("one of foreign memory", [&] {
      return rdmalloc_reg_get(domain, foreign, kMiB, RDMALLOC_ACCESS_LOCAL, &of_foreign);
    });
    rdmalloc_reg_put(local);
    rdmalloc_reg_put(of_foreign);
    of_foreign = nullptr;
    attempt("one of it again", [&] {
      return rdmalloc_reg_get(domain, foreign, 4096, RDMALLOC_ACCESS_LOCAL, &of_foreign);
    });
    rdmalloc_reg_put(of_foreign);
    rdmalloc_reg* remote = nullptr;
    if (domain == table_domain) {
      attempt("a remote one", [&] {
        return rdmalloc_reg_get(domain, block, 100, RDMALLOC_ACCESS_REMOTE_WRITE, &remote);
      });
      rdmalloc_reg_put(remote);
    }
  }
  // Watched memory that changes: its registrations end.
  for (rdmalloc_domain* domain : open_domains) {
    rdmalloc_reg* reg = nullptr;
    if (rdmalloc_reg_get(domain, foreign, kMiB, RDMALLOC_ACCESS_LOCAL, &reg) == 0)
      rdmalloc_reg_put(reg);
  }
  madvise(foreign, kMiB / 2, MADV_DONTNEED);
  void* moved = mremap(foreign, kMiB, 2 * kMiB, MREMAP_MAYMOVE);
  if (moved != MAP_FAILED)
    munmap(moved, 2 * kMiB);
  else  // a part of it is locked still
    munmap(foreign, kMiB);
  rdmalloc_free(block);
}

void use_adopted() {
  constexpr std::size_t kBytes = 64 * 1024;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  attempt("adopting", [&] { return rdmalloc_adopt(memory, kBytes); });
  for (rdmalloc_domain* domain : open_domains) {
    rdmalloc_reg* reg = nullptr;
    attempt("a registration of adopted memory",
            [&] { return rdmalloc_reg_get(domain, memory, kBytes, RDMALLOC_ACCESS_LOCAL, &reg); });
    rdmalloc_reg_put(reg);
    require(rdmalloc_invalidate(domain, memory, kBytes, nullptr, nullptr) >= 0, "invalidating");
  }
  // Refused where a registration of it could not be ended: the memory must stay.
  int error = rdmalloc_disown(memory, kBytes);
  if (error == -EBUSY && counter("stats.quarantined_ranges") != 0) {
    kept_foreign_bytes += kBytes;
    return;
  }
  // Another thread, that of the events, may be ending a registration of it.
  require(error == 0 || error == -EBUSY, "disowning: %d", error);
  std::atomic<bool> is_gone{false};
  auto note = [](void* gone) { static_cast<std::atomic<bool>*>(gone)->store(true); };
  if (error == -EBUSY && rdmalloc_invalidate(nullptr, memory, kBytes, note, &is_gone) >= 0)
    while (!is_gone) usleep(1000);
  munmap(memory, kBytes);
}

void print_statistics() {
  int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  for (rdmalloc_stats_format format :
       {RDMALLOC_STATS_TEXT, RDMALLOC_STATS_JSON, RDMALLOC_STATS_PROMETHEUS})
    attempt("statistics", [&] { return rdmalloc_stats_print(nowhere, format); });
  close(nowhere);
}

// For a heap that is registered with all domains.
rdmalloc_heap_attr registered_heap_attr() {
  rdmalloc_heap_attr attr = {};
  attr.size = sizeof attr;
  attr.budget_bytes = 2 * kMiB;
  attr.domains = open_domains.data();
  attr.domain_count = open_domains.size();
  attr.access = RDMALLOC_ACCESS_LOCAL;
  return attr;
}

void use_registered_heap() {
  rdmalloc_heap_attr attr = registered_heap_attr();
  rdmalloc_heap* heap = nullptr;
  std::uint64_t before = counter("stats.heap_region_bytes");
  attempt("a registered heap", [&] {
    int error = rdmalloc_heap_create(&attr, &heap);
    if (error != 0)
      require(counter("stats.heap_region_bytes") == before, "half a registered heap is left");
    return error;
  });
  attempt("growing it", [&] { return rdmalloc_heap_grow(heap, 2 * kMiB); });
  void* block = rdmalloc_heap_malloc(heap, 3000);
  rdmalloc_key key;
  for (std::size_t i = 0; i < open_domains.size(); ++i)
    require(rdmalloc_heap_key(heap, i, block, 3000, &key) == 0, "no key of a heap's block");
  attempt("destroying it", [&] { return rdmalloc_heap_destroy(heap); });
}

void use_pool() {
  rdmalloc_pool_attr attr = {};
  attr.size = sizeof attr;
  attr.small_count = 8;
  attr.large_count = 2;
  rdmalloc_pool* pool = nullptr;
  attempt("a pool", [&] {
    return rdmalloc_pool_create(open_domains.data(), open_domains.size(), &attr, &pool);
  });
  rdmalloc_buffer* buffer = nullptr;
  attempt("a buffer", [&] { return rdmalloc_pool_get(pool, 100, &buffer); });
  attempt("giving it back", [&] { return rdmalloc_pool_put(pool, buffer); });
  attempt("destroying the pool", [&] { return rdmalloc_pool_destroy(pool); });
}

void use_prefault() {
  char* blocks[2] = {static_cast<char*>(allocate(kMiB)), static_cast<char*>(allocate(kMiB / 2))};
  iovec ranges[2] = {{blocks[0], kMiB}, {blocks[1], kMiB / 2}};
  attempt("a prefault", [&] {
    return rdmalloc_reg_prefault(open_domains.data(), open_domains.size(), ranges, 2, 0, nullptr,
                                 nullptr);
  });
  for (char* block : blocks) rdmalloc_free(block);
}

// ---- checkpoints ----

// Everything open, and keys where they were; or, `is_any_lost`, all but some domains that are lost.
void require_open(rdmalloc_heap* heap, void* block, bool is_any_lost, const char* what) {
  int lost = 0;
  for (std::size_t i = 0; i < open_domains.size(); ++i) {
    std::int64_t error = rdmalloc_domain_flush(open_domains[i]);
    rdmalloc_key key;
    int of_heap = rdmalloc_heap_key(heap, i, block, 100, &key);
    bool is_lost = is_any_lost && error == -ENODEV && of_heap == -ENODEV;
    lost += is_lost;
    require(is_lost || (error >= 0 && of_heap == 0), "%s: domain %zu: %ld, its key %d", what, i,
            static_cast<long>(error), of_heap);
    if (open_domains[i] == table_domain) {
      int event = is_lost ? RDMALLOC_DOMAIN_LOST : RDMALLOC_DOMAIN_RESUMED;
      require(is_lost || is_table_open, "%s: its device is not open", what);
      require(last_event == event || last_event == 0, "%s: its event is %d", what, last_event);
    }
  }
  require(!is_any_lost || lost != 0, "%s: no domain is lost", what);
}

void require_quiesced() {
  rdmalloc_test::wait_for_threads(threads_at_first);
  std::uint64_t kept = counter("stats.quarantined_ranges");
  // A ring's exit is the kernel's to finish.
  while (status_kib("VmPin") != 0) usleep(1000);
  Held now = held();
  require(now.descriptors == descriptors_at_first, "quiesced, with %d descriptors",
          now.descriptors);
  require(now.pinned_kib == 0, "quiesced, with %zu KiB pinned", now.pinned_kib);
  require(registered_with_table <= static_cast<int>(kept) && !is_table_open &&
              last_event == RDMALLOC_DOMAIN_CLOSE,
          "quiesced, with %d registrations, after event %d", registered_with_table.load(),
          last_event);
  void* block = allocate(100);
  for (rdmalloc_domain* domain : open_domains) {
    rdmalloc_reg* reg = nullptr;
    require(rdmalloc_reg_get(domain, block, 100, RDMALLOC_ACCESS_LOCAL, &reg) == -EAGAIN,
            "quiesced, and something is registered");
  }
  require(rdmalloc_purge(0) == -EBUSY, "quiesced, and something is purged");
  rdmalloc_free(block);
}

// Whether the resume brought everything back. Where it did not, a domain is lost, and only that.
bool quiesce_and_resume(rdmalloc_heap* heap, void* block) {
  Held before;
  std::uint64_t fired = 0;
  std::size_t kept_kib = 0;
  bool had_userfault = false;
  attempt("a quiesce", [&] {
    drop_idle();
    had_userfault = has_userfault();
    before = held();
    fired = os::faults_fired();
    kept_kib = counter("stats.quarantined_bytes") / 1024;
    last_event = 0;  // so it stays where the failure comes before PREPARE
    int error = rdmalloc_quiesce(-1);
    if (error != 0) require_open(heap, block, false, "after a quiesce that failed");
    return error;
  });
  require_quiesced();
  // Locked pages that could not be unlocked hinder no checkpoint, and are kept no more.
  std::size_t still_kept_kib = counter("stats.quarantined_bytes") / 1024;
  if (kept_kib > still_kept_kib) forgotten_kib += kept_kib - still_kept_kib;
  int error = rdmalloc_resume();
  bool is_calm = os::faults_fired() == fired;
  require(error == 0 || (error < 0 && !is_calm), "resuming without a fault: %d", error);
  require_open(heap, block, error != 0, "after the resume");
  require(rdmalloc_resume() == -EALREADY, "a second resume");
  if (!had_userfault && has_userfault()) {  // refused before, it has begun now
    before.descriptors += 3;
    before.threads += 2;
  }
  if (is_calm) require_as_before(before, "after the resume");
  return error == 0;
}

void use_quiesce() {
  bool is_whole = false;
  for (int tries = 0; tries < 2 && !is_whole; ++tries) {
    rdmalloc_heap_attr attr = registered_heap_attr();
    rdmalloc_heap* heap = nullptr;
    attempt("a heap to quiesce", [&] { return rdmalloc_heap_create(&attr, &heap); });
    rdmalloc_pool_attr of_pool = {};
    of_pool.size = sizeof of_pool;
    of_pool.small_count = 8;
    of_pool.large_count = 2;
    rdmalloc_pool* pool = nullptr;
    attempt("a pool to quiesce", [&] {
      return rdmalloc_pool_create(open_domains.data(), open_domains.size(), &of_pool, &pool);
    });
    is_whole = quiesce_and_resume(heap, rdmalloc_heap_malloc(heap, 3000));
    attempt("destroying that pool", [&] { return rdmalloc_pool_destroy(pool); });
    attempt("destroying that heap", [&] { return rdmalloc_heap_destroy(heap); });
    if (is_whole) continue;
    close_all();
    open_all();
  }
  require(is_whole, "a second quiesce and resume failed too");
}

// ---- rounds ----

void purge() {
  std::int64_t bytes = rdmalloc_purge(0);
  require(bytes >= 0, "purge: %ld", static_cast<long>(bytes));
}

void round(Held* left) {
  attempt("init", rdmalloc_init);
  visit_processors();
  use_malloc(1);
  use_heaps();
  use_threads();
  open_all();
  use_registrations();
  use_adopted();
  use_registered_heap();
  use_pool();
  use_prefault();
  use_quiesce();
  use_fork();
  purge();
  print_statistics();
  close_all();
  use_malloc(2);
  rdmalloc_malloc_trim(0);
  purge();
  attempt("fini", rdmalloc_fini);
  require(rdmalloc_fini() == -EALREADY, "a second fini");
  // Safe after it, and it starts no thread.
  rdmalloc_free(allocate(100));
  rdmalloc_test::wait_for_threads(threads_at_first);
  std::uint64_t kept = counter("stats.quarantined_ranges");
  require(registered_with_table <= static_cast<int>(kept), "%d registrations are left",
          registered_with_table.load());
  *left = held();
  if (!kIsSanitized) count_mappings(left);
}

// A failure may put what is kept elsewhere, and cut or join what lies side by side: it is the bytes
// that count.
void compare_mappings(const Held& now, const Held& before) {
  std::size_t bytes = mapped_bytes(now), bytes_before = mapped_bytes(before);
  if (require(bytes == bytes_before, "%zu bytes are mapped, before it were %zu; new:", bytes,
              bytes_before))
    return;
  for (const std::string& line : now.mappings)
    if (std::find(before.mappings.begin(), before.mappings.end(), line) == before.mappings.end())
      std::printf("  %s", line.c_str());
}

void compare(const Held& now, const Held& before) {
  std::size_t kept_kib = counter("stats.quarantined_bytes") / 1024;
  require(now.descriptors == before.descriptors, "%d descriptors are left, before it were %d",
          now.descriptors, before.descriptors);
  require(now.threads == before.threads, "%d threads are left, before it were %d", now.threads,
          before.threads);
  require(now.pinned_kib == before.pinned_kib, "%zu KiB stay pinned, before it were %zu",
          now.pinned_kib, before.pinned_kib);
  kept_kib += now.forgotten_kib - before.forgotten_kib;
  require(now.locked_kib <= before.locked_kib + kept_kib, "%zu KiB stay locked, before it were %zu",
          now.locked_kib, before.locked_kib);
  compare_mappings(now, before);
}

int start() {
  Held first, second, third;
  where = "first round";
  round(&first);
  std::uint64_t fired = os::faults_fired();
  where = "second round";
  round(&second);
  where = "third round";
  round(&third);
  compare(third, second);
  rdmalloc_watch_counters watch = {};
  watch.size = sizeof watch;
  rdmalloc_watch_stats(&watch);
  if (rdmalloc_test::userfaultfd_error() != 0)
    std::printf("SKIP: no userfaultfd here: error %ld\n", static_cast<long>(watch.error));
  std::printf("fired %lu\n", static_cast<unsigned long>(fired));
  return mistakes == 0 ? 0 : 1;
}

void with_fault(os::Site site, std::uint64_t n, Held* left) {
  os::arm_fault(site, n);
  round(left);
  os::arm_fault(site, 0);
}

int warm(os::Site site, bool is_whole) {
  Held before, left;
  where = "without a fault";
  round(&before);
  round(&before);
  unsigned long fired = 0;
  for (std::uint64_t n = 1; mistakes == 0;) {
    where = std::string(os::site_name(site)) + ":" + std::to_string(n);
    std::uint64_t fired_before = os::faults_fired();
    with_fault(site, n, &left);
    if (os::faults_fired() == fired_before) break;
    ++fired;
    // A failure may be the first to need a table, which is kept for the next. Not for each.
    for (int again = 0; again < 2 && mapped_bytes(left) != mapped_bytes(before); ++again) {
      before = left;
      with_fault(site, n, &left);
    }
    compare(left, before);
    n += is_whole ? 1 : n;
  }
  std::printf("fired %lu\n", fired);
  return mistakes == 0 ? 0 : 1;
}

// What a registration of mlock's counts against.
bool may_lock_enough() {
  if (geteuid() == 0) return true;
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur >= 32 * kMiB) return true;
  std::printf("SKIP: no mlock here: RLIMIT_MEMLOCK leaves it no room\n");
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::string how = argc > 1 ? argv[1] : "";
  if (how == "sites") {
    for (int i = 0; i < static_cast<int>(os::Site::kCount); ++i)
      std::printf("%s\n", os::site_name(static_cast<os::Site>(i)));
    return 0;
  }
  threads_at_first = rdmalloc_test::settled_thread_count();
  descriptors_at_first = held().descriptors;
  if (kIsSanitized) std::printf("SKIP: no mlock here: the sanitizer's does nothing\n");
  may_lock = !kIsSanitized && may_lock_enough();
  has_uring = rdmalloc_test::io_uring_error() == 0;
  if (!has_uring) std::printf("SKIP: no io_uring here\n");
  if (how == "start") return start();
  os::Site site = argc > 3 ? os::site_named(argv[2], std::strlen(argv[2])) : os::Site::kCount;
  if (how == "warm" && site != os::Site::kCount) return warm(site, std::string(argv[3]) == "all");
  std::fprintf(stderr, "usage: fault_program sites|start|warm SITE few|all\n");
  return 2;
}
