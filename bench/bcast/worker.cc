// bcast_worker: one MPI program under one allocator. bcast_compare starts it; it can be run by
// hand:
//
//   mpirun -n 2 -x LD_PRELOAD=/path/librdmalloc.so bcast_worker --patterns fresh,reused --sizes
//   1048576
//
// Rank 0 prints a JSON object a line: "hello" (who serves malloc at each rank), one "row" for each
// pattern and size, "end" (memory at the peak). Exit status: 0; 2 for wrong arguments; 3 when a
// byte was wrong; 4 when memory ran out.
#include <dlfcn.h>
#include <getopt.h>
#include <mpi.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/bcast/patterns.h"
#include "bench/support/registrations.h"
#include "bench/support/server_of_malloc.h"

namespace {

using rdmalloc::bench::Fault;
using rdmalloc::bench::Series;
using rdmalloc::bench::WorkerOptions;

struct World {
  int rank = 0;
  int ranks = 1;
  std::size_t wrong_bytes = 0;
};

constexpr const char* kUsage =
    "usage: bcast_worker [--patterns LIST] [--sizes BYTES,…] [--scale X] [--pause-ms N]\n"
    "  LIST: fresh, reused, growing, mixed, phases; BYTES: 1 to 1073741824, plain numbers\n";

std::vector<std::string> split(const char* text) {
  std::vector<std::string> parts(1);
  for (; *text != '\0'; ++text) {
    if (*text == ',')
      parts.emplace_back();
    else
      parts.back() += *text;
  }
  return parts;
}

bool parse_sizes(const char* text, std::vector<std::size_t>& sizes) {
  constexpr unsigned long kLargest = 1ul << 30;  // the count of MPI_Bcast is an int
  sizes.clear();
  for (const std::string& part : split(text)) {
    char* end = nullptr;
    const unsigned long bytes = std::strtoul(part.c_str(), &end, 10);
    if (*end != '\0' || bytes == 0 || bytes > kLargest) return false;
    sizes.push_back(bytes);
  }
  std::sort(sizes.begin(), sizes.end());
  return true;
}

bool parse_patterns(const char* text, std::vector<std::string>& patterns) {
  patterns = split(text);
  return std::all_of(patterns.begin(), patterns.end(), [](const std::string& pattern) {
    for (const char* known : {"fresh", "reused", "growing", "mixed", "phases"})
      if (pattern == known) return true;
    return false;
  });
}

// For the bench's own tests, not in the usage text.
bool parse_fault(const char* text, Fault& fault) {
  if (std::strcmp(text, "corrupt-byte") == 0) fault = Fault::corrupt_byte;
  if (std::strcmp(text, "hang") == 0) fault = Fault::hang;
  if (std::strcmp(text, "crash") == 0) fault = Fault::crash;
  if (std::strcmp(text, "hang-at-end") == 0) fault = Fault::hang_at_end;
  if (std::strcmp(text, "late-at-end") == 0) fault = Fault::late_at_end;
  return fault != Fault::none;
}

bool parse_number(const char* text, double least, double most, double& number) {
  char* end = nullptr;
  number = std::strtod(text, &end);
  return *text != '\0' && *end == '\0' && number >= least && number <= most;
}

// The option that is wrong, or nothing.
std::string parse_arguments(int argc, char** argv, WorkerOptions& options) {
  options.sizes = {4096, 65536, 258048, 1u << 20, 16u << 20, 64u << 20};
  options.patterns = {"fresh", "reused"};
  static const option kOptions[] = {
      {"patterns", required_argument, nullptr, 'p'}, {"sizes", required_argument, nullptr, 's'},
      {"scale", required_argument, nullptr, 'x'},    {"pause-ms", required_argument, nullptr, 'm'},
      {"fault", required_argument, nullptr, 'f'},    {nullptr, 0, nullptr, 0}};
  opterr = 0;
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    bool good = false;
    double number = 0;
    if (letter == 'p') good = parse_patterns(optarg, options.patterns);
    if (letter == 's') good = parse_sizes(optarg, options.sizes);
    if (letter == 'f') good = parse_fault(optarg, options.fault);
    if (letter == 'x' && (good = parse_number(optarg, 0.01, 1000, number))) options.scale = number;
    if (letter == 'm' && (good = parse_number(optarg, 0, 600'000, number)))
      options.pause_ms = static_cast<int>(number);
    if (!good) return argv[optind - 1];
  }
  return optind < argc ? argv[optind] : "";
}

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) json += c;
  }
  return json + "\"";
}

// jemalloc with a background thread is a row of its own: whether it really has one, or "".
std::string settings_in_force() {
  using Mallctl = int (*)(const char*, void*, std::size_t*, void*, std::size_t);
  auto mallctl = reinterpret_cast<Mallctl>(dlsym(RTLD_DEFAULT, "mallctl"));
  bool background = false;
  std::size_t size = sizeof(background);
  if (mallctl == nullptr || mallctl("background_thread", &background, &size, nullptr, 0) != 0)
    return "";
  return background ? "background_thread" : "no background_thread";
}

std::vector<std::string> gather_text(const World& world, const std::string& text) {
  constexpr std::size_t kLength = 512;
  std::vector<char> mine(kLength, '\0');
  std::memcpy(mine.data(), text.data(), std::min(text.size(), kLength - 1));
  std::vector<char> all(kLength * static_cast<std::size_t>(world.ranks));
  MPI_Gather(mine.data(), kLength, MPI_CHAR, all.data(), kLength, MPI_CHAR, 0, MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (int rank = 0; rank < world.ranks; ++rank)
    texts.emplace_back(&all[kLength * static_cast<std::size_t>(rank)]);
  return texts;
}

void print_hello(const World& world) {
  const std::vector<std::string> servers = gather_text(world, rdmalloc::bench::server_of_malloc());
  if (world.rank != 0) return;
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(version, &length);
  std::string list;
  for (const std::string& server : servers) {
    if (!list.empty()) list += ',';
    list += quoted(server);
  }
  std::printf("{\"type\":\"hello\",\"ranks\":%d,\"malloc\":[%s],\"settings\":%s,\"mpi\":%s}\n",
              world.ranks, list.c_str(), quoted(settings_in_force()).c_str(),
              quoted(version).c_str());
  std::fflush(stdout);
}

void print_array(const char* name, const std::vector<double>& values) {
  std::printf(",\"%s\":[", name);
  for (std::size_t i = 0; i < values.size(); ++i)
    std::printf("%s%.3f", i == 0 ? "" : ",", values[i]);
  std::printf("]");
}

// Element by element the slowest rank; right at rank 0 only.
std::vector<double> slowest_rank(const std::vector<double>& mine) {
  std::vector<double> slowest(mine.size());
  MPI_Reduce(mine.data(), slowest.data(), static_cast<int>(mine.size()), MPI_DOUBLE, MPI_MAX, 0,
             MPI_COMM_WORLD);
  return slowest;
}

void emit(const Series& series, void* argument) {
  World& world = *static_cast<World*>(argument);
  const std::vector<double> bcast = slowest_rank(series.bcast_us);
  const std::vector<double> cycle = slowest_rank(series.cycle_us);
  const std::vector<double> after_pause = slowest_rank(series.after_pause_us);
  long faults = 0;
  MPI_Reduce(&series.page_faults, &faults, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
  long huge_pages = 0;
  MPI_Reduce(&series.huge_pages, &huge_pages, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
  double kernel_us = 0;
  MPI_Reduce(&series.kernel_us, &kernel_us, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  long registrations = 0;
  MPI_Reduce(&series.registrations, &registrations, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  unsigned long wrong = 0;
  MPI_Allreduce(&series.wrong_bytes, &wrong, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
  world.wrong_bytes += wrong;
  if (series.wrong_bytes != 0)
    std::fprintf(stderr, "bcast_worker: rank %d, %s, %zu B: %zu wrong bytes, the first at %zu\n",
                 world.rank, series.pattern.c_str(), series.bytes, series.wrong_bytes,
                 series.wrong_offset);
  if (world.rank != 0) return;
  std::printf(
      "{\"type\":\"row\",\"pattern\":%s,\"bytes\":%zu,\"wrong_bytes\":%lu,\"page_faults\":%ld,"
      "\"huge_pages\":%ld,\"kernel_us\":%.0f",
      quoted(series.pattern).c_str(), series.bytes, wrong, faults, huge_pages, kernel_us);
  if (rdmalloc::bench::registrations_so_far() >= 0)
    std::printf(",\"registrations\":%ld", registrations);
  print_array("bcast_us", bcast);
  print_array("cycle_us", cycle);
  if (!after_pause.empty()) print_array("after_pause_us", after_pause);
  std::printf("}\n");
  std::fflush(stdout);
}

void print_end(const World& world) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  long peak_kib = 0;
  MPI_Reduce(&usage.ru_maxrss, &peak_kib, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
  if (world.rank == 0)
    std::printf("{\"type\":\"end\",\"wrong_bytes\":%zu,\"peak_rss_kib\":%ld}\n", world.wrong_bytes,
                peak_kib);
  std::fflush(stdout);
}

// Around the last collective. Late before it: the others are in MPI_Finalize, and all that they
// have for rank 0 arrives, and is answered, within the collective. Late after it as well: they have
// the answers, and wait for nothing of rank 0 but its own MPI_Finalize.
void inject_fault_before_end(const World& world, Fault fault) {
  if (fault == Fault::late_at_end && world.rank == 0) usleep(300'000);
}
void inject_fault_after_end(const World& world, Fault fault) {
  if (fault == Fault::late_at_end && world.rank == 0) usleep(300'000);
  while (fault == Fault::hang_at_end && world.rank == world.ranks - 1) sleep(1);
}

}  // namespace

int main(int argc, char** argv) {
  WorkerOptions options;
  if (const std::string wrong = parse_arguments(argc, argv, options); !wrong.empty()) {
    std::fprintf(stderr, "bcast_worker: can't use '%s'\n%s", wrong.c_str(), kUsage);
    return 2;
  }
  // The driver's gdb must be able to look when this rank hangs, also where Yama forbids it.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  MPI_Init(&argc, &argv);
  World world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.ranks);
  print_hello(world);
  rdmalloc::bench::Patterns patterns(world.rank, world.ranks, options);
  patterns.run(emit, &world);
  inject_fault_before_end(world, options.fault);
  print_end(world);
  inject_fault_after_end(world, options.fault);
  MPI_Finalize();
  return world.wrong_bytes == 0 ? 0 : 3;
}
