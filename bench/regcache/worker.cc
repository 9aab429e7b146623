// regcache_worker: what a look-up in the registration cache costs, beside UCX's cache and beside
// the floors under both, all in one process and in turn. regcache_compare runs it; by hand:
//
//   regcache_worker [--regions N,N…] [--threads N,N…] [--rounds N] [--least N]
//   regcache_worker --regions N,N… --only-changes 1
//   regcache_worker --footprint N
//
// Prints a JSON object a line: "about"; for each number of regions a "row" for each number of
// threads and order, "counts" and "changes"; or "footprint", in a process of its own, since memory
// of earlier registrations would be used again.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "bench/regcache/memory.h"
#include "bench/regcache/stub_domain.h"
#include "bench/regcache/team.h"
#include "bench/regcache/ucx_cache.h"
#include "bench/support/resident.h"
#include "bench/support/statistics.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct Options {
  std::vector<std::size_t> regions = {1, 64, 1000, 16'000, 100'000};
  std::vector<std::size_t> threads = {1, 2, 4};
  int rounds = 5;              // times that each subject has its turn; the median counts
  std::size_t least = 32'768;  // operations of a thread in a turn; at least all of its share
  bool only_changes = false;
  std::size_t footprint = 0;  // registrations to be weighed instead of all that; 0: none
};

// The compiler must make the value, and knows nothing of it afterwards.
inline std::uint64_t opaque(std::uint64_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// ---- the subjects: each takes an address, and returns a number that depends on what it found.

struct Load {
  std::uint64_t operator()(void* at) const {
    return static_cast<Line*>(at)->word.load(std::memory_order_relaxed);
  }
};

// Two read-modify-writes are what a count of holders costs at least.
struct CountUpAndDown {
  std::uint64_t operator()(void* at) const {
    auto& word = static_cast<Line*>(at)->word;
    word.fetch_add(1, std::memory_order_acquire);
    return word.fetch_sub(1, std::memory_order_release) - 1;
  }
};

struct Key {
  rdmalloc_domain* domain;
  std::uint64_t operator()(void* at) const {
    rdmalloc_key key;
    if (rdmalloc_reg_key(domain, at, kAskedBytes, RDMALLOC_ACCESS_LOCAL, &key) != 0)
      give_up("rdmalloc_reg_key failed");
    return key.lkey;
  }
};

struct GetPut {
  rdmalloc_domain* domain;
  std::uint64_t operator()(void* at) const {
    rdmalloc_reg* registration = nullptr;
    if (rdmalloc_reg_get(domain, at, kAskedBytes, RDMALLOC_ACCESS_LOCAL, &registration) != 0)
      give_up("rdmalloc_reg_get failed");
    rdmalloc_key key;
    rdmalloc_reg_key_of(registration, &key);
    rdmalloc_reg_put(registration);
    return key.lkey;
  }
};

#ifdef RDMALLOC_BENCH_HAS_UCX
struct UcxGetPut {
  UcxCache* cache;
  std::uint64_t operator()(void* at) const {
    ucs_rcache_region_t* region = cache->get(at, kAskedBytes);
    if (region == nullptr) give_up("ucs_rcache_get failed");
    const std::uint64_t found = region->priv;
    cache->put(region);
    return found;
  }
};
#endif

// The next address is not known before the result of the one before: what one look-up alone takes,
// where the processor can't begin the next one meanwhile.
template <typename Operation>
struct Chained : Operation {};

template <typename Operation>
void ask_all(const Addresses& share, Operation operation) {
  for (void* at : share) opaque(operation(at));
}
template <typename Operation>
void ask_all(const Addresses& share, Chained<Operation> operation) {
  const std::uint64_t nothing = opaque(0);
  std::uint64_t last = 0;
  for (void* at : share) last = operation(static_cast<char*>(at) + (last & nothing));
  opaque(last);
}

// ---- measuring

struct Turn {
  double ns;            // of one operation, the mean of the threads
  std::uint64_t asked;  // operations of all threads, those before the clock started included
};

// Each thread goes through its share once, then until it has done `least` with the clock running;
// where there are several orders, each pass by another.
// `operation_of(thread)` is what it does.
template <typename OperationOf>
Turn take_turn(Team& team, const std::vector<Share>& shares, std::size_t least,
               OperationOf operation_of) {
  std::vector<double> ns(shares.size());
  std::atomic<std::uint64_t> asked{0};
  team.run([&](int thread) {
    const Share& orders = shares[static_cast<std::size_t>(thread)];
    const std::size_t size = orders.front().size();
    const auto operation = operation_of(thread);
    const std::size_t passes = (least + size - 1) / size;
    ask_all(orders.front(), operation);
    team.meet();
    const double begin = now_ns();
    for (std::size_t pass = 1; pass <= passes; ++pass)
      ask_all(orders[pass % orders.size()], operation);
    ns[static_cast<std::size_t>(thread)] = (now_ns() - begin) / static_cast<double>(passes * size);
    asked.fetch_add((passes + 1) * size, std::memory_order_relaxed);
  });
  double sum = 0;
  for (const double one : ns) sum += one;
  return {sum / static_cast<double>(ns.size()), asked.load()};
}

// Everything there is for one number of regions.
class Set {
 public:
  explicit Set(std::size_t count)
      : blocks_(count, kBlockBytes),
        foreign_(count, 2 * kAskedBytes, false),
        lines_(count, sizeof(Line), true),
        count_(count) {
    if (domain_.error() != 0 || foreign_domain_.error() != 0) give_up("no domain");
    if (rdmalloc_adopt(foreign_.base(), foreign_.bytes()) != 0) give_up("rdmalloc_adopt failed");
  }
  ~Set() { rdmalloc_disown(foreign_.base(), foreign_.bytes()); }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;

  void measure_hits(const Options& options, int threads, bool is_random);
  void measure_changes(const Options& options);
  void measure_refusals(int rounds, class Clock& clock);
  void measure_adoption(int rounds, class Clock& clock);
  void say_counts() const;

 private:
  Blocks blocks_;
  Mapping foreign_;
  Mapping lines_;
  std::size_t count_;
  StubDomain domain_;
  StubDomain foreign_domain_;
  std::uint64_t gets_ = 0;
  std::uint64_t foreign_gets_ = 0;
#ifdef RDMALLOC_BENCH_HAS_UCX
  UcxCache ucx_;
  std::uint64_t ucx_gets_ = 0;
#endif
};

void Set::measure_hits(const Options& options, int threads, bool is_random) {
  Team team(threads);
  const auto owned = shares_of(blocks_.addresses(), threads, is_random);
  const auto foreign = shares_of(foreign_.addresses(), threads, is_random);
  const auto lines = shares_of(lines_.addresses(), threads, is_random);
  // A domain for each thread: the same work, and nothing shared but the program.
  std::vector<StubDomain> apart(static_cast<std::size_t>(threads));
  for (const StubDomain& domain : apart)
    if (domain.error() != 0) give_up("no domain");

  const auto turn = [&](const std::vector<Share>& shares, auto operation) {
    return take_turn(team, shares, options.least, [&](int) { return operation; });
  };
  struct Subject {
    std::string name;
    std::function<double()> measure;
    std::vector<double> ns;
  };
  std::vector<Subject> subjects = {
      {"load", [&] { return turn(lines, Load{}).ns; }, {}},
      {"key", [&] { return turn(owned, Key{domain_.get()}).ns; }, {}},
      {"load_chained", [&] { return turn(lines, Chained<Load>{}).ns; }, {}},
      {"key_chained", [&] { return turn(owned, Chained<Key>{{domain_.get()}}).ns; }, {}},
      {"count", [&] { return turn(lines, CountUpAndDown{}).ns; }, {}},
      {"get_put",
       [&] {
         const Turn done = turn(owned, GetPut{domain_.get()});
         gets_ += done.asked;
         return done.ns;
       },
       {}},
      {"get_put_apart",
       [&] {
         const auto domain_of = [&](int thread) {
           return GetPut{apart[static_cast<std::size_t>(thread)].get()};
         };
         return take_turn(team, owned, options.least, domain_of).ns;
       },
       {}},
      {"foreign",
       [&] {
         const Turn done = turn(foreign, GetPut{foreign_domain_.get()});
         foreign_gets_ += done.asked;
         return done.ns;
       },
       {}},
  };
#ifdef RDMALLOC_BENCH_HAS_UCX
  if (ucx_.problem().empty())
    subjects.push_back({"ucx",
                        [&] {
                          const Turn done = turn(owned, UcxGetPut{&ucx_});
                          ucx_gets_ += done.asked;
                          return done.ns;
                        },
                        {}});
#endif
  for (int round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < subjects.size(); ++i) {
      Subject& subject = subjects[(i + static_cast<std::size_t>(round)) % subjects.size()];
      subject.ns.push_back(subject.measure());
    }
  json row = {{"type", "row"},
              {"regions", count_},
              {"threads", threads},
              {"order", is_random ? "random" : "sequential"}};
  for (const Subject& subject : subjects) row["ns"][subject.name] = median(subject.ns);
  fmt::print("{}\n", row.dump());
}

void Set::say_counts() const {
  const auto ours = [](const StubDomain& domain, std::uint64_t gets) {
    const rdmalloc_domain_counters counters = domain.counters();
    return json{{"gets", gets},
                {"hits", counters.hits},
                {"misses", counters.misses},
                {"registrations", counters.registrations}};
  };
  json counts = {{"type", "counts"},
                 {"regions", count_},
                 {"owned", ours(domain_, gets_)},
                 {"foreign", ours(foreign_domain_, foreign_gets_)}};
#ifdef RDMALLOC_BENCH_HAS_UCX
  if (ucx_.problem().empty())
    counts["ucx"] = {{"gets", ucx_gets_}, {"registrations", ucx_.registrations()}};
#endif
  fmt::print("{}\n", counts.dump());
}

constexpr std::size_t kBatch = 256;

// The time of each of `steps`, in ns for one address, the median over the rounds.
class Clock {
 public:
  template <typename Step>
  void time(const std::string& name, const Addresses& batch, Step step) {
    const double begin = now_ns();
    for (std::size_t i = 0; i < batch.size(); ++i) step(i, batch[i]);
    ns_[name].push_back((now_ns() - begin) / static_cast<double>(batch.size()));
  }
  json medians() const {
    json all;
    for (const auto& [name, ns] : ns_) all[name] = median(ns);
    return all;
  }

 private:
  std::map<std::string, std::vector<double>> ns_;
};

// What a call costs that a full limit refuses: each registration is held, or has given out a key of
// a live block. `first`: the first after all of them were found by hits.
void Set::measure_refusals(int rounds, Clock& clock) {
  StubDomain held_domain(0, count_);
  StubDomain key_domain(0, (4 * count_ + 2) / 3);
  Blocks more(kBatch, kBlockBytes);
  if (held_domain.error() != 0 || key_domain.error() != 0) give_up("no domain");
  ask_all(blocks_.addresses(), GetPut{held_domain.get()});
  std::vector<rdmalloc_reg*> held(count_);
  std::vector<void*> blocks = blocks_.addresses();
  rdmalloc_key key;
  for (std::size_t i = 0; i < count_; ++i) {
    if (rdmalloc_reg_get(held_domain.get(), blocks[i], kAskedBytes, RDMALLOC_ACCESS_LOCAL,
                         &held[i]) != 0)
      give_up("rdmalloc_reg_get failed");
    rdmalloc_reg_key(key_domain.get(), blocks[i], kAskedBytes, RDMALLOC_ACCESS_LOCAL, &key);
  }
  const auto get = [&](std::size_t, void* at) {
    rdmalloc_reg* none = nullptr;
    if (rdmalloc_reg_get(held_domain.get(), at, kAskedBytes, RDMALLOC_ACCESS_LOCAL, &none) !=
        -ENOMEM)
      give_up("a get was not refused");
  };
  const auto ask_key = [&](std::size_t, void* at) {
    if (rdmalloc_reg_key(key_domain.get(), at, kAskedBytes, RDMALLOC_ACCESS_LOCAL, &key) != -ENOMEM)
      give_up("a key was not refused");
  };
  Addresses batch = more.addresses();
  clock.time("refused_get_first", {batch.front()}, get);
  batch.resize(count_ > 10'000 ? 16 : kBatch);  // so that a cliff shows, and ends
  for (int round = 0; round < rounds; ++round) {
    clock.time("refused_get", batch, get);
    clock.time("refused_key", batch, ask_key);
  }
  for (rdmalloc_reg* one : held) rdmalloc_reg_put(one);
}

// Adopting a page and disowning it, beside as many ranges that stay.
void Set::measure_adoption(int rounds, Clock& clock) {
  const Mapping apart(count_ + kBatch, 2 * kAskedBytes, false);
  Addresses all = apart.addresses(), batch(all.end() - kBatch, all.end());
  all.resize(count_);
  // In the middle of the others, so that a table has half of itself to move.
  for (std::size_t i = 0; i < kBatch; ++i)
    std::swap(batch[i], all[(i * 7919 + count_ / 2) % count_]);
  for (void* at : all)
    if (rdmalloc_adopt(at, kAskedBytes) != 0) give_up("rdmalloc_adopt failed");
  for (int round = 0; round < rounds; ++round) {
    clock.time("adopt", batch, [](std::size_t, void* at) { rdmalloc_adopt(at, kAskedBytes); });
    clock.time("disown", batch, [](std::size_t, void* at) { rdmalloc_disown(at, kAskedBytes); });
  }
  for (void* at : all) rdmalloc_disown(at, kAskedBytes);
}

// Invalidating ranges and registering them again, one thread, random ones of all. The stubs behind
// both caches do nothing, so what remains is beside the registration and the deregistration.
void Set::measure_changes(const Options& options) {
  Addresses batch = shares_of(blocks_.addresses(), 1, true).front().front();
  batch.resize(std::min(batch.size(), kBatch));
  Clock clock;
  std::uint64_t invalidated = 0;
  ask_all(blocks_.addresses(), GetPut{domain_.get()});  // where no hits were measured before
  for (int round = 0; round < 4 * options.rounds; ++round) {
    // As UCX's below, whose regions are asked for before.
    ask_all(batch, GetPut{domain_.get()});
    clock.time("invalidate", batch, [&](std::size_t, void* at) {
      if (rdmalloc_invalidate(domain_.get(), at, kAskedBytes, nullptr, nullptr) == 1) ++invalidated;
    });
    clock.time("register", batch, [&](std::size_t, void* at) { GetPut{domain_.get()}(at); });
#ifdef RDMALLOC_BENCH_HAS_UCX
    if (!ucx_.problem().empty()) continue;
    std::vector<ucs_rcache_region_t*> held;
    for (void* at : batch) held.push_back(ucx_.get(at, kAskedBytes));
    clock.time("ucx_invalidate", batch, [&](std::size_t i, void*) {
      ucx_.invalidate(held[i]);
      ucx_.put(held[i]);
    });
    clock.time("ucx_register", batch, [&](std::size_t, void* at) { UcxGetPut{&ucx_}(at); });
#endif
  }
  if (invalidated != batch.size() * 4 * static_cast<std::size_t>(options.rounds))
    give_up("not every rdmalloc_invalidate found its registration");
  measure_refusals(options.rounds, clock);
  measure_adoption(options.rounds, clock);
  fmt::print("{}\n",
             json{{"type", "changes"}, {"regions", count_}, {"ns", clock.medians()}}.dump());
}

// What registrations add to resident memory, each of a slice. Their own pages are never touched.
void measure_footprint(std::size_t count) {
  constexpr std::size_t kEach = 32'768;  // registrations in a block: blocks of 2 GiB
  const Blocks blocks((count + kEach - 1) / kEach, kEach * RDMALLOC_SLICE_BYTES);
  Addresses slices;
  for (void* block : blocks.addresses())
    for (std::size_t i = 0; i < kEach && slices.size() < count; ++i)
      slices.push_back(static_cast<char*>(block) + i * RDMALLOC_SLICE_BYTES);
  const StubDomain domain(RDMALLOC_SLICE_BYTES);
  if (domain.error() != 0) give_up("no domain");
  const auto bytes_each = [&](auto operation) {
    const std::uint64_t before = resident_bytes();
    ask_all(slices, operation);
    return static_cast<double>(resident_bytes() - before) / static_cast<double>(count);
  };
  json bytes = {{"rdmalloc", bytes_each(GetPut{domain.get()})}};
  json registrations = {{"rdmalloc", domain.counters().registrations}};
  const double begin = now_ns();
  domain.counters();
  const double statistics_ns = now_ns() - begin;
#ifdef RDMALLOC_BENCH_HAS_UCX
  UcxCache ucx;
  if (ucx.problem().empty()) {
    bytes["ucx"] = bytes_each(UcxGetPut{&ucx});
    registrations["ucx"] = ucx.registrations();
  }
#endif
  fmt::print("{}\n", json{{"type", "footprint"},
                          {"registrations", registrations},
                          {"bytes_each", bytes},
                          {"ns", {{"statistics", statistics_ns}}}}
                         .dump());
}

void say_about() {
  json about = {{"type", "about"}};
#ifdef RDMALLOC_BENCH_HAS_UCX
  const UcxCache ucx;
  if (ucx.problem().empty())
    about["ucx"] = UcxCache::version();
  else
    about["no_ucx"] = ucx.problem();
#else
  about["no_ucx"] = "not built: needs the headers of UCX 1.13 (apt install libucx-dev)";
#endif
  fmt::print("{}\n", about.dump());
}

// False: no list of numbers from 1 to `most`.
bool parse_list(const char* text, std::vector<std::size_t>& values, std::size_t most) {
  values.clear();
  for (const std::string& part : split_list(text)) {
    char* end = nullptr;
    values.push_back(std::strtoul(part.c_str(), &end, 10));
    if (*end != '\0' || values.back() == 0 || values.back() > most) return false;
  }
  return !values.empty();
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 == argc) return false;
    std::vector<std::size_t> one;
    bool is_good = false;
    if (name == "--regions") {
      is_good = parse_list(argv[i + 1], options.regions, 10'000'000);
    } else if (name == "--threads") {
      is_good = parse_list(argv[i + 1], options.threads, 64);
    } else if (parse_list(argv[i + 1], one, 100'000'000) && one.size() == 1) {
      is_good = true;
      if (name == "--rounds")
        options.rounds = static_cast<int>(one[0]);
      else if (name == "--least")
        options.least = one[0];
      else if (name == "--footprint")
        options.footprint = one[0];
      else if (name == "--only-changes")
        options.only_changes = one[0] != 0;
      else
        is_good = false;
    }
    if (!is_good) return false;
  }
  return true;
}

int run_worker(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs(
        "usage: regcache_worker [--regions N,N…] [--threads N,N…, at most 64] [--rounds N]\n"
        "                       [--least N]\n"
        "       regcache_worker --regions N,N… --only-changes 1\n"
        "       regcache_worker --footprint N\n",
        stderr);
    return 2;
  }
  say_about();
  if (options.footprint != 0) {
    measure_footprint(options.footprint);
    return 0;
  }
  for (const std::size_t regions : options.regions) {
    Set set(regions);
    for (const std::size_t threads : options.threads)
      for (const bool is_random : {true, false})
        if (!options.only_changes) set.measure_hits(options, static_cast<int>(threads), is_random);
    set.say_counts();
    set.measure_changes(options);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::run_worker(argc, argv);
}
