// SPDX-License-Identifier: BSD-3-Clause
//
// MPI-4 sessions one after the other: each initialises MPI, makes a communicator of all processes,
// broadcasts from fresh buffers, and finalises.
//
//   sessions CYCLES BROADCASTS BYTES GAP_MS [outer]
//
// outer: inside a session that lasts from the first to the last, so that MPI itself stays
// initialised. Rank 0 prints a line for each cycle,
//   cycle N wrong W registrations R deregistrations D told T attached A rss_kib K fds F
// R and D of rank 0 in this cycle, by standing in front of libibverbs' functions (0 without a
// device); T ranges told to OPAL in this cycle, A whether its notifier was attached, both 0 without
// rdmalloc. Compiled with the headers of any Open MPI: what sessions need is found at run time.
#include <dirent.h>
#include <dlfcn.h>
#include <mpi.h>
#include <rdmalloc/notifier.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <initializer_list>

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

rdmalloc_notifier_info opal_state() {
  rdmalloc_notifier_info info = {};
  info.size = sizeof info;
  auto state = reinterpret_cast<decltype(&rdmalloc_notifier_state)>(
      dlsym(RTLD_DEFAULT, "rdmalloc_notifier_state"));
  if (state != nullptr) state(RDMALLOC_NOTIFIER_OPAL, &info);
  return info;
}

void purge() {
  auto function =
      reinterpret_cast<decltype(&rdmalloc_purge)>(dlsym(RTLD_DEFAULT, "rdmalloc_purge"));
  if (function != nullptr) function(0);
}

unsigned char expected(uint64_t cycle, uint64_t broadcast, size_t at) {
  return static_cast<unsigned char>(cycle * 31 + broadcast * 131 + at * 7 + (at >> 12u));
}

uint64_t broadcast_fresh(MPI_Comm comm, uint64_t cycle, uint64_t number, size_t bytes) {
  int rank = 0, size = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  int root = static_cast<int>(number % static_cast<uint64_t>(size));
  auto* buffer = static_cast<unsigned char*>(malloc(bytes));
  if (buffer == nullptr) abort();
  // Receivers write too: what is left of an earlier one must not pass for this one's.
  for (size_t i = 0; i < bytes; i++)
    buffer[i] = rank == root ? expected(cycle, number, i)
                             : static_cast<unsigned char>(~expected(cycle, number, i));
  MPI_Bcast(buffer, static_cast<int>(bytes), MPI_BYTE, root, comm);
  uint64_t wrong = 0;
  for (size_t i = 0; i < bytes; i++) wrong += buffer[i] != expected(cycle, number, i);
  free(buffer);
  return wrong;
}

long rss_kib() {
  FILE* file = fopen("/proc/self/statm", "r");
  long pages = 0;
  if (file == nullptr || fscanf(file, "%*d %ld", &pages) != 1) abort();
  fclose(file);
  return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int open_files() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (folder != nullptr && readdir(folder) != nullptr) count++;
  if (folder != nullptr) closedir(folder);
  return count - 3;  // ".", ".." and the folder's own
}

struct Job {
  uint64_t cycles, broadcasts;
  size_t bytes;
  unsigned gap_ms;
};

// Whether this process is rank 0; adds to *wrong what all ranks found.
bool session(const Job& job, uint64_t cycle, uint64_t* wrong) {
  Session handle = nullptr;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  find<SessionInit>("MPI_Session_init")(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &handle);
  find<GroupFromPset>("MPI_Group_from_session_pset")(handle, "mpi://WORLD", &group);
  find<CommFromGroup>("MPI_Comm_create_from_group")(group, "rdmalloc.sessions", MPI_INFO_NULL,
                                                    MPI_ERRORS_ARE_FATAL, &comm);
  MPI_Group_free(&group);
  uint64_t mine = 0, all = 0;
  for (uint64_t i = 0; i < job.broadcasts; i++) mine += broadcast_fresh(comm, cycle, i, job.bytes);
  // Between two broadcasts nobody transfers, so this thread may purge: the notifier must be there.
  purge();
  mine += broadcast_fresh(comm, cycle, job.broadcasts, job.bytes);
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, comm);
  *wrong += all;
  MPI_Comm_free(&comm);
  find<SessionFinalize>("MPI_Session_finalize")(&handle);
  return rank == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_inside_outer = argc == 6 && strcmp(argv[5], "outer") == 0;
  if (argc != 5 && !is_inside_outer) {
    fprintf(stderr, "sessions: wanted CYCLES BROADCASTS BYTES GAP_MS [outer]\n");
    return 2;
  }
  Job job = {strtoull(argv[1], nullptr, 10), strtoull(argv[2], nullptr, 10),
             strtoull(argv[3], nullptr, 10), static_cast<unsigned>(strtoul(argv[4], nullptr, 10))};
  uint64_t all_wrong = 0;
  Session outer = nullptr;
  if (is_inside_outer)
    find<SessionInit>("MPI_Session_init")(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &outer);
  for (uint64_t cycle = 1; cycle <= job.cycles; cycle++) {
    uint64_t registered = registrations, deregistered = deregistrations, told = opal_state().told;
    uint64_t wrong = 0;
    bool is_first = session(job, cycle, &wrong);
    all_wrong += wrong;
    rdmalloc_notifier_info state = opal_state();
    if (is_first) {
      printf(
          "cycle %llu wrong %llu registrations %llu deregistrations %llu told %llu attached %u "
          "rss_kib %ld fds %d\n",
          static_cast<unsigned long long>(cycle), static_cast<unsigned long long>(wrong),
          static_cast<unsigned long long>(registrations - registered),
          static_cast<unsigned long long>(deregistrations - deregistered),
          static_cast<unsigned long long>(state.told - told), state.is_attached, rss_kib(),
          open_files());
      fflush(stdout);
    }
    usleep(job.gap_ms * 1000);
  }
  if (is_inside_outer) find<SessionFinalize>("MPI_Session_finalize")(&outer);
  return all_wrong != 0;
}
