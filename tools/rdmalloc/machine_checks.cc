// rdmalloc doctor: limits, kernel settings and devices.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>

#include "tools/rdmalloc/findings.h"

namespace rdmalloc::tool {
namespace {

namespace fs = std::filesystem;
constexpr std::uint64_t kMiB = 1 << 20;

Finding good(const char* id, const std::string& seen) {
  return {id, Severity::good, seen, "", ""};
}

std::string mib(std::uint64_t bytes) {
  return fmt::format("{} MiB", bytes / kMiB);
}

// ---- cgroups: the limit of a group holds for all below it, so that the least on the way counts.

struct Limit {
  std::uint64_t most = 0, used = 0;
  std::string file;
};

// The folders of our group and of those above it, as far as they are mounted here. In a container
// without a namespace of its own the path is the host's, and the mount's top is our group.
std::vector<std::string> groups(const Machine& machine, const std::string& controller) {
  std::vector<std::string> all;
  std::istringstream lines(machine.text("/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string top = "/sys/fs/cgroup";
    if (!controllers.empty()) {
      if (("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
      top += "/" + controller;
    } else if (machine.exists(top + "/unified")) {
      top += "/unified";
    }
    for (std::string below = line.substr(second + 1);; below = below.substr(0, below.rfind('/'))) {
      if (below == "/") below.clear();
      if (machine.exists(top + below)) all.push_back(top + below);
      if (below.empty()) break;
    }
  }
  return all;
}

// Without /proc nothing says which groups are ours.
std::optional<Finding> groups_unknown(const Machine& machine, const char* id) {
  if (machine.exists("/proc/self")) return std::nullopt;
  return Finding{id, Severity::note, "/proc is not mounted: a cgroup's limits can't be seen",
                 "there may be one", "mount -t proc proc /proc"};
}

// Anonymous and shared memory of a group and of those below it, which is what rdmalloc counts
// (os/memory.cc): the kernel takes back page cache before it kills. All that is used where
// memory.stat is not there.
std::optional<std::uint64_t> memory_used(const Machine& machine, const std::string& group,
                                         bool is_version_1) {
  std::istringstream lines(machine.text(group + "/memory.stat").value_or(""));
  std::string name;
  std::optional<std::uint64_t> used;
  for (std::uint64_t value = 0; lines >> name >> value;)
    if (name == (is_version_1 ? "total_rss" : "anon") ||
        name == (is_version_1 ? "total_shmem" : "shmem"))
      used = used.value_or(0) + value;
  if (used) return used;
  return machine.number(group + (is_version_1 ? "/memory.usage_in_bytes" : "/memory.current"));
}

// The limit of which least is left, on the way up. "max" and version 1's huge numbers are none.
std::optional<Limit> least(const Machine& machine, const std::string& controller,
                           const std::vector<const char*>& files) {
  constexpr std::uint64_t kNone = 1ull << 60;
  const auto left = [](const Limit& one) { return one.most - std::min(one.most, one.used); };
  std::optional<Limit> found;
  for (const std::string& group : groups(machine, controller))
    for (const std::string file : files) {
      const auto most = machine.number(group + "/" + file);
      if (!most || *most >= kNone) continue;
      const auto used = controller == "memory"
                            ? memory_used(machine, group, file == "memory.limit_in_bytes")
                            : machine.number(group + "/pids.current");
      const Limit one = {*most, used.value_or(0), group + "/" + file};
      if (!found || left(one) < left(*found)) found = one;
    }
  return found;
}

// Processors that the quota allows; 0 without one.
double quota(const Machine& machine, std::string& file) {
  double least_quota = 0;
  const auto consider = [&](double allowed, const std::string& at) {
    if (allowed <= 0 || (least_quota != 0 && least_quota <= allowed)) return;
    least_quota = allowed;
    file = at;
  };
  for (const std::string& group : groups(machine, "cpu")) {
    double allowed = 0, period = 0;
    std::istringstream text(machine.text(group + "/cpu.max").value_or(""));
    if (text >> allowed >> period && period > 0) consider(allowed / period, group + "/cpu.max");
    const auto v1_period = machine.number(group + "/cpu.cfs_period_us");
    const auto v1_quota = machine.number(group + "/cpu.cfs_quota_us");  // -1 is none
    if (v1_period && v1_quota && *v1_period > 0)
      consider(static_cast<double>(*v1_quota) / static_cast<double>(*v1_period),
               group + "/cpu.cfs_quota_us");
  }
  return least_quota;
}

unsigned processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? static_cast<unsigned>(CPU_COUNT(&set)) : 1;
}

// Of this process, from the kernel's own list.
bool has_capability(const Machine& machine, int bit) {
  const std::string status = machine.text("/proc/self/status").value_or("");
  const std::size_t at = status.find("CapEff:");
  if (at == std::string::npos) return false;
  return (std::strtoull(status.c_str() + at + std::strlen("CapEff:"), nullptr, 16) >> bit & 1) != 0;
}

// Whether this process is in a user namespace below the first one, as in a rootless container. What
// the kernel asks for CAP_IPC_LOCK it asks in the first.
bool is_in_user_namespace(const Machine& machine) {
  std::error_code ignored;
  const fs::path own = fs::read_symlink(machine.path("/proc/self/ns/user"), ignored);
  return !own.empty() && own != "user:[4026531837]";  // PROC_USER_INIT_INO of the kernel's
}

bool has_seccomp_filter(const Machine& machine) {
  return machine.text("/proc/self/status").value_or("").find("Seccomp:\t2") != std::string::npos;
}

// Why the kernel refused a system call, and the line that allows it.
void explain_refusal(const Machine& machine, int error, const std::string& knob,
                     const std::string& line, Finding& finding) {
  if (error == ENOSYS && !has_seccomp_filter(machine)) {
    finding.seen += "; the kernel was built without it";
    finding.fix = "use a kernel that has it";
  } else if (const auto value = machine.text(knob);
             value && !line.empty() && error == EPERM && !has_seccomp_filter(machine)) {
    finding.seen += fmt::format("; {} is {}", knob, *value);
    finding.fix = line;
  } else {
    finding.seen += has_seccomp_filter(machine) ? "; a seccomp filter is in force" : "";
    finding.fix = "docker run --security-opt seccomp=unconfined, or a profile that allows it";
  }
}

// "0-3,5"
std::set<unsigned long> numbers_in(const std::string& list) {
  std::set<unsigned long> numbers;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    char* end = nullptr;
    const unsigned long first = std::strtoul(range.c_str(), &end, 10);
    const unsigned long last = *end == '-' ? std::strtoul(end + 1, nullptr, 10) : first;
    for (unsigned long number = first; number <= last && number < CPU_SETSIZE; number++)
      numbers.insert(number);
  }
  return numbers;
}

// Open MPI counts, by hwloc, the cores and not their hardware threads: of the machine less those
// that a cgroup's cpuset keeps from us; those that taskset(1) keeps from us count. Where the
// kernel's files don't name cores, it takes all processors that are online.
long slots_of(const Machine& machine) {
  std::string allowed;
  for (const std::string& group : groups(machine, "cpuset"))
    for (const char* file : {"cpuset.cpus.effective", "cpuset.effective_cpus"})
      if (allowed.empty()) allowed = machine.text(group + "/" + file).value_or("");
  const std::set<unsigned long> ours = numbers_in(allowed);
  std::set<std::string> cores;
  for (unsigned long processor = 0; processor < CPU_SETSIZE; processor++) {
    if (!ours.empty() && ours.count(processor) == 0) continue;
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu{}/topology/", processor);
    const auto core = machine.text(folder + "core_id");
    const auto package = machine.text(folder + "physical_package_id");
    // Where a device tree names the processors (aarch64), cores are numbered in each cluster anew,
    // and since Linux 6.0 all clusters are of one package.
    const std::string cluster = machine.text(folder + "cluster_id").value_or("");
    if (core && package) cores.insert(*package + ":" + cluster + ":" + *core);
  }
  return cores.empty() ? sysconf(_SC_NPROCESSORS_ONLN) : static_cast<long>(cores.size());
}

}  // namespace

bool Machine::exists(const std::string& below) const {
  return access(path(below).c_str(), F_OK) == 0;
}

std::optional<std::string> Machine::text(const std::string& below) const {
  std::ifstream file(path(below));
  if (!file) return std::nullopt;
  std::stringstream all;
  all << file.rdbuf();
  std::string text = all.str();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::optional<std::uint64_t> Machine::number(const std::string& below) const {
  const std::optional<std::string> all = text(below);
  if (!all || all->empty() || all->find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::strtoull(all->c_str(), nullptr, 10);
}

std::vector<std::string> Machine::names_in(const std::string& below) const {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path(below), ignored))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

bool Machine::is_container() const {
  return exists("/.dockerenv") || exists("/run/.containerenv");
}

Finding check_memlock(const Machine& machine) {
  constexpr int kIpcLock = 14;                // CAP_IPC_LOCK, which frees from the limit
  constexpr std::uint64_t kEnough = 1 << 30;  // what a few ranks' caches register easily
  // "Max locked memory  65536  unlimited  bytes": what counts, and what it can be raised to.
  const std::string limits = machine.text("/proc/self/limits").value_or("");
  constexpr std::string_view kLabel = "Max locked memory";
  const std::size_t at = limits.find(kLabel);
  if (at == std::string::npos)
    return {"memlock", Severity::note,
            "the limit of locked memory can't be seen: /proc/self/limits does not show it",
            "registered memory counts as locked; beyond a limit registering fails (ENOMEM)",
            "mount -t proc proc /proc  # and look again; ulimit -l says what the shell has"};
  std::string most, could_be;
  std::istringstream(limits.substr(at + kLabel.size())) >> most >> could_be;
  if (most == "unlimited") return good("memlock", "locked memory is not limited");
  const std::uint64_t bytes = std::strtoull(most.c_str(), nullptr, 10);
  std::string seen = fmt::format("locked memory is limited to {} KiB", bytes / 1024);
  if (has_capability(machine, kIpcLock)) {
    if (!is_in_user_namespace(machine))
      return good("memlock", seen + ", which CAP_IPC_LOCK frees this process from");
    seen += ", which CAP_IPC_LOCK of a user namespace does not free from";
  }
  if (bytes >= kEnough) return good("memlock", seen);
  Finding finding = {"memlock", Severity::warning, seen,
                     "registered memory counts as locked; beyond the limit registering fails "
                     "(ENOMEM), also that of each MPI library",
                     "ulimit -l unlimited"};
  if (!machine.names_in("/sys/class/infiniband").empty()) finding.severity = Severity::bad;
  if (could_be != "unlimited")
    finding.fix =
        machine.is_container()
            ? "docker run --ulimit memlock=-1 ..."
            : "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/rdma.conf  # then "
              "log in again; in a systemd unit: LimitMEMLOCK=infinity";
  return finding;
}

Finding check_memory_limit(const Machine& machine) {
  if (auto unknown = groups_unknown(machine, "cgroup.memory")) return *unknown;
  const auto limit =
      least(machine, "memory", {"memory.max", "memory.high", "memory.limit_in_bytes"});
  if (!limit) return good("cgroup.memory", "no cgroup limits memory");
  const std::string seen =
      fmt::format("{} allows {}, {} in use", limit->file, mib(limit->most), mib(limit->used));
  // Less than an eighth left is where rdmalloc itself begins to give back early.
  if (limit->used < limit->most - limit->most / 8) return good("cgroup.memory", seen);
  return {"cgroup.memory", Severity::warning, seen,
          "less than an eighth is left: rdmalloc gives free memory back at once, and the kernel "
          "kills when it is used up; registered memory can't be swapped out",
          machine.is_container() ? "docker run --memory=SIZE ... with a larger SIZE"
                                 : "raise it, in a Slurm job by --mem=SIZE, in a systemd unit by "
                                   "MemoryMax=SIZE"};
}

Finding check_processor_limit(const Machine& machine) {
  if (auto unknown = groups_unknown(machine, "cgroup.cpu")) return *unknown;
  std::string file;
  const double allowed = quota(machine, file);
  const unsigned visible = processors();
  if (allowed == 0) return good("cgroup.cpu", "no cgroup limits processor time");
  const std::string seen =
      fmt::format("{} allows {:.1f} processors' time, {} are visible", file, allowed, visible);
  if (allowed >= visible) return good("cgroup.cpu", seen);
  return {"cgroup.cpu", Severity::warning, seen,
          "launchers start as many ranks as processors are visible; each rank spins while it "
          "waits, and all of them are stopped when the time is used up",
          fmt::format("start at most {} ranks, or raise the limit (docker run --cpus={})",
                      std::max(1u, static_cast<unsigned>(allowed)), visible)};
}

Finding check_process_limit(const Machine& machine) {
  constexpr std::uint64_t kFewLeft = 64;  // a rank has some five threads; the launcher's as well
  if (auto unknown = groups_unknown(machine, "cgroup.pids")) return *unknown;
  const auto limit = least(machine, "pids", {"pids.max"});
  if (!limit) return good("cgroup.pids", "no cgroup limits threads");
  const std::string seen = fmt::format("{} allows {} processes and threads, {} exist", limit->file,
                                       limit->most, limit->used);
  if (limit->used + kFewLeft <= limit->most) return good("cgroup.pids", seen);
  return {"cgroup.pids", Severity::warning, seen,
          "a thread that can't be created ends many programs; rdmalloc then purges only when "
          "asked (the counter purge_thread_failures)",
          machine.is_container() ? "docker run --pids-limit=-1 ..."
                                 : "raise it, in a systemd unit by TasksMax=infinity"};
}

// With RDMALLOC_HUGE=2M or 1G heaps want pages of that pool.
std::optional<Finding> check_wanted_huge_pages(const Machine& machine, const Job& job) {
  const std::string size = job.variable("RDMALLOC_HUGE").value_or("");
  if (size != "2M" && size != "1G") return std::nullopt;
  const std::string pool = fmt::format("/sys/kernel/mm/hugepages/hugepages-{}kB/",
                                       size == "2M" ? kMiB * 2 / 1024 : kMiB);
  const auto free_pages = machine.number(pool + "free_hugepages");
  const std::string why = fmt::format(
      "RDMALLOC_HUGE={} wants them for registered heaps, which get ordinary pages instead", size);
  if (!free_pages)
    return Finding{"huge_pages", Severity::warning,
                   fmt::format("the kernel has no pool of huge pages of {}", size), why,
                   "unset RDMALLOC_HUGE  # or use a kernel and processor that have them"};
  const std::string seen = fmt::format("{} huge pages of {} are free", *free_pages, size);
  if (*free_pages != 0) return good("huge_pages", seen);
  return Finding{"huge_pages", Severity::warning, seen, why,
                 fmt::format("echo {} | sudo tee {}nr_hugepages  # as many as the heaps take",
                             size == "2M" ? 512 : 1, pool)};
}

Finding check_huge_pages(const Machine& machine, const Job& job) {
  if (const auto wanted = check_wanted_huge_pages(machine, job)) return *wanted;
  constexpr std::uint64_t kMuch = 256;  // pages of 2 MiB: 512 MiB
  const auto text = machine.text("/proc/meminfo").value_or("");
  const auto value = [&text](const char* name) -> std::uint64_t {
    const std::size_t at = text.find(name);
    return at == std::string::npos
               ? 0
               : std::strtoull(text.c_str() + at + std::strlen(name), nullptr, 10);
  };
  const std::uint64_t all = value("HugePages_Total:"), free_pages = value("HugePages_Free:");
  const std::uint64_t kib = value("Hugepagesize:");
  if (all == 0) return good("huge_pages", "no huge pages are reserved; rdmalloc needs none");
  const std::string seen =
      fmt::format("{} huge pages of {} KiB are reserved, {} are free", all, kib, free_pages);
  if (free_pages < kMuch) return good("huge_pages", seen);
  return {"huge_pages", Severity::warning, seen,
          "reserved pages serve hugetlbfs only (DPDK, or programs and heaps that ask for them): "
          "neither rdmalloc nor another malloc can use them",
          fmt::format("echo {} | sudo tee /proc/sys/vm/nr_hugepages  # if nothing is to use them",
                      all - free_pages)};
}

Finding check_transparent_huge_pages(const Machine& machine, const Job& job) {
  const std::string file = "/sys/kernel/mm/transparent_hugepage/enabled";
  const std::optional<std::string> text = machine.text(file);
  if (job.variable("RDMALLOC_HUGE").value_or("") == "never")
    return good("thp", "RDMALLOC_HUGE=never: rdmalloc asks for none");
  if (!text)
    return {"thp", Severity::note,
            file + " is not there: /sys is not mounted, or the kernel has no such pages",
            "registering large blocks takes longer, for every page is small",
            "mount -t sysfs sysfs /sys  # or use a kernel that has them"};
  const std::size_t begin = text->find('[');
  const std::string mode =
      begin == std::string::npos ? *text : text->substr(begin + 1, text->find(']') - begin - 1);
  const std::string seen = fmt::format("transparent huge pages: {}", mode);
  if (mode != "never") return good("thp", seen);
  return {"thp", Severity::warning, seen,
          "rdmalloc asks for huge pages under large blocks (RDMALLOC_HUGE=auto) and gets none: "
          "more page faults, and registering takes longer",
          fmt::format("echo madvise | sudo tee {}", file)};
}

Finding check_infiniband(const Machine& machine) {
  const std::vector<std::string> devices = machine.names_in("/sys/class/infiniband");
  if (devices.empty()) return good("infiniband", "no RDMA device: MPI uses shared memory and TCP");
  std::vector<std::string> nodes;
  for (const std::string& name : machine.names_in("/dev/infiniband"))
    if (name.rfind("uverbs", 0) == 0) nodes.push_back("/dev/infiniband/" + name);
  if (nodes.empty())
    return {"infiniband", Severity::bad,
            fmt::format("the kernel has {} ({}), and /dev/infiniband has no uverbs device",
                        devices.size() == 1 ? "an RDMA device" : "RDMA devices", devices[0]),
            "programs can't open it: MPI falls back to TCP without a word, or fails",
            machine.is_container()
                ? "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 ..."
                : "sudo modprobe ib_uverbs"};
  for (const std::string& node : nodes)
    if (access(machine.path(node).c_str(), R_OK | W_OK) != 0)
      return {"infiniband", Severity::bad,
              fmt::format("{} can't be opened: {}", node, std::strerror(errno)),
              "MPI falls back to TCP without a word, or fails",
              fmt::format("sudo chmod 666 {}  # for good: rdma-core's udev rule", node)};
  return good("infiniband", fmt::format("{} and {} can be used", devices[0], nodes[0]));
}

Finding check_shared_memory(const Machine& machine) {
  constexpr std::uint64_t kDockers =
      64 * kMiB;  // Docker's default, too small for more than a few ranks
  struct statvfs state = {};
  const std::string folder = machine.path("/dev/shm");
  const std::string fix = machine.is_container() ? "docker run --shm-size=1g ..."
                                                 : "sudo mount -o remount,size=1g /dev/shm";
  const char* why =
      "ranks of one machine speak through files there; without room they end with "
      "SIGBUS, or refuse to start";
  if (statvfs(folder.c_str(), &state) != 0)
    return {"shm", Severity::bad, fmt::format("/dev/shm: {}", std::strerror(errno)), why,
            "sudo mkdir -p /dev/shm && sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm"};
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    return {"shm", Severity::bad, fmt::format("/dev/shm: {}", std::strerror(errno)), why,
            "sudo chmod 1777 /dev/shm"};
  const std::uint64_t all = std::uint64_t{state.f_blocks} * state.f_frsize;
  const std::uint64_t left = std::uint64_t{state.f_bavail} * state.f_frsize;
  const std::string seen = fmt::format("/dev/shm has {}, {} free", mib(all), mib(left));
  if (left < 16 * kMiB) return {"shm", Severity::bad, seen, why, fix};  // less than two ranks take
  if (all <= kDockers) return {"shm", Severity::warning, seen, why, fix};
  return good("shm", seen);
}

Finding check_map_count(const Machine& machine) {
  constexpr std::uint64_t kDefault = 65530;  // the kernel's own
  const auto count = machine.number("/proc/sys/vm/max_map_count");
  if (!count) return good("max_map_count", "the kernel does not show vm.max_map_count");
  const std::string seen = fmt::format("vm.max_map_count is {}", *count);
  if (*count >= kDefault) return good("max_map_count", seen);
  return {"max_map_count", Severity::warning, seen,
          "a process with more mappings gets no memory (ENOMEM); fabrics make many small ones",
          fmt::format("sudo sysctl vm.max_map_count={}", kDefault)};
}

Finding check_io_uring(const Machine& machine) {
  // Of io_uring_setup(2), all zero: one entry, no flags.
  std::uint64_t parameters[15] = {};
  const char* called = "io_uring_setup";
  const long ring = syscall(SYS_io_uring_setup, 1, parameters);
  int error = ring < 0 ? errno : 0;
  if (ring >= 0) {
    // What a domain begins with: IORING_REGISTER_BUFFERS2, with room for one and none in it.
    constexpr int kRegister = 15;
    const struct {
      std::uint32_t count = 1, is_sparse = 1;
      std::uint64_t rest[3] = {};
    } table;
    called = "io_uring_register";
    if (syscall(SYS_io_uring_register, ring, kRegister, &table, sizeof table) != 0) error = errno;
    close(static_cast<int>(ring));
  }
  if (error == 0) return good("io_uring", "io_uring can be used");
  Finding finding = {"io_uring", Severity::note,
                     fmt::format("{}: {}", called, std::strerror(error)),
                     "domains over an io_uring can't be opened; nothing else needs it", ""};
  explain_refusal(machine, error, "/proc/sys/kernel/io_uring_disabled",
                  "sudo sysctl kernel.io_uring_disabled=0", finding);
  if (error == EINVAL)
    finding.fix = "use Linux 5.19 or later, which takes buffers into a ring one by one";
  return finding;
}

Finding check_userfaultfd(const Machine& machine, const Job& job) {
  constexpr int kUserModeOnly =
      1;  // UFFD_USER_MODE_ONLY: what rdmalloc asks for, without privilege
  const char* called = "userfaultfd";
  const long watcher = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly);
  int error = watcher < 0 ? errno : 0;
  if (watcher >= 0) {
    // The newest of what rdmalloc asks for (os/userfault.cc), UFFD_FEATURE_WP_HUGETLBFS_SHMEM.
    struct uffdio_api api = {};
    api.api = UFFD_API;
    api.features = 1 << 12;
    called = "UFFDIO_API";
    if (ioctl(static_cast<int>(watcher), UFFDIO_API, &api) != 0) error = errno;
    close(static_cast<int>(watcher));
  }
  if (error == 0) return good("userfaultfd", "userfaultfd can be used");
  const bool is_wanted = job.variable("RDMALLOC_FOREIGN").value_or("") == "watch";
  Finding finding = {"userfaultfd", is_wanted ? Severity::warning : Severity::note,
                     fmt::format("{}: {}", called, std::strerror(error)),
                     "RDMALLOC_FOREIGN=watch can't watch: registrations of memory that is not "
                     "rdmalloc's are made for each use; nothing else of rdmalloc needs it",
                     ""};
  explain_refusal(machine, error, "", "", finding);
  if (error == EINVAL)
    finding.fix = "use Linux 5.19 or later, which lets a program watch without rights";
  return finding;
}

namespace {

// Ranks that a context asks for; 0 where it does not say. -n counts before -N, which is of a node.
long ranks_of(const Context& context, long nodes) {
  long ranks = 0, per_node = 0;
  for (const Option& option : context.options) {
    if (option.name == "pernode") per_node = 1;
    if (option.values.empty()) continue;
    const long number = std::atol(option.values[0].c_str());
    if (option.name == "n" || option.name == "np" || option.name == "c") ranks = number;
    if (option.name == "N" || option.name == "npernode") per_node = number;
  }
  return ranks != 0 ? ranks : per_node * nodes;
}

}  // namespace

Finding check_slots(const Machine& machine, const Job& job) {
  if (job.launcher.kind != Launcher::Kind::open_mpi)
    return good("slots", "no Open MPI launcher in question: others start as many ranks as asked");
  const std::optional<Allocation> given = allocation();
  const long cores = slots_of(machine);
  const long slots = given ? given->slots : cores;
  long ranks = 0, ranks_here = 0;
  for (const Context& context : job.contexts) {
    ranks_here += ranks_of(context, 1);
    const long more = ranks_of(context, given ? given->nodes : 1);
    if (more < 0)
      return {"slots", Severity::bad, fmt::format("{} ranks asked for", more),
              "mpirun refuses: a negative number of processes to run",
              "mpirun -n 2 ...  # a number from 1"};
    ranks += more;
  }
  const std::string there =
      fmt::format("{} slot{} ({})", slots, slots == 1 ? "" : "s", given ? given->of : "cores");
  const std::string seen =
      ranks == 0
          ? fmt::format("no number of ranks is given: mpirun starts one for each of {}", there)
          : fmt::format("{} rank{} asked for, and there {} {}", ranks, ranks == 1 ? " is" : "s are",
                        slots == 1 ? "is" : "are", there);
  // What a build does that counts cores in this allocation.
  const bool fits = ranks <= slots;
  const bool fits_here = !given || given->support.empty() ? fits : ranks_here <= cores;
  if (fits && fits_here) return good("slots", seen);
  if (may_oversubscribe(job)) return good("slots", seen + "; oversubscribing is allowed");
  for (const char* option : {"host", "hostfile", "machinefile", "default-hostfile", "H"})
    if (job.has_option(option)) return good("slots", seen + "; other hosts are named");
  if (fits != fits_here)
    return {"slots", Severity::note,
            fmt::format("{}, or {} (cores) where Open MPI was built without {}", seen, cores,
                        given->support),
            fmt::format("only an Open MPI that was built with {} counts an allocation by {}; where "
                        "slots are too few mpirun refuses",
                        given->support, given->of),
            fmt::format("{} | grep 'ras: {}'  # prints a line where it is built in",
                        job.launcher.major >= 5 ? "prte_info" : "ompi_info", given->support)};
  return {"slots", Severity::bad, seen,
          "mpirun refuses: there are not enough slots available in the system",
          job.launcher.major >= 5 ? "export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"
                                  : "export OMPI_MCA_rmaps_base_oversubscribe=1"};
}

}  // namespace rdmalloc::tool
