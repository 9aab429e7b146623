// SPDX-License-Identifier: BSD-3-Clause
//
// MPI-4 sessions one after the other: each initialises MPI, makes a communicator of all processes,
// broadcasts from fresh buffers, and finalises.
//
//   sessions CYCLES BROADCASTS BYTES GAP_MS [outer] [put]
//
// outer: inside a session that lasts from the first to the last, so that MPI itself stays
// initialised. put: rank 0 also puts each broadcast's bytes into a window of rank 1's, which Open
// MPI does by a btl. Rank 0 prints a line for each cycle, of names and numbers:
//   cycle, wrong                     bytes, of all ranks
//   registrations, deregistrations   of rank 0 in this cycle, by standing in front of libibverbs'
//                                    functions (0 without a device)
//   notified, attached, attaches     OPAL's notifier: its ranges and times attached in this cycle,
//                                    whether it is attached after it
//   own_misses, own_hits, own_live   a domain of rdmalloc's own cache, open in this cycle only:
//                                    calls that registered, calls that did not, registrations
//                                    before the close
//   purges_seen                      by an observer that is added and removed in this cycle
//   live_bytes, rss_kib, mappings, mappings_of_blocks, fds, threads
//                                    of the process, after the session (process_state.h)
//   components, components_left      Open MPI's component files, during and after the session
// What is rdmalloc's is 0 without it. Compiled with the headers of any Open MPI: what sessions need
// is found at run time.
#include <dlfcn.h>
#include <mpi.h>
#include <rdmalloc/notifier.h>
#include <rdmalloc/regcache.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "tests/lab/programs/meeting.h"
#include "tests/lab/programs/process_state.h"

namespace {

std::atomic<uint64_t> registrations{0}, deregistrations{0};

// libibverbs' own, wherever it was loaded.
void* real(const char* name, const char* version) {
  void* library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  void* function = library == nullptr ? nullptr : dlvsym(library, name, version);
  if (function == nullptr) abort();
  return function;
}

}  // namespace

namespace {
// The one calls the other in some releases: what is asked for once counts once.
thread_local int depth = 0;
struct Counted {
  explicit Counted(std::atomic<uint64_t>& counter) {
    if (depth++ == 0) counter++;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { depth--; }
};
}  // namespace

// The program's definitions come before every library's.
extern "C" {
void* ibv_reg_mr(void* pd, void* address, size_t length, int access) {
  static auto* next = reinterpret_cast<decltype(&ibv_reg_mr)>(real("ibv_reg_mr", "IBVERBS_1.1"));
  Counted counted(registrations);
  return next(pd, address, length, access);
}
void* ibv_reg_mr_iova2(void* pd, void* address, size_t length, uint64_t iova, unsigned access) {
  static auto* next =
      reinterpret_cast<decltype(&ibv_reg_mr_iova2)>(real("ibv_reg_mr_iova2", "IBVERBS_1.8"));
  Counted counted(registrations);
  return next(pd, address, length, iova, access);
}
int ibv_dereg_mr(void* region) {
  static auto* next =
      reinterpret_cast<decltype(&ibv_dereg_mr)>(real("ibv_dereg_mr", "IBVERBS_1.1"));
  Counted counted(deregistrations);
  return next(region);
}
}

namespace {

// mpi.h of MPI 4; a session is a pointer in Open MPI.
using Session = void*;
using SessionInit = int (*)(MPI_Info, MPI_Errhandler, Session*);
using GroupFromPset = int (*)(Session, const char*, MPI_Group*);
using CommFromGroup = int (*)(MPI_Group, const char*, MPI_Info, MPI_Errhandler, MPI_Comm*);
using SessionFinalize = int (*)(Session*);

template <typename Function>
Function find(const char* name) {
  auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  if (function == nullptr) {
    fprintf(stderr, "sessions: this MPI has no %s\n", name);
    exit(2);
  }
  return function;
}

// rdmalloc's, or nullptr without it.
template <typename Function>
Function* rdmallocs(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}
#define RDMALLOCS(function) rdmallocs(&(function), #function)

rdmalloc_notifier_info opal_state() {
  rdmalloc_notifier_info info = {};
  info.size = sizeof info;
  if (auto* state = RDMALLOCS(rdmalloc_notifier_state)) state(RDMALLOC_NOTIFIER_OPAL, &info);
  return info;
}

void purge() {
  if (auto* function = RDMALLOCS(rdmalloc_purge)) function(0);
}

// rdmalloc's own registration cache, over a device that registers everything, and an observer. Each
// session has a new one: 64 domains or 16 observers that were not really given back would be the
// end.
class OwnCache {
 public:
  OwnCache() {
    auto* open = RDMALLOCS(rdmalloc_domain_open);
    auto* observe = RDMALLOCS(rdmalloc_observer_add);
    if (open == nullptr || observe == nullptr) return;
    rdmalloc_registrar_ops registrar = {};
    registrar.size = sizeof registrar;
    registrar.name = "sessions";
    registrar.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
    registrar.register_ = [](void*, void*, size_t, uint32_t, rdmalloc_key*) { return 0; };
    registrar.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
    must(open(&registrar, nullptr, nullptr, &domain_), "rdmalloc_domain_open");
    rdmalloc_observer_ops observer = {};
    observer.size = sizeof observer;
    observer.purge = [](void* count, void*, size_t, rdmalloc_purge_reason) {
      ++*static_cast<std::atomic<uint64_t>*>(count);
      return 0;
    };
    must(observe(&observer, &purges_, &observer_), "rdmalloc_observer_add");
  }
  OwnCache(const OwnCache&) = delete;
  OwnCache& operator=(const OwnCache&) = delete;
  ~OwnCache() {
    if (domain_ == nullptr) return;
    must(RDMALLOCS(rdmalloc_observer_remove)(observer_), "rdmalloc_observer_remove");
    must(RDMALLOCS(rdmalloc_domain_close)(domain_), "rdmalloc_domain_close");
  }

  // As a transport that registers what it sends, and sends it twice.
  void use(const void* buffer, size_t bytes) {
    if (domain_ == nullptr) return;
    for (int i = 0; i < 2; i++) {
      rdmalloc_reg* registration = nullptr;
      must(
          RDMALLOCS(rdmalloc_reg_get)(domain_, buffer, bytes, RDMALLOC_ACCESS_LOCAL, &registration),
          "rdmalloc_reg_get");
      RDMALLOCS(rdmalloc_reg_put)(registration);
    }
  }

  rdmalloc_domain_counters counters() const {
    rdmalloc_domain_counters counters = {};
    counters.size = sizeof counters;
    if (domain_ != nullptr)
      must(RDMALLOCS(rdmalloc_domain_stats)(domain_, &counters), "rdmalloc_domain_stats");
    return counters;
  }
  uint64_t purges() const { return purges_; }

 private:
  static void must(int error, const char* what) {
    if (error == 0) return;
    fprintf(stderr, "sessions: %s: %s\n", what, strerror(-error));
    exit(3);
  }

  rdmalloc_domain* domain_ = nullptr;
  rdmalloc_observer* observer_ = nullptr;
  std::atomic<uint64_t> purges_{0};
};

struct Job {
  uint64_t cycles = 0, broadcasts = 0;
  size_t bytes = 0;
  unsigned gap_ms = 0;
  bool is_inside_outer = false, puts = false;
};

// What one session saw, at this rank but for `wrong`.
struct Seen {
  bool is_rank_0 = false;
  uint64_t ranks = 0;
  uint64_t wrong = 0;
  rdmalloc_domain_counters own = {};
  uint64_t purges = 0;
  size_t components = 0;
};

unsigned char expected(uint64_t cycle, uint64_t broadcast, size_t at) {
  return static_cast<unsigned char>(cycle * 31 + broadcast * 131 + at * 7 + (at >> 12u));
}

void fill(unsigned char* buffer, size_t bytes, uint64_t cycle, uint64_t number, bool is_right) {
  for (size_t i = 0; i < bytes; i++) {
    unsigned char right = expected(cycle, number, i);
    buffer[i] = is_right ? right : static_cast<unsigned char>(~right);
  }
}

uint64_t wrong_in(const unsigned char* buffer, size_t bytes, uint64_t cycle, uint64_t number) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < bytes; i++) wrong += buffer[i] != expected(cycle, number, i);
  return wrong;
}

// From `source` at rank 0 to a new window of rank 1.
uint64_t put(MPI_Comm comm, unsigned char* source, size_t bytes, uint64_t cycle, uint64_t number) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  unsigned char* memory = nullptr;
  MPI_Win window = MPI_WIN_NULL;
  MPI_Win_allocate(static_cast<MPI_Aint>(bytes), 1, MPI_INFO_NULL, comm, &memory, &window);
  fill(memory, bytes, cycle, number, false);
  MPI_Win_fence(0, window);
  int count = static_cast<int>(bytes);
  if (rank == 0) MPI_Put(source, count, MPI_BYTE, 1, 0, count, MPI_BYTE, window);
  MPI_Win_fence(0, window);
  uint64_t wrong = rank == 1 ? wrong_in(memory, bytes, cycle, number) : 0;
  MPI_Win_free(&window);
  return wrong;
}

uint64_t broadcast_fresh(MPI_Comm comm, const Job& job, uint64_t cycle, uint64_t number,
                         OwnCache* own) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  int root = static_cast<int>(number % static_cast<uint64_t>(size));
  auto* buffer = static_cast<unsigned char*>(malloc(job.bytes));
  if (buffer == nullptr) abort();
  own->use(buffer, job.bytes);
  // Receivers write too: what is left of an earlier one must not pass for this one's.
  fill(buffer, job.bytes, cycle, number, rank == root);
  MPI_Bcast(buffer, static_cast<int>(job.bytes), MPI_BYTE, root, comm);
  uint64_t wrong = wrong_in(buffer, job.bytes, cycle, number);
  if (job.puts) wrong += put(comm, buffer, job.bytes, cycle, number);
  free(buffer);
  return wrong;
}

void session(const Job& job, uint64_t cycle, Seen* seen) {
  OwnCache own;
  Session handle = nullptr;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  find<SessionInit>("MPI_Session_init")(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &handle);
  find<GroupFromPset>("MPI_Group_from_session_pset")(handle, "mpi://WORLD", &group);
  find<CommFromGroup>("MPI_Comm_create_from_group")(group, "rdmalloc.sessions", MPI_INFO_NULL,
                                                    MPI_ERRORS_ARE_FATAL, &comm);
  MPI_Group_free(&group);
  uint64_t mine = 0, all = 0;
  for (uint64_t i = 0; i < job.broadcasts; i++) mine += broadcast_fresh(comm, job, cycle, i, &own);
  // Between two broadcasts no rank transfers, so this thread may purge: the notifier must be there.
  purge();
  mine += broadcast_fresh(comm, job, cycle, job.broadcasts, &own);
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, comm);
  seen->is_rank_0 = rank == 0;
  seen->ranks = static_cast<uint64_t>(size);
  seen->wrong = all;
  seen->own = own.counters();
  seen->purges = own.purges();
  seen->components = lab::mappings().components;
  MPI_Comm_free(&comm);
  find<SessionFinalize>("MPI_Session_finalize")(&handle);
}

void print(const char* name, uint64_t value) {
  printf("%s %llu ", name, static_cast<unsigned long long>(value));
}

// PMIx 5 sometimes hands a session the address that another rank had in an earlier one, under glibc
// as well: libfabric then tries for ever to connect to a port without a listener. So each rank
// listens at a port of its own, the same in every session.
void keep_one_port() {
  constexpr int kFirstPort = 20100;  // below those that the kernel gives to connections
  const char* rank = getenv("PMIX_RANK");
  char port[16];
  snprintf(port, sizeof port, "%d", kFirstPort + (rank == nullptr ? 0 : atoi(rank)));
  setenv("FI_TCP_PORT_LOW_RANGE", port, 1);
  setenv("FI_TCP_PORT_HIGH_RANGE", port, 1);
}

// Counted before anything is printed, so that the first line's buffer is not in it.
void report(uint64_t cycle, const Seen& seen, uint64_t registered, uint64_t deregistered,
            const rdmalloc_notifier_info& before) {
  rdmalloc_notifier_info after = opal_state();
  lab::Mappings mappings = lab::mappings();
  size_t live = lab::live_bytes();
  long rss = lab::rss_kib();
  int files = lab::open_files(), threads = lab::threads();
  print("cycle", cycle);
  print("wrong", seen.wrong);
  print("registrations", registrations - registered);
  print("deregistrations", deregistrations - deregistered);
  print("notified", after.notified - before.notified);
  print("attached", after.is_attached);
  print("attaches", after.attaches - before.attaches);
  print("own_misses", seen.own.misses);
  print("own_hits", seen.own.hits);
  print("own_live", seen.own.live_count);
  print("purges_seen", seen.purges);
  print("live_bytes", live);
  print("rss_kib", static_cast<uint64_t>(rss));
  print("mappings", static_cast<uint64_t>(mappings.count));
  print("mappings_of_blocks", static_cast<uint64_t>(mappings.of_blocks));
  print("fds", static_cast<uint64_t>(files));
  print("threads", static_cast<uint64_t>(threads));
  print("components", seen.components);
  print("components_left", mappings.components);
  putchar('\n');
  fflush(stdout);
}

bool parse(int argc, char** argv, Job* job) {
  if (argc < 5) return false;
  job->cycles = strtoull(argv[1], nullptr, 10);
  job->broadcasts = strtoull(argv[2], nullptr, 10);
  job->bytes = strtoull(argv[3], nullptr, 10);
  job->gap_ms = static_cast<unsigned>(strtoul(argv[4], nullptr, 10));
  for (int i = 5; i < argc; i++) {
    if (strcmp(argv[i], "outer") == 0)
      job->is_inside_outer = true;
    else if (strcmp(argv[i], "put") == 0)
      job->puts = true;
    else
      return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Job job;
  if (!parse(argc, argv, &job)) {
    fprintf(stderr, "sessions: wanted CYCLES BROADCASTS BYTES GAP_MS [outer] [put]\n");
    return 2;
  }
  keep_one_port();
  lab::Meeting meeting;
  uint64_t all_wrong = 0;
  Session outer = nullptr;
  if (job.is_inside_outer)
    find<SessionInit>("MPI_Session_init")(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &outer);
  for (uint64_t cycle = 1; cycle <= job.cycles; cycle++) {
    uint64_t registered = registrations, deregistered = deregistrations;
    rdmalloc_notifier_info before = opal_state();
    Seen seen;
    session(job, cycle, &seen);
    all_wrong += seen.wrong;
    meeting.wait_for(seen.ranks);
    // What is counted below shall not have pages that would go by themselves, in five seconds.
    purge();
    if (seen.is_rank_0) report(cycle, seen, registered, deregistered, before);
    usleep(job.gap_ms * 1000);
  }
  if (job.is_inside_outer) find<SessionFinalize>("MPI_Session_finalize")(&outer);
  return all_wrong != 0;
}
