#include "bench/traces/workloads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "bench/support/process.h"
#include "bench/support/report.h"

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLimit{120};

// For cc1plus: templates of the standard library, as most C++ files have them.
constexpr const char* kCxxSource = R"cxx(#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>
template <int N> struct Layer : Layer<N - 1> {
  std::map<std::string, std::vector<Layer<N - 1>>> below;
  int sum() const { int all = N; for (const auto& [k, v] : below) all += int(k.size() + v.size());
                    return all + Layer<N - 1>::sum(); }
};
template <> struct Layer<0> { int sum() const { return 0; } };
int main(int argc, char** argv) {
  std::regex pattern("(a+)(b|c)*d?");
  std::unordered_map<std::string, std::function<int(int)>> functions;
  for (int i = 0; i < argc; ++i) functions[argv[i]] = [i](int x) { return x + i; };
  std::vector<std::unique_ptr<Layer<24>>> layers(10);
  for (auto& layer : layers) layer = std::make_unique<Layer<24>>();
  std::sort(argv, argv + argc, [](auto a, auto b) { return std::string(a) < b; });
  std::cout << std::regex_match(argv[0], pattern) << functions.size() << layers[0]->sum() << '\n';
}
)cxx";

// For python3: text, numbers, dictionaries, regular expressions, and a few threads.
constexpr const char* kPythonSource = R"python(import json, re, threading
words = [f"word{i * 7919 % 1000}" for i in range(4000)]
def work(number):
    for turn in range(12):
        table = {w: {"length": len(w), "at": [i, i * 0.5, None], "text": w * 3}
                 for i, w in enumerate(words[turn * 100:turn * 100 + 900])}
        again = json.loads(json.dumps(table, indent=1))
        found = re.findall(r"(word)([0-9]+)", " ".join(sorted(again)))
        counts = {}
        for _, digits in found:
            counts.setdefault(len(digits), []).append(int(digits))
threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
for thread in threads: thread.start()
work(-1)
for thread in threads: thread.join()
)python";

// Debian's redis-server takes malloc from libjemalloc.so, so that a preload comes before it. $3 is
// that program, under whatever name it is installed: it goes by the one it is called by.
constexpr const char* kRedisScript = R"shell(set -e
socket=$1/redis.sock
recorder=$2
rm -f "$socket"
ln -sf "$3" "$1/redis-server"
LD_PRELOAD=$recorder "$1/redis-server" --port 0 --unixsocket "$socket" --save '' --appendonly no \
  --dir "$1" >/dev/null &
server=$!
unset BENCH_RECORD_TO
for i in $(seq 100); do [ -S "$socket" ] && break; sleep 0.1; done
redis-benchmark -s "$socket" -q -n 4000 -r 2000 -d 200 \
  -t set,get,incr,lpush,lpop,sadd,hset,zadd,mset,lrange_100 >/dev/null
redis-cli -s "$socket" shutdown nosave || true
wait $server
)shell";

std::string recorder_of(const RecordingPlace& place) {
  return (fs::path(place.program_folder) / ".." / "lib" / "librecord.so")
      .lexically_normal()
      .string();
}

struct Job {
  std::vector<std::string> command;
  std::string program;       // whose recording is wanted
  std::string needs;         // a program that must be installed
  bool is_preloaded = true;  // false: the command preloads by itself
  Environment environment = {};
};

Recorded left_out(const std::string& why) {
  return {"", why, {}};
}

fs::path folder_of(const std::string& name, const RecordingPlace& place) {
  return fs::absolute(fs::path(place.output_folder) / "recordings" / name);
}

// The longest recording of the program.
std::string longest_recording(const fs::path& folder, const std::string& program) {
  std::string longest;
  std::uintmax_t most = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().rfind("recording.", 0) != 0) continue;
    if (entry.file_size(ignored) <= most) continue;
    if (program_of_recording(entry.path().string()).rfind(program, 0) != 0) continue;
    longest = entry.path().string();
    most = entry.file_size(ignored);
  }
  return longest;
}

Recorded record(const std::string& name, const Job& job, const RecordingPlace& place) {
  if (!job.needs.empty() && find_program(job.needs).empty())
    return left_out(fmt::format("{} is not installed", job.needs));
  const std::string recorder = recorder_of(place);
  std::error_code failed;
  if (!fs::exists(recorder, failed))
    return left_out(fmt::format("no {}: build the target record", recorder));
  const fs::path folder = folder_of(name, place);
  fs::create_directories(folder, failed);
  if (failed) return left_out(fmt::format("{}: {}", folder.string(), failed.message()));
  Command command;
  command.arguments = job.command;
  command.environment = job.environment;
  command.environment["BENCH_RECORD_TO"] = (folder / "recording").string();
  if (job.is_preloaded) command.environment["LD_PRELOAD"] = recorder;
  command.limit = kLimit;
  const Outcome outcome = run(command);
  Recorded recorded;
  const std::string recording = longest_recording(folder, job.program);
  if (!outcome.ok())
    recorded.problem = fmt::format("{}: {}\n{}{}", fmt::join(job.command, " "), outcome.describe(),
                                   outcome.standard_output, outcome.standard_error);
  else if (recording.empty())
    recorded.problem = fmt::format("{} left no recording: is it statically linked?",
                                   job.program.empty() ? name : job.program);
  if (recorded.problem.empty()) {
    const std::string trace = (fs::path(place.output_folder) / (name + ".trace")).string();
    recorded.packed = pack(recording, trace);
    recorded.problem = recorded.packed.error;
    if (recorded.problem.empty()) recorded.trace = trace;
  }
  fs::remove_all(folder, failed);  // ten times as long as the trace
  return recorded;
}

Job gcc_job(const fs::path& folder) {
  const std::string source = (folder / "source.cc").string();
  write_file(source, kCxxSource);
  return {{"g++", "-std=c++17", "-O1", "-c", source, "-o", "/dev/null"}, "cc1plus", "g++"};
}

Job python_job(const fs::path& folder) {
  const std::string source = (folder / "source.py").string();
  write_file(source, kPythonSource);
  // Debian's own, where a version manager's shim would come first. Its objects come from malloc
  // too.
  const std::string python = fs::exists("/usr/bin/python3") ? "/usr/bin/python3" : "python3";
  return {{python, source}, "python3", python, true, {{"PYTHONMALLOC", "malloc"}}};
}

Job redis_job(const fs::path& folder, const RecordingPlace& place) {
  // Debian's package redis-server is a link to redis-tools' program, and a service that is started.
  std::string server = find_program("redis-server");
  if (server.empty()) server = find_program("redis-check-rdb");
  return {{"sh", "-c", kRedisScript, "redis", folder.string(), recorder_of(place), server},
          "redis-server",
          server.empty() ? "redis-server" : "redis-benchmark",
          false};
}

// The comparison of broadcasts knows how to start MPI: the recorder is one more allocator to it.
Job mpi_job(const fs::path& folder, const RecordingPlace& place) {
  return {
      {place.program_folder + "/bcast_compare", "--quiet", "--allocators", "glibc", "--peer",
       "recorder=" + recorder_of(place), "--sizes", "64K,258048,1M", "--patterns",
       "fresh,growing,mixed", "--repetitions", "1", "--scale", "0.1", "--output", folder.string()},
      "bcast_worker",
      place.program_folder + "/bcast_compare",
      false};
}

}  // namespace

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> all = {
      {"gcc", "cc1plus compiling templates of the standard library"},
      {"python", "python3: json, re, dictionaries; three threads"},
      {"redis", "redis-server under redis-benchmark"},
      {"mpi", "a rank of an Open MPI job that broadcasts"},
  };
  return all;
}

Recorded record_workload(const std::string& name, const RecordingPlace& place) {
  const fs::path folder = folder_of(name, place);
  if (name == "gcc") return record(name, gcc_job(folder), place);
  if (name == "python") return record(name, python_job(folder), place);
  if (name == "redis") return record(name, redis_job(folder, place), place);
  if (name == "mpi") return record(name, mpi_job(folder, place), place);
  return left_out("there is no such workload");
}

Recorded record_command(const std::string& name, const std::vector<std::string>& command,
                        const std::string& program, const RecordingPlace& place) {
  return record(name, {command, program, command.at(0)}, place);
}

}  // namespace rdmalloc::bench
