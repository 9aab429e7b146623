// rdma_bcast: a broadcast from one process to another, written on the registration cache, with
// buffers that are allocated for each broadcast and freed after it.
//
//   rdma_bcast --fabric verbs|libfabric --keys rdmalloc|each|fabric
//              [--pattern fresh|phases|mixed] [--bytes N] [--count N] [--pause-ms N]
//
// Prints one line: what was asked, broadcasts, registrations per broadcast (of both processes,
// beyond the warm-up; "-" where nothing counts them) and wrong bytes. Exit status 0; 2 for wrong
// arguments; 3 when a byte was wrong or the fabric failed. docs/bench.md has the figures.
#include <getopt.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "bench/bcast/payload.h"
#include "bench/rdma/fabric.h"
#include "bench/support/registrations.h"

namespace rdmalloc::bench {

void fail(const char* what, long error) {
  std::fprintf(stderr, "rdma_bcast: %s: %s\n", what, strerror(static_cast<int>(std::labs(error))));
  std::exit(3);
}

void put(int socket, const void* data, std::size_t bytes) {
  if (write(socket, data, bytes) != static_cast<ssize_t>(bytes)) fail("the other process", -EPIPE);
}

void get(int socket, void* data, std::size_t bytes) {
  if (recv(socket, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes))
    fail("the other process ended", -EPIPE);
}

namespace {

constexpr std::size_t kDefaultBytes = 1 << 20;
constexpr std::size_t kSmallestMixed = 64 << 10, kDefaultLargestMixed = 32 << 20;

struct Options {
  std::string fabric, keys, pattern = "fresh";
  std::size_t bytes = 0;  // of each broadcast; mixed: of the largest
  int count = 20;
  int pause_ms = 2200;
};

constexpr const char* kUsage =
    "usage: rdma_bcast --fabric verbs|libfabric --keys rdmalloc|each|fabric\n"
    "                  [--pattern fresh|phases|mixed] [--bytes N] [--count N] [--pause-ms N]\n"
    "  verbs has no cache of its own: no --keys fabric there\n"
    "  --bytes: 1 to 1073741824 (1048576); mixed: of the largest, from 65536 on (33554432)\n"
    "  --count: 1 to 1000000 (20); --pause-ms: 0 to 600000 (2200)\n";

bool is_one_of(const std::string& word, std::initializer_list<const char*> words) {
  for (const char* known : words)
    if (word == known) return true;
  return false;
}

bool parse_number(const char* text, long least, long most, long& number) {
  char* end = nullptr;
  number = std::strtol(text, &end, 10);
  return *text != '\0' && *end == '\0' && number >= least && number <= most;
}

// What is wrong, or nothing.
std::string parse(int argc, char** argv, Options& options) {
  static const option kOptions[] = {{"fabric", required_argument, nullptr, 'f'},
                                    {"keys", required_argument, nullptr, 'k'},
                                    {"pattern", required_argument, nullptr, 'p'},
                                    {"bytes", required_argument, nullptr, 'b'},
                                    {"count", required_argument, nullptr, 'c'},
                                    {"pause-ms", required_argument, nullptr, 'm'},
                                    {nullptr, 0, nullptr, 0}};
  opterr = 0;
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    long number = 0;
    bool good = letter == 'f' || letter == 'k' || letter == 'p';
    if (letter == 'f') options.fabric = optarg;
    if (letter == 'k') options.keys = optarg;
    if (letter == 'p') options.pattern = optarg;
    if (letter == 'b' && (good = parse_number(optarg, 1, 1 << 30, number)))
      options.bytes = static_cast<std::size_t>(number);
    if (letter == 'c' && (good = parse_number(optarg, 1, 1000000, number)))
      options.count = static_cast<int>(number);
    if (letter == 'm' && (good = parse_number(optarg, 0, 600000, number)))
      options.pause_ms = static_cast<int>(number);
    if (!good) return argv[optind - 1];
  }
  if (optind < argc) return argv[optind];
  if (!is_one_of(options.fabric, {"verbs", "libfabric"})) return "--fabric " + options.fabric;
  if (!is_one_of(options.keys, {"rdmalloc", "each", "fabric"}) ||
      (options.keys == "fabric" && options.fabric == "verbs"))
    return "--keys " + options.keys;
  if (!is_one_of(options.pattern, {"fresh", "phases", "mixed"}))
    return "--pattern " + options.pattern;
  const bool is_mixed = options.pattern == "mixed";
  if (options.bytes == 0) options.bytes = is_mixed ? kDefaultLargestMixed : kDefaultBytes;
  if (is_mixed && options.bytes < kSmallestMixed)
    return "--pattern mixed --bytes " + std::to_string(options.bytes);
  return {};
}

// The same numbers in both processes.
struct Random {
  std::uint64_t state;
  double uniform() { return static_cast<double>(payload_seed(state++) >> 11) * 0x1p-53; }
};

class Broadcaster {
 public:
  Broadcaster(Fabric& fabric, int socket, bool is_root)
      : fabric_(fabric), socket_(socket), is_root_(is_root) {}

  // malloc, write, broadcast, check, free.
  void one(std::size_t bytes) {
    void* buffer = std::malloc(bytes);
    if (buffer == nullptr) fail("malloc", -ENOMEM);
    const std::uint64_t seed = payload_seed(done_++);
    char word = 0;
    if (is_root_) {
      payload_write(buffer, bytes, seed);
      get(socket_, &word, 1);  // the receiver's buffer waits
      fabric_.send(buffer, bytes);
    } else {
      fabric_.receive(buffer, bytes, tell, this);
      if (!payload_is_right(buffer, bytes, seed))
        wrong_bytes += payload_errors(buffer, bytes, seed).wrong_bytes;
    }
    std::free(buffer);
  }

  std::size_t wrong_bytes = 0;

 private:
  static void tell(void* self) { put(static_cast<Broadcaster*>(self)->socket_, "", 1); }

  Fabric& fabric_;
  int socket_;
  bool is_root_;
  std::uint64_t done_ = 0;
};

// Other allocations, with rests in which the purge thread has its turn.
void allocate_other_things(int milliseconds) {
  Random random{77};
  for (int i = 0; i < milliseconds / 5; ++i) {
    void* blocks[100];
    for (void*& block : blocks)
      block = std::malloc(16 + static_cast<std::size_t>(random.uniform() * 65536));
    for (void* block : blocks) std::free(block);
    usleep(5000);
  }
}

constexpr int kWarmUps = 2;  // the second is where the first one's memory comes back

// Each doubling up to the largest is equally likely.
std::size_t mixed_size(Random& random, std::size_t largest) {
  constexpr double kSmallest = kSmallestMixed;
  const double doublings = std::log2(static_cast<double>(largest) / kSmallest);
  return static_cast<std::size_t>(kSmallest * std::exp2(doublings * random.uniform()));
}

constexpr std::uint64_t kMixedSeed = 2025;

// Before anything is counted. mixed: the largest there is, then the sizes that will be counted,
// three times over: a small block comes from any gap of the heap, each registered at its first use.
void warm_up(Broadcaster& broadcaster, const Options& options, bool is_mixed) {
  for (int i = 0; i < kWarmUps; ++i) broadcaster.one(options.bytes);
  for (int pass = 0; is_mixed && pass < 3; ++pass) {
    Random random{kMixedSeed};
    for (int i = 0; i < options.count; ++i) broadcaster.one(mixed_size(random, options.bytes));
  }
}

// Broadcasts, and the registrations of this process after the warm-up.
long run_pattern(Broadcaster& broadcaster, const Options& options) {
  const bool is_mixed = options.pattern == "mixed";
  warm_up(broadcaster, options, is_mixed);
  const long before = registrations_so_far();
  Random random{kMixedSeed};
  for (int i = 0; i < options.count; ++i) {
    if (options.pattern == "phases" && i % 4 == 0) allocate_other_things(options.pause_ms);
    broadcaster.one(is_mixed ? mixed_size(random, options.bytes) : options.bytes);
  }
  return registrations_so_far() - before;
}

struct Report {
  long registrations;
  std::size_t wrong_bytes;
};

Report run_process(const Options& options, int socket, bool is_root) {
  const KeySource keys = options.keys == "rdmalloc" ? KeySource::rdmalloc
                         : options.keys == "each"   ? KeySource::each
                                                    : KeySource::fabric;
  std::unique_ptr<Fabric> fabric =
      options.fabric == "verbs" ? open_verbs(keys, socket) : open_libfabric(keys, socket);
  Broadcaster broadcaster(*fabric, socket, is_root);
  const long registrations = run_pattern(broadcaster, options);
  // Neither side closes while the other may still need an answer from its endpoint.
  char word = 0;
  put(socket, &word, 1);
  get(socket, &word, 1);
  return {registrations, broadcaster.wrong_bytes};
}

int run(const Options& options) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) fail("socketpair", -errno);
  // Before any device is opened: what is registered does not survive fork.
  const pid_t child = fork();
  if (child < 0) fail("fork", -errno);
  const int socket = sockets[child == 0 ? 1 : 0];
  close(sockets[child == 0 ? 0 : 1]);
  Report own = run_process(options, socket, child != 0);
  if (child == 0) {
    put(socket, &own, sizeof own);
    return own.wrong_bytes == 0 ? 0 : 3;
  }
  Report other = {};
  get(socket, &other, sizeof other);
  int status = 0;
  waitpid(child, &status, 0);
  const std::size_t wrong = own.wrong_bytes + other.wrong_bytes;
  std::string registrations = "-";
  if (registrations_so_far() >= 0)
    registrations = std::to_string(own.registrations + other.registrations);
  std::printf("%s keys %s %s broadcasts %d registrations %s wrong_bytes %zu\n",
              options.fabric.c_str(), options.keys.c_str(), options.pattern.c_str(), options.count,
              registrations.c_str(), wrong);
  return wrong == 0 && status == 0 ? 0 : 3;
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  rdmalloc::bench::Options options;
  if (std::string wrong = rdmalloc::bench::parse(argc, argv, options); !wrong.empty()) {
    std::fprintf(stderr, "rdma_bcast: can't use '%s'\n%s", wrong.c_str(), rdmalloc::bench::kUsage);
    return 2;
  }
  return rdmalloc::bench::run(options);
}
