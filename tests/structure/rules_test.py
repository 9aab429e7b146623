#!/usr/bin/python3
"""Rules about the tree that no compiler checks (docs/design.md, "Rooms" and "What may never happen").

Each was seen to fail by breaking it once: an #include of regcache/ in alloc/, a call of madvise in
alloc/pages/, a mirror's host name in a document, a source file padded to 601 lines, a test's
invariant renamed, a test source that no CMakeLists.txt names; with the site taken from before an
mlock, with a second pthread_create behind one site, with a site in the table that nothing uses, and
with sites of verbs that the test in the lab did not name, and with purge_thread_start() in slab.cc, with
a test named it_does_not_change_while_the_block_lives, with a skip for "less memory than 5 GiB", and with DPDK's tests as
they were, which ctest called skipped where EAL did not start.
"""
import fnmatch
import glob
import os
import re
import runpy
import subprocess
import sys
import unittest
import urllib.parse

import tree

# The invariants that have a test by now. A line of docs/design.md that gains one enters here, and
# from then on can't lose it.
INVARIANTS_TESTED = set("I1 I2 I3 I4 I5 I6 I7 I8 I9 I10 I11 I12 I13 I14".split())
ALL_INVARIANTS = {f"I{number}" for number in range(1, 15)}

MEMORY_CALLS = "mmap mmap64 munmap mremap madvise process_madvise posix_madvise mprotect brk sbrk " \
    "shmat shmdt mlock mlock2 munlock mlockall remap_file_pages syscall".split()
# Files outside alloc/os/ that may make a memory system call, and why.
MAKES_MEMORY_CALLS = {
    "regcache/registrars/mlock.cc": "locking pages is what this registrar is for",
    "alloc/interpose/locked_memory.cc": "it defines mlockall(), the program's call, and passes it on",
}

LINES_LIMIT = 600


def hosts_of_this_machines_registries():
    """Where this machine gets its packages from, as far as that is not the public archive."""
    places = glob.glob("/etc/apt/sources.list") + glob.glob("/etc/apt/sources.list.d/*")
    places += glob.glob("/etc/pip.conf") + glob.glob("/etc/apt/apt.conf.d/*")
    hosts = set()
    for place in places:
        try:
            with open(place, encoding="utf-8", errors="replace") as file:
                for address in re.findall(r"https?://[^\s\"';]+", file.read()):
                    hosts.add(urllib.parse.urlsplit(address).hostname)
        except OSError:
            continue
    public = re.compile(r"(.*\.)?(debian\.org|ubuntu\.com|pypi\.org|github\.com|localhost)|127\.0\.0\.1")
    return {host for host in hosts if host and not public.fullmatch(host)}


class Rooms(unittest.TestCase):
    def test_alloc_does_not_include_regcache(self):
        wrong = [name for name in tree.sources("alloc")
                 if re.search(r'#\s*include\s*["<](regcache/|rdmalloc/reg)', tree.text(name))]
        self.assertEqual(wrong, [])

    def test_rooms_do_not_include_what_is_above_them(self):
        above = re.compile(r'#\s*include\s*["<](bench|tests|tools)/')
        wrong = [name for name in tree.sources("alloc", "regcache", "include")
                 if above.search(tree.text(name))]
        self.assertEqual(wrong, [])

    def test_public_headers_include_no_private_one(self):
        wrong = [name for name in tree.sources("include")
                 if re.search(r'#\s*include\s*["<](alloc|regcache)/', tree.text(name))]
        self.assertEqual(wrong, [])

    def test_memory_system_calls_are_made_in_alloc_os_only(self):
        call = re.compile(r"(?<![\w.>:])(?:::)?(" + "|".join(MEMORY_CALLS) + r")\s*\(")
        wrong = []
        for name in tree.sources("alloc", "regcache"):
            if name.startswith("alloc/os/") or name in MAKES_MEMORY_CALLS:
                continue
            for number, line in enumerate(tree.without_comments(tree.text(name)).splitlines(), 1):
                if call.search(line):
                    wrong.append(f"{name}:{number}: {line.strip()}")
        self.assertEqual(wrong, [])


# What makes a thread, and the files that may: none that malloc or free comes to. A call there waits for
# locks of libc's under which libc may be calling free().
MAKES_A_THREAD = re.compile(r"(?<![\w.>:])(?:::)?(pthread_create|thrd_create|helper_thread_create"
                            r"|purge_thread_start|purge_wake|purge_request_all|purge_note_thread_ends)\s*\(")
MAY_MAKE_THREADS = {
    "alloc/core/helper_threads.cc": "makes them",
    "alloc/core/file_thread.cc": "for the purge thread",
    "alloc/purge/purge_thread.cc": "the purge thread",
    "alloc/interpose/threads.cc": "the program's own creation of one",
    "alloc/cache/cache_life.cc": "a key destructor: a thread ends",
    "alloc/api/library.cc": "rdmalloc_init()",
    "alloc/api/malloc.cc": "malloc_trim()",
    "alloc/core/purge_signal.cc": "what the purge thread left there, for the others below",
    "alloc/pages/events.cc": "rdmalloc_observer_add()",
    "alloc/pages/region_pages.cc": "rdmalloc_heap_destroy()",
}
# Makes the one for files: the purge thread's rounds only.
RUNS_FILES = re.compile(r"(?<![\w.>:])file_thread_run\s*\(")
MAY_RUN_FILES = ("alloc/core/file_thread.cc", "alloc/purge/purge.cc", "alloc/purge/pressure.cc")


class Threads(unittest.TestCase):
    def test_none_is_made_on_a_way_from_malloc_or_free(self):
        wrong = [f"{name}:{number}: {line.strip()}"
                 for name in tree.sources("alloc") if name.endswith(".cc")
                 for number, line in enumerate(tree.without_comments(tree.text(name)).splitlines(), 1)
                 if (MAKES_A_THREAD.search(line) and name not in MAY_MAKE_THREADS)
                 or (RUNS_FILES.search(line) and name not in MAY_RUN_FILES)]
        self.assertEqual(wrong, [])


# Calls of ours that can fail: into the kernel, libc's threads and loader, fabrics. `.name(` and
# `->name(` count as well as `name(` where the name is a table's.
FAILING_CALLS = re.compile(r"""(?x)
    (?<![\w.>:~])(?:::|os::)?
      ( raw_syscall | syscall | mmap | munmap | mremap | madvise | mprotect | mlock | munlock
      | open | openat | read | pread | ioctl | fcntl | socket | prctl
      | pthread_create | pthread_atfork | pthread_key_create | pthread_once | atexit | sigtimedwait
      | dlopen | dlsym | dlvsym | fi_\w+ | ibv_\w+ | ucp_\w+ | io_uring_\w+ | rte_\w+
      | malloc | calloc | realloc | posix_memalign ) \(
  | (?:\.|->) ( register_ | deregister | mem_register | mem_unregister | reg_mr | dereg_mr
      | ops\.purge | ops\.quiesce | ops\.resume | event ) \(""")
SITE = re.compile(r"should_fail\(")
DEFINITION = re.compile(r"[\w*&>](?<!\breturn)(?<!\belse)[ *&]$")  # what stands before a name there
# Those that have no site, and why. File or folder, and what the call begins with.
WITHOUT_A_SITE = [
    ("alloc/os/syscall.h", "", "the instruction itself"),
    ("alloc/os/", "raw_syscall(SYS_getpid", "can't fail"),
    ("alloc/os/", "raw_syscall(SYS_gettid", "can't fail"),
    ("alloc/os/", "raw_syscall(SYS_uname", "can't fail"),
    ("alloc/os/", "raw_syscall(SYS_tgkill", "a question; its failure is an answer"),
    ("alloc/os/", "raw_syscall(SYS_get_robust_list", "the same"),
    ("alloc/os/file.cc", "raw_syscall(SYS_fstat", "the same"),
    ("alloc/os/memory.cc", "raw_syscall(SYS_readlinkat", "the same"),
    ("alloc/os/memory.cc", "raw_syscall(SYS_newfstatat", "the same"),
    ("alloc/os/", "raw_syscall(SYS_nanosleep", "cut short at worst, which who sleeps must bear"),
    ("alloc/os/", "raw_syscall(SYS_close", "closes whatever it says"),
    ("alloc/os/", "raw_syscall(SYS_futex, reinterpret_cast<long>(word), FUTEX_WAKE",
     "can't fail on a word that is mapped"),
    ("alloc/os/userfault.cc", "raw_syscall(SYS_ioctl, fd", "control(): its callers have the sites"),
    ("alloc/os/userfault.cc", "raw_syscall(SYS_ppoll", "a question; its failure is an answer"),
    ("alloc/os/userfault.cc", "raw_syscall(SYS_write", "an eventfd of ours; can't fail"),
    ("alloc/os/userfault.cc", "raw_syscall(SYS_read, stop_fd", "beyond userfault_wait's failure"),
    ("alloc/os/os.cc", "raw_syscall(SYS_mmap, static_cast<long>(hint)", "map(): as control()"),
    ("alloc/os/os.cc", "raw_syscall(SYS_madvise", "advise(): as control()"),
    ("alloc/os/os.cc", "raw_syscall(SYS_mremap", "move(): as control()"),
    ("", "prctl(PR_SET_NAME", "a thread without a name works as well"),
    ("alloc/os/os.cc", "raw_syscall(SYS_rt_sig", "a signal then comes as it would have"),
    ("alloc/os/os.cc", "raw_syscall(SYS_sched_", "a wish: a thread that stays real-time works as well"),
    ("alloc/core/next_definition.cc", "dlsym(RTLD_NEXT", "libc has it, or nothing works at all"),
    ("regcache/core/loaded_library.cc", "dlsym(RTLD_DEFAULT", "the same, where librdmalloc stands behind it"),
    ("regcache/interpose/foreign.cc", "dlvsym(RTLD_DEFAULT", "a question; its failure is an answer"),
    ("regcache/notifiers/notifiers.cc", 'dlsym(RTLD_DEFAULT, ""', "the same"),
    ("regcache/interpose/", "open(file, mode)", "the program's own dlopen, passed on"),
    ("alloc/interpose/", "next_of(", "the program's own call, passed on"),
    ("regcache/verbs_shim/real.cc", "dl", "the shim's way to the program's libibverbs"),
    ("alloc/os/memory.cc", "read(file, value)", "Cgroup::read(), by read_file()"),
    ("alloc/os/memory.cc", "read(is_version_1_", "the same"),
    ("alloc/api/glibc_extras.cc", "realloc(ptr, total)", "the program's own, which has sites where it is ours"),
    ("regcache/registrars/", "io_uring_peek_cqe", "no system call"),
    ("regcache/registrars/", "io_uring_cqe_seen", "no system call"),
    ("regcache/registrars/", "rte_eal_iova_mode", "tells what it knows"),
    ("regcache/registrars/", "fi_mr_desc", "tells what it knows"),
    ("regcache/registrars/", "fi_mr_key", "tells what it knows"),
    ("regcache/registrars/", "ibv_get_device_name", "tells what it knows"),
    ("regcache/registrars/", "ucp_rkey_buffer_release", "frees memory"),
    ("regcache/registrars/", "ibv_free_device_list", "frees memory"),
    ("regcache/registrars/", "io_uring_unregister_buffers", "at the end: no caller could do anything"),
    ("regcache/registrars/", "io_uring_queue_exit", "the same"),
    ("regcache/registrars/", "ibv_dealloc_pd", "the same"),
    ("regcache/registrars/", "ibv_close_device", "the same"),
    ("regcache/verbs_shim/shim.cc", "reg_mr(pd,", "the program's own call, passed on"),
    ("regcache/verbs_shim/shim.cc", "dereg_mr(mr)", "the same"),
    ("regcache/verbs_shim/shim.cc", "malloc(64)", "to see whose malloc it is"),
]


def functions_of(code):
    """The bodies of functions, headers included: outermost braces that are no namespace or class."""
    scope = re.compile(r"^\s*(?:template\s*<[^{]*>\s*)?(?:inline\s+)?"
                       r"(?:namespace|extern\b|class|struct|union|enum)\b[^()=]*$")
    depth, begin, header = 0, 0, 0
    for at, letter in enumerate(code):
        if letter == "{":
            if depth == 0 and scope.match(re.sub(r"(?m)^#.*$", "", code[header:at])):
                header = at + 1
                continue
            if depth == 0:
                begin = header
            depth += 1
        elif letter == "}":
            depth = max(depth - 1, 0)
            header = at + 1 if depth == 0 else header
            if depth == 0 and begin is not None:
                yield begin, code[begin:at + 1]
                begin = None
        elif letter == ";" and depth == 0:
            header = at + 1


class FaultSites(unittest.TestCase):
    def sites(self):
        return dict(re.findall(r'SITE\((k\w+), "(\w+)"', tree.text("alloc/os/fault_sites.h")))

    def test_every_call_that_can_fail_is_behind_a_site(self):
        wrong = []
        for name in tree.sources("alloc", "regcache"):
            code = tree.without_comments(tree.text(name))
            for begin, body in functions_of(code):
                # Each call has a site of its own: one between it and the call before it.
                free_from = 0
                for call in FAILING_CALLS.finditer(body):
                    if DEFINITION.search(body, 0, call.start()):
                        continue
                    words = re.sub(r"\s+", " ", body[call.start():call.start() + 120])
                    if any(name.startswith(place) and words.lstrip(".->").startswith(begins)
                           for place, begins, _ in WITHOUT_A_SITE):
                        continue
                    if not SITE.search(body, free_from, call.start()):
                        number = code.count("\n", 0, begin + call.start()) + 1
                        wrong.append(f"{name}:{number}: {words[:60]}")
                    free_from = call.end()
        what = "put should_fail(site) before it (alloc/os/fault.h) and the site into " \
            "alloc/os/fault_sites.h, or say in WITHOUT_A_SITE why it can't fail"
        self.assertEqual(wrong, [], "\n".join(["", *wrong, what]))

    def test_the_table_has_the_sites_of_the_code_and_no_others(self):
        sites = self.sites()
        self.assertGreater(len(sites), 50)
        used = set()
        for name in tree.sources("alloc", "regcache"):
            if name.startswith("alloc/os/fault"):
                continue
            text = tree.text(name)
            used |= {sites.get(constant, constant) for constant in re.findall(r"Site::(k\w+)", text)}
            for arguments in re.findall(r"should_fail\(([^;]*)", text):
                used |= set(re.findall(r'"(\w+)"', arguments.split(")")[0]))
        self.assertEqual(used - {"kCount"}, set(sites.values()))

    def test_sites_left_out_by_the_walk_fail_in_the_test_named(self):
        path = os.path.join(tree.ROOT, "tests/faults/elsewhere.py")
        test_of = runpy.run_path(path)["TEST_OF"]
        self.assertGreater(len(test_of), 20)
        constants = {site: constant for constant, site in self.sites().items()}
        self.assertEqual(set(test_of) - set(constants), set(), "no such sites")
        wrong = []
        for site, name in test_of.items():
            code = re.sub(r"//[^\n]*", "", tree.text(name))
            # In a list of names, or in what RDMALLOC_FAULT is set to.
            if not re.search(rf'Site::{constants[site]}\b|[",=]{site}(?:"|:\d)', code):
                wrong.append(f"{name}: {site}")
        self.assertEqual(wrong, [], "is not made to fail there")


class Tree(unittest.TestCase):
    def test_names_no_host_of_this_machines_registries(self):
        hosts = hosts_of_this_machines_registries()
        wrong = [(name, host) for name in tree.files() for host in hosts if host in tree.text(name)]
        self.assertEqual(wrong, [])

    def test_no_conflict_of_a_merge_is_left(self):
        wrong = [name for name in tree.files()
                 if re.search(r"^(<{7}|>{7}) ", tree.text(name), flags=re.M)]
        self.assertEqual(wrong, [])

    def test_names_no_path_of_a_developers_machine(self):
        # Homes, and the folder that this clone (or the one it is a worktree of) lies in.
        common = subprocess.run(["git", "-c", f"safe.directory={tree.ROOT}", "-C", tree.ROOT,
                                 "rev-parse", "--path-format=absolute", "--git-common-dir"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                check=False).stdout.strip() or tree.ROOT + "/.git"
        folders = {os.path.dirname(clone) for clone in (tree.ROOT, os.path.dirname(common))}
        paths = [re.escape(folder + "/") for folder in folders - {"/", "/tmp", "/usr/src", "/src"}]
        machine = re.compile("|".join(["/home/[a-z]", r"(?<![\w.])/root/", *paths]))
        wrong = [f"{name}:{number}: {line.strip()[:80]}" for name in tree.files()
                 if name != "tests/structure/rules_test.py"
                 for number, line in enumerate(tree.text(name).splitlines(), 1)
                 if machine.search(line)]
        self.assertEqual(wrong, [])

    def test_long_files_say_why(self):
        wrong = []
        for name in tree.files():
            lines = tree.text(name).splitlines()
            if len(lines) > LINES_LIMIT and not name.startswith("LICENSE") \
                    and not any("600 lines" in line for line in lines[:30]):
                wrong.append(f"{name}: {len(lines)} lines; split it, or say in its first 30 lines "
                             f"why it is longer than {LINES_LIMIT} lines")
        self.assertEqual(wrong, [])

    def test_no_command_of_a_test_is_cut_at_a_semicolon(self):
        # CMake's lists end an element there, also inside quotes: sh or Python would run the first half alone.
        wrong = [f"{name}: {words.group()}" for name in tree.files() if name.endswith("CMakeLists.txt")
                 for words in re.finditer(r'\s-c\s+"(?:[^"\\]|\\.)*"', tree.text(name)) if ";" in words.group()]
        self.assertEqual(wrong, [])

    def test_every_source_of_a_test_is_built(self):
        lists = "\n".join(tree.text(name) for name in tree.files()
                          if name.endswith("CMakeLists.txt") and name.startswith("tests/"))
        wrong = [name for name in tree.sources("tests")
                 if name.endswith((".c", ".cc")) and os.path.basename(name) not in lists]
        self.assertEqual(wrong, [])

    def test_scripts_are_executable_and_parse(self):
        wrong = []
        for name in tree.files():
            path = os.path.join(tree.ROOT, name)
            with open(path, "rb") as file:
                first = file.readline()
            if first.startswith(b"#!") and not os.access(path, os.X_OK):
                wrong.append(f"{name}: not executable")
            if first.startswith(b"#!/bin/bash"):
                done = subprocess.run(["bash", "-n", path], stderr=subprocess.PIPE, text=True,
                                      check=False)
                if done.returncode:
                    wrong.append(done.stderr)
        self.assertEqual(wrong, [])


NAME_LIMIT = 60  # letters of a test's name
NAME = re.compile(r"(?m)^(?:TYPED_TEST|TEST(?:_[FP])?)\(\s*(\w+),\s*(\w+)\s*\)|^ *def ((?:test|case)_\w+)\(")
FILTER = re.compile(r"gtest_filter=([\w.*:]+)(?![\w.*:/]|\$\{)")


# Words that a name may not begin with, since they stand for a subject that is elsewhere.
PRONOUN = re.compile(r"(?:test_)?(?:I\d+_)?(?:it|its|they|their|that|who|nor|or|and|but|so)_")


def names_of_tests():
    return [(name, match[2] or match[3]) for name in tree.files()
            if name.startswith("tests/") and name.endswith((".cc", ".py"))
            for match in NAME.finditer(tree.text(name))]


class Names(unittest.TestCase):
    def test_no_name_of_a_test_begins_with_a_pronoun(self):
        wrong = [f"{name}: {test}" for name, test in names_of_tests() if PRONOUN.match(test)]
        self.assertEqual(wrong, [], "\n".join(["", *wrong, "a test's name has a subject"]))

    def test_no_name_of_a_test_is_long(self):
        names = names_of_tests()
        self.assertGreater(len(names), 1000)
        long = [f"{name}: {test}" for name, test in names if len(test) > NAME_LIMIT]
        self.assertEqual(long, [], "\n".join(
            ["", *long, f"a test's name has at most {NAME_LIMIT} letters: what is tested, and what it does"]))

    def test_filters_find_tests(self):
        # GoogleTest passes where a filter finds none.
        tests = [f"{match[1]}.{match[2]}" for name in tree.sources("tests")
                 for match in NAME.finditer(tree.text(name))]
        parts = [(name, part) for name in tree.files() if name.startswith("tests/")
                 for match in FILTER.finditer(tree.text(name)) for part in match[1].split(":")
                 if not part.endswith(".")]  # the rest of the name is put behind it
        self.assertGreater(len(parts), 5)
        self.assertEqual([], [f"{name}: {part}" for name, part in parts if not fnmatch.filter(tests, part)])


SKIP = re.compile(r"GTEST_SKIP\(\)\s*(?:<<\s*)?(.{0,30})")
# Texts of others that begin with "SKIP: ": HugePool's, why_not_watched()'s, and what a program of the test has printed.
SKIPS_FOR = ("\"SKIP: ", "pool.why_not", "why;", "result.output")


class Skips(unittest.TestCase):
    def test_each_says_what_is_missing(self):
        skips = [(name, match[1]) for name in tree.sources("tests") for match in SKIP.finditer(tree.text(name))]
        self.assertGreater(len(skips), 80)
        self.assertEqual([], [f"{name}: GTEST_SKIP() << {why}" for name, why in skips if not why.startswith(SKIPS_FOR)])

    def test_each_script_says_what_is_missing(self):
        looks = [(name, line) for name in tree.files() if name.startswith("tests/") and name.endswith(".sh")
                 for line in tree.text(name).splitlines() if re.search(r"\bcommand -v\b.* >/dev/null", line)]
        self.assertGreater(len(looks), 2)
        self.assertEqual([], [f"{name}: {line}" for name, line in looks if "echo \"SKIP: " not in line])

    def test_no_suite_is_set_up_as_a_whole(self):
        # GoogleTest says "SKIPPED" of the tests of a suite whose setting up has failed, and ctest takes that for a
        # skip, whatever the exit status: each of a suite's tests passed where none ran.
        self.assertEqual([], [name for name in tree.sources("tests")
                              if re.search(r"\bSetUpTest(?:Suite|Case)\(", tree.text(name))])


class Invariants(unittest.TestCase):
    def test_every_invariant_has_a_test_that_names_it(self):
        named = set()
        for name in tree.files():
            if name.startswith("tests/") and not name.startswith("tests/structure/"):
                named |= set(re.findall(r"\b(I(?:1[0-4]|[1-9]))(?=_|\b)", tree.text(name)))
        print("named in tests:", *sorted(named, key=lambda i: int(i[1:])),
              "| not yet:", *sorted(ALL_INVARIANTS - named, key=lambda i: int(i[1:])))
        self.assertEqual(INVARIANTS_TESTED - named, set())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
