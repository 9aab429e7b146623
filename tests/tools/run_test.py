#!/usr/bin/python3
"""rdmalloc run: the program has the preload and the settings, the rest stays as it was.

    run_test.py RDMALLOC LIBRDMALLOC_SO

launchers_test.py has the launchers. Seen to fail: with the library behind what LD_PRELOAD has, with
a child in place of exec, with a status of 126 for a lost interpreter, with the checks of the
library's class, machine, names and loader and those of the program's loader, rights and malloc each
taken out; with links followed for every name, without the looks at the owner and the rights of a folder;
with pieces of statistics of 1,024 bytes, cut where they are full; with no rank at their head.
"""
import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import launching
from launching import call, environment, script

TOOL, LIBRARY = sys.argv[1:]
# As the tool names it: by the name that the loader found it by.
OURS = os.path.realpath(LIBRARY)
HAS_US = "grep -q librdmalloc /proc/self/maps && echo with || echo without"


def run(*arguments, env=None, **more):
    return call([TOOL, "run", *arguments], env=env, **more)


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="rdmalloc-run-")
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        launching.readable_by_all(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def fake(self, name, says):
        """A launcher that says it is this one."""
        os.makedirs(self.path("bin"), exist_ok=True)
        return script(self.path("bin/" + name), f"#!/bin/sh\necho '{says}'\n")


class Plain(Case):
    def test_program_has_us_first_and_keeps_what_it_had(self):
        self.assertEqual(run("--", "sh", "-c", HAS_US).stdout, "with\n")
        other = script(self.path("other.so"), "")
        done = run("--library", OURS, "--", "printenv", "LD_PRELOAD",
                   env=environment(LD_PRELOAD=f"{other}:/nowhere/librdmalloc.so.0:{OURS}"))
        self.assertEqual(done.stdout, f"{OURS}:{other}\n")

    def test_double_dash_is_optional_a_second_one_is_the_programs(self):
        for words in (("--", "echo", "--", "--stats"), ("echo", "--", "--stats"),
                      ("--purge", "off", "echo", "--", "--stats"),
                      ("--purge=off", "--", "echo", "--", "--stats")):
            done = run(*words)
            self.assertEqual((done.stdout, done.stderr), ("-- --stats\n", ""), words)

    def test_settings_reach_the_program(self):
        done = run("--set", "DECAY_MS=7", "--set", "RDMALLOC_LIMIT=1G", "--purge", "manual", "--",
                   "sh", "-c", "env | grep ^RDMALLOC_ | sort",
                   env=environment(RDMALLOC_DECAY_MS="9", RDMALLOC_HUGE="never"))
        self.assertEqual(done.stdout.split(), ["RDMALLOC_DECAY_MS=7", "RDMALLOC_HUGE=never",
                                               "RDMALLOC_LIMIT=1G", "RDMALLOC_PURGE=manual"])
        self.assertIn("arena_bytes", run("--stats", "--", "true").stderr)

    def test_statistics_name_their_process_and_keep_lines_whole(self):
        # A socket of packets: a write each.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            one = subprocess.run([TOOL, "run", "--stats", "--", "true"], stderr=theirs, check=False, timeout=60,
                                 env=environment(OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="8"))
            theirs.close()
            pieces = list(iter(lambda: ours.recv(1 << 20).decode(), ""))
        self.assertEqual(one.returncode, 0)
        self.assertRegex(pieces[0], r'\Ardmalloc \S+, rank 3 of 8, process \d+ "true" on "\S+"\n')
        self.assertEqual("".join(pieces).count("stats.arena_bytes"), 1)
        for piece in pieces:
            self.assertTrue(piece.endswith("\n"), piece)
            self.assertLessEqual(len(piece), 4096)  # PIPE_BUF: a pipe takes it as one
        self.assertLessEqual(len(pieces), 2)

    def test_statistics_go_through_no_link_that_a_pattern_meets(self):
        def written(name):
            victim, link = self.path("victim"), self.path("none.json")
            with open(victim, "w", encoding="utf-8"):
                pass
            if not os.path.lexists(link):
                os.symlink("victim", link)
            done = run("--set", f"STATS={self.folder}/{name}", "--", "true")
            self.assertEqual(done.returncode, 0, done)
            return os.path.getsize(victim) > 0, done.stderr
        self.assertEqual(written("none.json"), (True, ""))
        is_written, said = written("%r.json")
        self.assertEqual((is_written, "is a symbolic link" in said), (False, True), said)
        done = run("--set", "STATS=/dev/stderr", "--", "true")
        self.assertIn("rdmalloc-stats-1", done.stderr)

    def test_all_else_is_as_without(self):
        # Not SigQ: that counts the signals queued for all processes of the user (proc(5)).
        look = ("env | grep -v -e ^LD_PRELOAD= -e ^_= | sort; ls -l /proc/self/fd | awk '{print $9}';"
                "grep -e '^Sig[^Q]' -e ^ShdPnd -e ^Umask /proc/self/status; cat")

        def look_in(*before):
            return call([*before, "sh", "-c", look], input="a line\n", stdin=None,
                        preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN))
        without, with_us = look_in(), look_in(TOOL, "run", "--")
        for mask in ("SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"):
            self.assertIn(f"\n{mask}:", without.stdout)
        self.assertEqual(with_us.stdout, without.stdout)
        self.assertEqual(with_us.stderr, "")
        self.assertIn("a line", with_us.stdout)

    def test_rdmalloc_run_becomes_the_program(self):
        started = subprocess.Popen([TOOL, "run", "--", "sh", "-c", "echo $$; exec cat"], text=True,
                                   env=environment(), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE)
        self.assertEqual(int(started.stdout.readline()), started.pid)
        started.send_signal(signal.SIGTERM)
        self.assertEqual(started.wait(), -signal.SIGTERM)
        started.stdin.close()
        started.stdout.close()


class Status(Case):
    """What a shell makes of the same command."""

    def same_as_shell(self, *command, words=(), env=None):
        shell = call(["bash", "-c", '"$@"', "bash", *command], env=env)
        # Through a shell as well: it turns a signal into 128 + N for both.
        ours = call(["bash", "-c", '"$@"', "bash", TOOL, "run", "--", *command], env=env)
        self.assertEqual(ours.returncode, shell.returncode, (command, ours, shell))
        for word in words:
            self.assertIn(word, ours.stderr)
        return ours

    def test_of_programs(self):
        for command in ("true", "exit 7", "exit 255", "kill -SEGV $$", "kill -TERM $$"):
            self.assertEqual(self.same_as_shell("sh", "-c", command).stderr.count("rdmalloc"), 0)

    def test_of_what_can_not_be_started(self):
        self.same_as_shell("nosuch_program", words=["nosuch_program: not found in PATH"])
        self.same_as_shell("./nosuch", words=["./nosuch: No such file"])
        self.same_as_shell("/etc/passwd/x", words=["Not a directory"])
        self.same_as_shell(self.folder, words=["is a directory"])
        plain = script(self.path("plain"), "#!/bin/sh\n", mode=0o644)
        self.same_as_shell(plain, words=["Permission denied", "chmod +x"])
        os.mkfifo(self.path("fifo"), 0o755)
        done = run("--", self.path("fifo"), timeout=20)
        self.assertEqual((done.returncode, "is no regular file" in done.stderr), (126, True), done)
        lost = script(self.path("lost"), "#!/nowhere/interpreter\n")
        self.same_as_shell(lost, words=["/nowhere/interpreter", "interpreter or loader"])
        # Found in PATH, where a later one would do.
        os.mkdir(self.path("first"))
        script(self.path("first/tool"), "#!/bin/sh\nexit 3\n", mode=0o644)
        first = f"{self.path('first')}:{os.environ['PATH']}"
        self.same_as_shell("tool", env=environment(PATH=first), words=["Permission denied"])
        os.mkdir(self.path("second"))
        script(self.path("second/tool"), "#!/bin/sh\nexit 4\n")
        # An empty entry, also the last one, is the current folder.
        done = call([TOOL, "run", "--", "tool"], env=environment(PATH="/nowhere:"), cwd=self.path("second"))
        self.assertEqual(done.returncode, 4, done)
        both = f"{self.path('first')}:{self.path('second')}:{os.environ['PATH']}"
        self.assertEqual(self.same_as_shell("tool", env=environment(PATH=both)).returncode, 4)
        # A shell script without a first line is run by sh, as execvp does.
        self.assertEqual(self.same_as_shell(script(self.path("bare"), "exit 5\n")).returncode, 5)

    def test_launchers_that_are_not_there_say_what_to_install(self):
        os.mkdir(self.path("empty"))
        for launcher, package in (("mpirun", "openmpi-bin"), ("srun", "slurm-client")):
            done = run("--", launcher, "-n", "2", "true", env=environment(PATH=self.path("empty")))
            self.assertEqual(done.returncode, 127)
            self.assertIn(package, done.stderr)


class WithoutProc(Case):
    def test_the_loader_is_asked_all_the_same(self):
        hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /proc && exec "$@"', "sh"]
        if call([*hidden, "true"]).returncode != 0:
            self.skipTest("nothing can be mounted here")
        done = call([*hidden, TOOL, "run", "--set", "DECAY_MS=7", "--", "printenv", "LD_PRELOAD"])
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        self.assertIn("librdmalloc", done.stdout)


class Checkpoint(Case):
    @contextlib.contextmanager
    def asked_process(self):
        """One that can be asked, until it reads a line."""
        with subprocess.Popen([TOOL, "run", "--set", "CHECKPOINT=on", "--", "sh", "-c", "echo; read _"], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as child:
            child.stdout.readline()
            # The thread that is asked names itself, perhaps after that.
            while call(["sh", "-c", f"grep -qs rdmckpt /proc/{child.pid}/task/*/comm"]).returncode != 0:
                time.sleep(0.01)
            try:
                yield child
            except BaseException:
                child.kill()  # it may be stopped
                raise

    def test_one_right_after_the_other(self):
        """Seen to fail: a quiesce right after a resume asked the purge thread too, which had its maker's name still
        ("it has ended"); and a resume that was done "does not answer", as it was given the 0 ms."""
        with self.asked_process() as child:
            for action in (["quiesce"], ["--timeout", "0", "resume"]) * 40:
                done = call([TOOL, "checkpoint", *action, str(child.pid)])
                self.assertEqual((done.returncode, done.stderr), (0, ""), action)
            child.communicate("\n")

    def test_threads_of_a_ring_are_waited_for(self):
        """The kernel's stay for 5 s after it was closed; this one is named so and ends when told to. Seen to fail: "it does
        not answer", and the process, which no one resumed, was quiesced later."""
        words = ("import ctypes, threading; end = threading.Event()\n"
                 "def work(): ctypes.CDLL(None).prctl(15, b'iou-wrk-1', 0, 0, 0); print(flush=True); end.wait()\n"
                 "threading.Thread(target=work).start(); input(); end.set(); input()")
        with subprocess.Popen([TOOL, "run", "--set", "CHECKPOINT=on", "--", sys.executable, "-c", words], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as child:
            child.stdout.readline()
            with subprocess.Popen([TOOL, "checkpoint", "--timeout", "0", "quiesce", str(child.pid)], text=True,
                                  stderr=subprocess.PIPE, env=environment()) as asking:
                time.sleep(6)
                child.stdin.write("\n")
                child.stdin.flush()
                said = asking.communicate()[1]
            child.communicate("\n")
            self.assertEqual((asking.returncode, said), (0, ""))

    def test_one_that_is_stopped_is_said_to_follow(self):
        """Seen to fail: that it is quiesced as soon as it goes on, with no one left to resume it, was not said."""
        with self.asked_process() as child:
            child.send_signal(signal.SIGSTOP)
            done = call([TOOL, "checkpoint", "--timeout", "0", "quiesce", str(child.pid)])
            self.assertEqual(done.returncode, 1)
            remedy = f"checkpoint resume {child.pid}"
            self.assertIn(f"it will be quiesced once it goes on: then, rdmalloc {remedy}\n", done.stderr)
            child.send_signal(signal.SIGCONT)
            done = call([TOOL, *remedy.split()])
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            child.communicate("\n")

    def test_process_that_ends_while_it_is_asked(self):
        """Seen to fail: the whole tree was resumed, for a process of which nothing was left to dump."""
        threads = "cat /proc/{}/task/*/comm"
        inner = [TOOL, "run", "--set", "CHECKPOINT=on", "--", "sh", "-c"]
        for action in ("quiesce", "resume"):
            with subprocess.Popen([*inner, "sleep 1000 > /dev/null & echo $!; read _"], text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as root:
                child = int(root.stdout.readline())
                for process in (root.pid, child):
                    while "rdmckpt" not in call(["sh", "-c", threads.format(process)]).stdout:
                        time.sleep(0.01)
                if action == "resume":
                    self.assertEqual(call([TOOL, "checkpoint", "quiesce", str(root.pid)]).returncode, 0)
                before = call(["sh", "-c", threads.format(root.pid)]).stdout
                os.kill(child, signal.SIGSTOP)  # it can't answer
                asking = subprocess.Popen([TOOL, "checkpoint", action, str(root.pid)], stderr=subprocess.PIPE, text=True,
                                          env=environment())
                while call(["sh", "-c", threads.format(root.pid)]).stdout in (before, ""):
                    time.sleep(0.01)
                os.kill(child, signal.SIGKILL)
                self.assertEqual((asking.communicate()[1], asking.returncode),
                                 (f"rdmalloc: checkpoint: process {child} has ended meanwhile\n", 0))
                root.communicate("\n")

    def test_from_within_the_tree(self):
        """Seen to fail: the tool asked itself too, and at the resume what the tree has started since, which "was not
        quiesced"."""
        words = ('while ! grep -qs rdmckpt /proc/$$/task/*/comm; do :; done; '
                 '"$0" checkpoint quiesce $$ && { sleep 1000 >/dev/null 2>&1 & } && sleeper=$! && '
                 'while ! grep -qs rdmckpt /proc/$sleeper/task/*/comm; do :; done && '
                 '"$0" checkpoint resume $$ && echo resumed; kill $sleeper')
        done = run("--set", "CHECKPOINT=on", "--", "sh", "-c", words, TOOL)
        self.assertEqual((done.stdout, done.stderr), ("resumed\n", ""), done)

    def test_process_ids_that_are_hundreds_apart(self):
        """Seen to fail, and lab.checkpoint with it: numbered by the process id alone, the second of two such requests
        took the answer to the first for its own, and "did it" before it was done."""
        with self.asked_process() as child:
            for action, status, also in (("quiesce", 0, ""), ("resume", 0, ""),
                                         ("resume", 1, f"(sleep 0.2; kill -CONT {child.pid}) & ")):
                if also:  # stopped, it can't have answered yet
                    child.send_signal(signal.SIGSTOP)
                # A shell whose process id ends in 42 becomes the tool.
                shell = f'test $(($$ % 100)) -eq 42 || exit 42; {also}exec "$0" checkpoint {action} {child.pid}'
                status_now = 42
                while status_now == 42:
                    status_now = call(["sh", "-c", shell, TOOL]).returncode
                self.assertEqual(status_now, status, action)
            child.communicate("\n")

    def test_an_answer_in_whose_place_is_anothers(self):
        """The one that asked first is stopped until the second has its answer. Seen to fail: "it does not answer:
        stopped, or in a callback that does not return"."""
        def wait_for(process, line):
            """In the status of each of its threads, or of the one that is asked."""
            def texts():
                for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # as the purge thread ends
                        yield (task / "status").read_text()
            while not all(re.search("(?m)^" + line, text) for text in texts() if "State" in line or "rdmckpt" in text):
                self.assertIsNone(process.poll())
                time.sleep(0.01)

        def stop(process):
            process.send_signal(signal.SIGSTOP)
            wait_for(process, r"State:\s*T")

        with self.asked_process() as child:
            stop(child)  # so that the request waits
            with subprocess.Popen([TOOL, "checkpoint", "--timeout", "0", "quiesce", str(child.pid)], text=True,
                                  stderr=subprocess.PIPE, env=environment()) as first:
                try:
                    wait_for(child, r"SigPnd:.*[1-9a-f]")
                    stop(first)
                    child.send_signal(signal.SIGCONT)
                    wait_for(child, r"Name:\s*rdmckpt:\d+:0$")
                    self.assertEqual(call([TOOL, "checkpoint", "resume", str(child.pid)]).returncode, 0)
                    first.send_signal(signal.SIGCONT)
                except BaseException:
                    first.kill()
                    raise
                said = first.communicate()[1]
            self.assertEqual(first.returncode, 1)
            self.assertIn(f"process {child.pid} is not quiesced (error -125): another rdmalloc checkpoint asked it", said)
            child.communicate("\n")


class Refuses(Case):
    def refused(self, words, *arguments, env=None):
        done = run(*arguments, env=env)
        self.assertEqual((done.returncode, done.stdout), (125, ""), done)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_wrong_arguments(self):
        self.refused(["no command", "rdmalloc run [options] --"], "--stats")
        self.refused(["no command"], "--")
        self.refused(["--nonsense"], "--nonsense", "--", "echo")
        self.refused(["has no '='", "NAME=VALUE"], "--set", "DECAY_MS", "--", "echo")
        # Seen to fail: as --stats, as this installation's library, and as --set.
        for option in ("--stats", "--library", "--set", "--purge"):
            self.refused([f"{option}=: has nothing behind its '='"], f"{option}=", "--", "echo")
        self.assertEqual(run("--", "echo", "--stats=").stdout, "--stats=\n")
        self.refused(["RDMALLOC_DEKAY", "DECAY_MS"], "--set", "DEKAY=1", "--", "echo")

    def test_values_that_are_not_understood(self):
        for value, words in (("DECAY_MS=abc", ["allowed: 0 to 3600000"]), ("RDMALLOC_LIMIT=1K", ["4M or more"]),
                             ("HUGE=3M", ["auto, never, 2M, 1G"]), ("STATS=yes", ["a file with a '/'"]),
                             ("NOTIFY=", ["explicit"])):
            self.refused([f"--set {value}: RDMALLOC_", "is not understood", *words], "--set", value, "--", "echo")
        self.refused(["RDMALLOC_PURGE=never is not understood"], "--purge", "never", "--", "echo")
        # What is said of it cuts the value. Seen to fail: the tool did not know it then, and started the program.
        for long in ("never" * 1000, "\x1b" * 1000):
            self.refused(["RDMALLOC_PURGE=", "... is not understood; allowed: auto, thread, manual, off"],
                         "--set", "PURGE=" + long, "--", "echo")
        # Seen to fail: sent to the terminal as they are.
        self.refused(["--set PURGE=\\x1b[2J\\x9b: RDMALLOC_PURGE=\\x1b[2J\\x9b is not understood", "manual"],
                     "--set", b"PURGE=\x1b[2J\x9b", "--", "echo")
        for fault in ("xx:1", "commit", "commit:0", "commit:1,xx:2", "commit:1x", "commit: 1", "commit:+1", "commit:-1",
                      "commit:", "commit:1:2", "commit:1,,commit:2", ",commit:1", "commit:18446744073709551617"):
            self.refused(["is no site", "--fault-sites"], "--set", "FAULT=" + fault, "--", "echo")
            # And each rank would say so.
            said = run("--", "true", env=environment(RDMALLOC_FAULT=fault)).stderr
            self.assertIn(f"RDMALLOC_FAULT={fault} is not understood", said)
        # What is wrong in the environment is not this command's: the program warns, as without us.
        done = run("--set", "DECAY_MS=1", "--", "true", env=environment(RDMALLOC_HUGE="3M"))
        self.assertEqual(done.returncode, 0)
        self.assertIn("RDMALLOC_HUGE=3M is not understood", done.stderr)
        # And none that is right is refused, whatever else is set.
        for value in ("LIMIT=4M", "LIMIT=10%", "ARENA=64G", "LOG=quiet", "STATS=0", "STATS=./%p.json",
                      "CHECKPOINT=on", "TOPOLOGY=2x2", "FAULT=commit:9000", "FAULT=commit:9000,", "HUGE=1G",
                      "FAULT=commit:09000,decommit:9000", "FAULT=commit:18446744073709551615", "REG_MAX_BYTES=0"):
            done = run("--set", value, "--", "true", env=environment(RDMALLOC_LOG="quiet"), cwd=self.folder)
            self.assertEqual((done.returncode, done.stderr), (0, ""), value)
        # The program's own, and none of ours.
        self.assertEqual(len([name for name in os.listdir(self.folder) if name.endswith(".json")]), 1)

    def test_folders_that_others_may_change(self):
        for mode, words in ((0o777, ["all users may rename", "chmod o-w"]), (0o1777, []), (0o775, [])):
            folder = self.path(f"of{mode:o}")
            os.mkdir(folder)
            os.chmod(folder, mode)
            if words:
                self.refused([*words, folder], f"--stats={folder}", "--", "echo")
            else:
                self.assertEqual(run(f"--stats={folder}", "--", "true").stderr, "")
        own = self.path("made")
        self.assertEqual(call(["sh", "-c", 'umask 0; exec "$0" run --stats="$1" -- true', TOOL, own]).stderr, "")
        self.assertEqual(os.stat(own).st_mode & 0o777, 0o775)
        if os.geteuid() == 0:
            os.mkdir(self.path("theirs"))
            os.chown(self.path("theirs"), launching.NOBODY, launching.NOBODY)
            self.refused(["belongs to another user"], f"--stats={self.path('theirs')}", "--", "echo")

    def test_folder_that_is_new_has_any_owner(self):
        # As NFS shows it with root_squash.
        shim = self.path("shim.so")
        done = call(["cc", "-shared", "-fPIC", "-x", "c", "-o", shim, "-"], stdin=None, input="""
            #include <fcntl.h>
            #include <string.h>
            #include <sys/stat.h>
            int stat(const char* path, struct stat* state) {
              int result = fstatat(AT_FDCWD, path, state, 0);
              if (strstr(path, "squashed")) state->st_uid = 65533;
              return result;
            }""")
        self.assertEqual(done.returncode, 0, done)
        folder, env = f"--stats={self.path('squashed')}", environment(LD_PRELOAD=shim)
        self.assertEqual(run(folder, "--", "true", env=env).stderr, "")
        self.refused(["belongs to another user (65533)"], folder, "--", "echo", env=env)

    def crashing(self):
        """A library that the loader takes, and no program lives with."""
        library = self.path("crashing.so")
        done = call(["cc", "-shared", "-fPIC", "-fno-builtin", "-x", "c", "-o", library, "-"], stdin=None, input="""
            const char* rdmalloc_version(void) { return "none"; }
            void* malloc(unsigned long bytes) { return *(void* volatile*)0; }""")
        self.assertEqual(done.returncode, 0, done)
        return library

    def test_status_is_seen_where_sigchld_is_ignored(self):
        """Seen to fail: the kernel kept no status of the child that was asked, and the program was started."""
        def ignore():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        done = run("--library", self.crashing(), "--", "echo", "started", preexec_fn=ignore)
        self.assertEqual((done.returncode, done.stdout), (125, ""), done)
        # What is started ignores it still.
        done = run("--", "grep", "^SigIgn", "/proc/self/status", preexec_fn=ignore)
        self.assertTrue(int(done.stdout.split()[1], 16) >> (signal.SIGCHLD - 1) & 1, done)

    def test_without_descriptors_nothing_is_asked(self):
        """Seen to fail: what was asked wrote to this output, and passed for silent."""
        for limit in (4, 6):  # none of the two pipes, and one
            done = call(["prlimit", f"--nofile={limit}:{limit}", TOOL, "run", "--", "true"])
            self.assertEqual((done.returncode, done.stdout), (125, ""), done)
            self.assertIn("Too many open files", done.stderr)

    def test_libraries_that_can_not_be_preloaded(self):
        self.refused(["No such file", "--library"], "--library", "/nowhere.so", "--", "echo")
        text = script(self.path("text.so"), "nothing\n")
        self.refused(["not a shared library"], "--library", text, "--", "echo")
        libc = call(["sh", "-c", "ldd /bin/sh | awk '/libc.so/{print $3}'"]).stdout.strip()
        self.refused(["another library"], "--library", libc, "--", "echo")
        # The class is byte 4 of an ELF file, the machine bytes 18 and 19; 183 is aarch64, 62 x86-64.
        narrow = launching.patched_copy(OURS, self.path("narrow.so"), 4, 1)
        self.refused(["32-bit", "64-bit", "build"], "--library", narrow, "--", "echo")
        with open(OURS, "rb") as file:
            machine = file.read(19)[18]
        other = launching.patched_copy(OURS, self.path("other.so"), 18, 183 if machine == 62 else 62)
        self.refused(["is for 64-bit", "this machine's programs"], "--library", other, "--", "echo")
        # The loader's own word, for what the header does not show: a version of the ABI (byte 7).
        strange = launching.patched_copy(OURS, self.path("strange.so"), 7, 9)
        self.refused(["can't preload", "ld.so"], "--library", strange, "--", "echo")
        self.refused(["can't preload", "139"], "--library", self.crashing(), "--", "echo")
        spaced = self.path("a b.so")
        shutil.copy(OURS, spaced)
        self.refused(["spaces and colons"], "--library", spaced, "--", "echo")


class Without(Case):
    """Programs that the loader starts without us: said, and started or not."""

    def said(self, words, program, *before):
        """Said of the program, under a launcher too; the program itself does what it does."""
        for command in ([program], [self.fake("mpirun", "mpirun (Open MPI) 4.1.4"), "-n", "2",
                                    program]):
            done = call([*before, TOOL, "run", "--dry-run", "--", *command])
            self.assertEqual(done.returncode, 0, done)
            for word in (*words, "runs without rdmalloc"):
                self.assertIn(word, done.stderr)
        strict = call([*before, TOOL, "run", "--strict", "--", program])
        self.assertEqual((strict.returncode, strict.stdout), (125, ""), strict)

    def compiled(self, name, *options, source="int main(void) { return 6; }"):
        path = self.path(name)
        done = call(["cc", "-x", "c", "-o", path, *options, "-"], stdin=None, input=source)
        self.assertEqual(done.returncode, 0, done)
        return path

    def test_static_programs(self):
        fixed = self.compiled("fixed", "-static", "-no-pie")
        self.said(["linked statically", "librdmalloc.a"], fixed)
        done = run("--", fixed)
        self.assertEqual(done.returncode, 6)
        self.assertIn("runs without", done.stderr)
        self.said(["names no loader"], self.compiled("moved", "-static-pie"))

    def test_programs_of_another_working_folder(self):
        os.mkdir(self.path("there"))
        self.compiled("there/fixed", "-static", "-no-pie")
        four, srun = self.fake("mpirun", "mpirun (Open MPI) 4.1.4"), self.fake("srun", "")
        hydra, there = self.fake("mpiexec.hydra", "HYDRA build details:"), self.path("there")
        for words in ([four, "--wdir", there], [four, "-wd", there], [hydra, "-wdir", there], [srun, "-D", there],
                      [srun, "-D" + there], [srun, "--chdir=" + there]):
            done = run("--dry-run", "--strict", "--", *words, "-n", "1", "./fixed")
            self.assertEqual((done.returncode, "linked statically" in done.stderr), (125, True), (words, done))

    def test_programs_that_were_linked_with_us(self):
        archive = os.path.join(os.path.dirname(LIBRARY), "librdmalloc.a")
        prefixed = archive.replace("librdmalloc.a", "librdmalloc_prefixed.a")
        if not os.path.exists(archive) or not os.path.exists(prefixed):
            self.skipTest("no librdmalloc.a and librdmalloc_prefixed.a beside the library")
        # Seen to fail: with the prefixed library the program has our statistics, and libc's malloc.
        source = "int rdmalloc_stats_print(int, unsigned);\nint main(void) { rdmalloc_stats_print(2, 0); return 6; }"
        for options in (["-static"], ["-static", "-s"], ["-static-pie"]):
            program = self.compiled("half", *options, "-Wl,-u,rdmalloc_stats_print", "-x", "none", prefixed, "-x", "c",
                                    source=source)
            self.said(["librdmalloc_prefixed.a", "link it with this librdmalloc.a"], program)
        # A word of ours in a program without anything else of ours.
        self.said(["linked statically"], self.compiled(
            "word", "-static", source='#include <stdio.h>\nint main(void) { puts("\\"rdmalloc-stats-1\\""); }'))
        source = "#include <stdlib.h>\nint main(void) { return malloc(7) == 0; }"
        for options in (["-static"], ["-static", "-s"], ["-static-pie"], ["-rdynamic"]):
            program = self.compiled("linked", *options, "-Wl,--whole-archive", "-x", "none", archive, "-x", "c",
                                    "-Wl,--no-whole-archive", "-lpthread", "-ldl", source=source)
            done = run("--strict", "--", program)
            self.assertEqual((done.returncode, done.stderr), (0, ""), (options, done))

    def test_scripts_are_judged_by_their_interpreter(self):
        fixed = self.compiled("fixed", "-static", "-no-pie")
        self.said(["linked statically"], script(self.path("script"), f"#!{fixed}\n"))

    def test_musl(self):
        self.said(["musl"], self.compiled(
            "musl", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"))

    def test_own_malloc(self):
        self.said(["defines malloc itself"], self.compiled(
            "own", "-rdynamic", "-fno-builtin", source="""
            void* malloc(unsigned long n) { return 0; }
            int main(void) { return 6; }"""))

    def test_other_architecture(self):
        with open("/bin/true", "rb") as file:
            machine = file.read(19)[18]
        self.said(["is a program for"], launching.patched_copy(
            "/bin/true", self.path("true"), 18, 183 if machine == 62 else 62))

    def test_more_rights(self):
        if os.geteuid() != 0:
            self.skipTest("needs root: makes a set-uid program and is another user")
        user = ["setpriv", "--reuid", str(launching.NOBODY), "--regid", str(launching.NOBODY),
                "--clear-groups"]
        # Its file and the library must be within the user's reach.
        tool, place = self.path("bin"), self.path("lib")
        os.mkdir(tool)
        os.mkdir(place)
        shutil.copy(TOOL, tool)
        shutil.copy(OURS, place)
        own = os.path.join(place, os.path.basename(LIBRARY))
        for name in {os.path.basename(LIBRARY), os.path.basename(os.path.realpath(LIBRARY)),
                     "librdmalloc.so.0"} - {os.path.basename(OURS)}:
            os.symlink(os.path.basename(OURS), os.path.join(place, name))
        self.assertTrue(os.path.exists(own))
        program = self.path("id")
        shutil.copy(shutil.which("id"), program)
        as_user = [*user, "env", f"LD_LIBRARY_PATH={place}", os.path.join(tool, "rdmalloc"), "run"]
        self.assertEqual(call([*as_user, "--", program, "-u"]).stderr, "")
        os.chmod(program, 0o4755)
        done = call([*as_user, "--", program, "-u"])
        self.assertEqual(done.stdout, "0\n")
        self.assertIn("set-uid", done.stderr)
        # Seen to fail: refused by --strict, where the kernel gives no rights and the loader loads us.
        place = self.path("nosuid")
        os.mkdir(place)
        words = [*as_user, "--strict", "--"]
        nowhere = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o nosuid tmpfs "$0" && cp -p "$1" "$0" && shift && '
                   'exec "$@" "$0/id" -u', place, program]
        commands = [[*user, "setpriv", "--no-new-privs", *words[len(user):], program, "-u"]]
        if call([*nowhere, "true"]).returncode == 0:
            commands.append([*nowhere, *words])
        else:
            print("SKIP: no mount with nosuid can be made here")
        for command in commands:
            done = call(command)
            self.assertEqual((done.stdout, done.stderr), (f"{launching.NOBODY}\n", ""), command)
        # For its owner it is a program like any other.
        self.assertEqual(run("--strict", "--", program, "-u").stdout, "0\n")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
