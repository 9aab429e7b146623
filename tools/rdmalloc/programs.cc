#include "tools/rdmalloc/programs.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <rdmalloc/rdmalloc.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "alloc/os/control_character.h"
#include "tools/rdmalloc/elf_file.h"

namespace rdmalloc::tool {
namespace {

namespace fs = std::filesystem;

Found look_at(const std::string& path) {
  struct stat state = {};
  if (stat(path.c_str(), &state) != 0) {
    return {"", errno == ENOENT ? kExitNotFound : kExitNotExecutable,
            fmt::format("{}: {}", path, std::strerror(errno))};
  }
  if (S_ISDIR(state.st_mode))
    return {"", kExitNotExecutable, fmt::format("{}: is a directory", path)};
  // Its first line is read later: a pipe's would be waited for.
  if (!S_ISREG(state.st_mode))
    return {"", kExitNotExecutable, fmt::format("{}: is no regular file", path)};
  if (access(path.c_str(), X_OK) != 0)
    return {"", kExitNotExecutable,
            fmt::format("{}: {}; if it is a program, make it executable: chmod +x {}", path,
                        std::strerror(errno), quoted(path))};
  return {path, 0, ""};
}

// "#!/usr/bin/env python3": /usr/bin/env. Empty without such a line.
std::string interpreter_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line(256, '\0');  // the kernel reads no further
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(file.gcount()));
  if (line.rfind("#!", 0) != 0) return {};
  std::istringstream words(line.substr(2, line.find('\n') - 2));
  std::string interpreter;
  words >> interpreter;
  return interpreter;
}

// AT_SECURE, by which the loader drops a preload: the program gets rights that its caller lacks.
// The kernel gives none to a process that may get no more, nor by files of a mount with nosuid.
bool gets_more_rights(const std::string& program) {
  struct stat state = {};
  struct statvfs mount = {};
  if (stat(program.c_str(), &state) != 0) return false;
  if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1) return false;
  if (statvfs(program.c_str(), &mount) == 0 && (mount.f_flag & ST_NOSUID) != 0) return false;
  if ((state.st_mode & S_ISUID) != 0 && state.st_uid != getuid()) return true;
  if ((state.st_mode & S_ISGID) != 0 && (state.st_mode & S_IXGRP) != 0 && state.st_gid != getgid())
    return true;
  // Capabilities in the file give root nothing new.
  return getuid() != 0 && getxattr(program.c_str(), "security.capability", nullptr, 0) > 0;
}

class Pipe {
 public:
  Pipe() {
    if (pipe2(ends_, O_CLOEXEC) != 0) ends_[0] = ends_[1] = -1;
  }
  ~Pipe() {
    close_writer();
    if (ends_[0] >= 0) close(ends_[0]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int reader() const { return ends_[0]; }
  int writer() const { return ends_[1]; }
  void close_writer() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  int ends_[2];
};

// A parent that ignores SIGCHLD, as some daemons do, leaves that to us: the kernel then keeps no
// child's status, and each would seem to have ended with 0. What we become has it as it was.
class KeepStatuses {
 public:
  KeepStatuses() {
    struct sigaction usual = {};
    usual.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &usual, &before_);
  }
  ~KeepStatuses() { sigaction(SIGCHLD, &before_, nullptr); }
  KeepStatuses(const KeepStatuses&) = delete;
  KeepStatuses& operator=(const KeepStatuses&) = delete;

 private:
  struct sigaction before_ = {};
};

std::vector<std::string> changed_environment(const Changes& changes) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; entry++) {
    const std::string text = *entry;
    if (changes.count(text.substr(0, text.find('='))) == 0) all.push_back(text);
  }
  for (const auto& [name, value] : changes)
    if (value) all.push_back(fmt::format("{}={}", name, *value));
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> all;
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

// Until both ends are closed; false at the limit.
bool drain(const Pipe& out, const Pipe& err, std::chrono::milliseconds limit, Said& said) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  pollfd ends[] = {{out.reader(), POLLIN, 0}, {err.reader(), POLLIN, 0}};
  std::string* texts[] = {&said.out, &said.err};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    if (poll(ends, 2, static_cast<int>(left.count())) < 0 && errno != EINTR) return false;
    for (int which = 0; which < 2; which++) {
      if (ends[which].fd < 0 || ends[which].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = read(ends[which].fd, buffer, sizeof buffer);
      if (count > 0)
        texts[which]->append(buffer, static_cast<std::size_t>(count));
      else if (count == 0 || errno != EINTR)
        ends[which].fd = -1;
    }
  }
  return true;
}

}  // namespace

std::string our_library() {
  Dl_info place = {};
  if (dladdr(reinterpret_cast<void*>(&rdmalloc_version), &place) == 0 || place.dli_fname == nullptr)
    return "";
  return fs::path(place.dli_fname).lexically_normal().string();
}

std::string own_program() {
  constexpr const char* kLink = "/proc/self/exe";
  const char* started_as = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  return access(kLink, X_OK) == 0 || started_as == nullptr ? kLink : started_as;
}

Found find_program(const std::string& name) {
  if (name.empty()) return {"", kExitNotFound, "'': no program has an empty name"};
  if (name.find('/') != std::string::npos) return look_at(name);
  const char* path = std::getenv("PATH");
  // An empty entry is the current folder, also behind the last colon, where getline sees none.
  std::istringstream folders(std::string(path != nullptr ? path : "/bin:/usr/bin") + ":");
  Found seen = {"", kExitNotFound, fmt::format("{}: not found in PATH", name)};
  for (std::string folder; std::getline(folders, folder, ':');) {
    const Found one = look_at((folder.empty() ? "." : folder) + "/" + name);
    if (one.status == 0) return one;
    // What is there but can't be executed is remembered: something later in PATH may be better.
    std::error_code ignored;
    if (seen.status == kExitNotFound &&
        fs::is_regular_file((folder.empty() ? "." : folder) + "/" + name, ignored))
      seen = one;
  }
  return seen;
}

std::string started_for(const std::string& path) {
  std::string program = path;
  constexpr int kMostInterpreters = 5;  // the kernel's limit is 4 rewrites
  for (int depth = 0; depth < kMostInterpreters; depth++) {
    const std::string next = interpreter_of(program);
    if (next.empty()) return program;
    program = next;
  }
  return {};
}

namespace {

// Whether it has something of ours, malloc or not: the word that only our statistics begin with,
// since strip takes the symbols of a static program.
bool has_our_words(const std::string& program) {
  constexpr std::string_view kWord = "\"rdmalloc-stats-1\"";
  constexpr std::size_t kPiece = 1 << 20;
  std::ifstream file(program, std::ios::binary);
  std::string text;
  for (std::string piece(kPiece, '\0');;) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    text.append(piece, 0, static_cast<std::size_t>(file.gcount()));
    if (text.find(kWord) != std::string::npos) return true;
    if (!file) return false;
    text.erase(0, text.size() - kWord.size());  // it may lie across two pieces
  }
}

}  // namespace

std::string preload_obstacle(const std::string& program, const std::string& library) {
  const std::optional<ElfFile> file = read_elf(program);
  const std::optional<ElfFile> ours = read_elf(library);
  if (!file || !ours) return {};
  if (file->bits != ours->bits || file->machine != ours->machine)
    return fmt::format(
        "{} is a program for {}, and the library is for {}: the loader will not load it there; "
        "build "
        "rdmalloc for that architecture and name it by --library",
        program, architecture_of(*file), architecture_of(*ours));
  if (file->has_our_malloc) return {};  // without a preload
  if (file->interpreter.empty() && has_our_words(program))
    return fmt::format(
        "{} is linked statically, with words of rdmalloc and without its malloc "
        "(librdmalloc_prefixed.a, or an older librdmalloc.a): there is no loader that could "
        "preload "
        "anything; link it with this librdmalloc.a (rdmalloc::static)",
        program);
  if (file->interpreter.empty() && file->type == ET_EXEC)
    return fmt::format(
        "{} is linked statically: there is no loader that could preload anything; link it with "
        "librdmalloc.a (rdmalloc::static), or link it dynamically",
        program);
  if (file->interpreter.empty())
    return fmt::format(
        "{} names no loader (a static-pie program, or a library): nothing can be preloaded; link "
        "it "
        "with librdmalloc.a (rdmalloc::static), or link it dynamically",
        program);
  if (file->interpreter.find("musl") != std::string::npos)
    return fmt::format(
        "{} is linked with musl ({}), and the library with glibc: it can't be loaded there; use a "
        "program that is linked with glibc",
        program, file->interpreter);
  if (gets_more_rights(program))
    return fmt::format(
        "{} is set-uid, set-gid or has capabilities: the loader ignores preloads that are not "
        "installed for all such programs; run a copy of it without these (cp it), or as its owner",
        program);
  if (defines(*file, "malloc"))
    return fmt::format(
        "{} defines malloc itself, and a program's own comes before any preload; build it "
        "without its own",
        program);
  return {};
}

Said ask(const std::vector<std::string>& command, const Changes& more,
         std::chrono::milliseconds limit) {
  Said said;
  const KeepStatuses keep;
  Pipe out, err;
  if (out.reader() < 0 || err.reader() < 0) {
    // Without them it would write to our output.
    said.err = std::strerror(EMFILE);
    return said;
  }
  std::vector<std::string> words = command;
  std::vector<std::string> variables = changed_environment(more);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.writer(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.writer(), STDERR_FILENO);
  pid_t child = -1;
  const int error = posix_spawnp(&child, words[0].c_str(), &actions, nullptr,
                                 pointers_to(words).data(), pointers_to(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    said.err = std::strerror(error);
    return said;
  }
  out.close_writer();
  err.close_writer();
  said.has_ended = drain(out, err, limit, said);
  if (!said.has_ended) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  said.exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return said;
}

std::string visible(const std::string& text) {
  std::string shown;
  for (const char letter : text) {
    const auto c = static_cast<unsigned char>(letter);
    const auto before = static_cast<unsigned char>(shown.empty() ? 0 : shown.back());
    shown +=
        os::is_control_character(before, c) ? fmt::format("\\x{:02x}", c) : std::string(1, letter);
  }
  return shown;
}

std::string quoted(const std::string& word) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char letter : word)
    text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

}  // namespace rdmalloc::tool
