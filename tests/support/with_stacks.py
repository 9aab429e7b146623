#!/usr/bin/python3
"""Runs a command with a limit; at the limit, prints the stacks of all its threads, then kills it.

    with_stacks.py SECONDS COMMAND [ARGUMENT...]

A hang is what this project is about, and a hang without stacks teaches nothing. So every test runs
under this wrapper (cmake/testing.cmake). All descendants of the command are seen, also those that
made a process group or session of their own, as mpirun's and a shell's jobs do: the wrapper is
their reaper. Exit status: the command's; 128 + N when signal N ended it; 124 at the limit; 125 when
the wrapper was called wrongly; 127 when the command could not be started.

Tests are started by with_stacks.c, which becomes this script where more is to be done than to wait.
"""
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STACKS_SECONDS = 45  # for all processes together; cmake/testing.cmake allows 60 before ctest kills
GDB_SECONDS = 20  # for one process

# A word in the command line of a process that, when a test has ended or was killed, brings back what
# it has changed of the machine.
RESTORES = b"rdmalloc-restores"
RESTORE_SECONDS = 10

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

libc = ctypes.CDLL(None, use_errno=True)


def say(text):
    print(f"with_stacks: {text}", file=sys.stderr, flush=True)


def parent_of(pid):
    """The parent's pid, or None when the process is gone or a zombie (nothing to see in it)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The command's name, in brackets, may hold anything: what follows the last one is fixed.
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    # A process whose first thread alone has ended looks like a zombie, but lives on.
    gone = fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1)
    return None if gone else int(fields[1])


def living_thread(pid):
    """A thread that gdb can attach to: the first, if it still runs, whose number is not the least where numbers
    began anew. By another one gdb sees no more than that."""
    for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=lambda one: (int(one) != pid, int(one))):
        if read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split()[:1] not in (["Z"], ["X"]):
            return thread
    return str(pid)


def descendants():
    """Pids of all living descendants of this process, parents before children."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = parent_of(name)
            if parent is not None:
                children.setdefault(parent, []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += sorted(children.get(pid, []))
    return found[1:]


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError as error:
        return f"({error.strerror})"


def print_stacks_by_gdb(pid, seconds):
    """True when gdb attached and printed."""
    import subprocess  # here alone: every test starts this wrapper, few need this
    try:
        thread = living_thread(pid)
    except OSError:
        return False
    command = ["gdb", "-nx", "-batch", "-p", thread, "-ex", "set pagination off",
               "-ex", "info threads", "-ex", "thread apply all bt"]
    environment = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "DEBUGINFOD_URLS")}
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=seconds, env=environment, check=False)
    except FileNotFoundError:
        say("gdb is not installed: stacks from /proc only")
        return False
    except subprocess.TimeoutExpired as late:
        say(f"gdb did not end within {seconds:.0f} s; what it printed until then:")
        os.write(2, late.stdout or b"")
        return False
    os.write(2, done.stdout)
    return b"\n#0 " in done.stdout


def print_stacks_by_proc(pid):
    """What the kernel knows of each thread: for a process that gdb can't attach to."""
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return
    for thread in threads:
        base = f"/proc/{pid}/task/{thread}"
        say(f"thread {thread} {read(base + '/comm')}: waits in {read(base + '/wchan')}, "
            f"system call {read(base + '/syscall')}\n{read(base + '/stack')}")


def print_all_stacks():
    deadline = time.monotonic() + STACKS_SECONDS
    for pid in descendants():
        say(f"---- process {pid}: {read(f'/proc/{pid}/cmdline')}")
        left = deadline - time.monotonic()
        if left < 1 or not print_stacks_by_gdb(pid, min(left, GDB_SECONDS)):
            print_stacks_by_proc(pid)


def is_restoring(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words:
            return RESTORES in words.read().split(b"\0")
    except OSError:
        return False


def has_memory(pid):
    """Else it is gone, or about to be a zombie, and its command line is empty."""
    pages = read(f"/proc/{pid}/statm").split()[0]
    return pages.isdigit() and pages != "0"


def kill_descendants():
    """Kills until none is left: a process may fork between the look and the kill."""
    deadline = time.monotonic() + RESTORE_SECONDS
    tries = 0
    while tries < 50:
        pids = descendants()
        if not pids:
            return
        doomed = [pid for pid in pids if time.monotonic() > deadline or not is_restoring(pid)]
        for pid in doomed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        tries += 1 if doomed else 0
        time.sleep(0.02)
    say(f"processes that do not die: {descendants()}")


def start(command):
    """The pid of the command, in a group of its own, with no file of ours but output and error."""
    os.closerange(3, 1024)
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            # When ctest kills the wrapper (SIGKILL: no handler runs), at least the command itself ends.
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(tells, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(tells)
    problem = os.read(told, 16)
    os.close(told)
    if problem:
        os.waitpid(child, 0)
        raise OSError(int(problem), os.strerror(int(problem)))
    return child


def stop(number, _frame):
    kill_descendants()
    os._exit(128 + number)


def handle_stops():
    for number in STOPS:
        signal.signal(number, stop)


def wait_for(child, seconds):
    """The status of the child, or None at the limit; reaps adopted orphans meanwhile. What a nap took beyond two
    seconds more does not count: the machine stood still, or all of the test, and the child had no time either."""
    left, at = seconds, time.monotonic()
    ended = os.pidfd_open(child)
    try:
        while True:
            nap, before = max(0, min(left, 1)), at
            select.select([ended], [], [], nap)
            at = time.monotonic()
            left -= at - before if at - before < nap + 2 else nap
            # Looked at before it is taken: whatever else ended is an orphan, of no interest.
            look = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if look is not None:
                status = os.waitpid(look.si_pid, 0)[1]
                if look.si_pid == child:
                    return status
            elif left <= 0:
                return None
    finally:
        os.close(ended)


def end_at_limit(seconds, command):
    say(f"limit of {seconds} s reached: {' '.join(command)}")
    print_all_stacks()
    kill_descendants()
    return 124


def end_with(status, command):
    found = descendants()
    left = [pid for pid in found if not is_restoring(pid) and has_memory(pid)]
    if left:
        # Else they keep ctest's pipe open, and the CPU from the tests after this one.
        say("left running by the command, killed: "
            + ", ".join(f"{pid} ({read(f'/proc/{pid}/cmdline')})" for pid in left))
    if found:
        kill_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        say(f"ended by {signal.Signals(-code).name}: {' '.join(command)}")
        return 128 - code
    return code


def go_on(after, seconds, *command):
    """What with_stacks.c leaves to this script, which has its process and its children now."""
    kind, _, number = after.partition("-")
    if kind == "stop":
        return stop(int(number), None)
    handle_stops()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    if kind == "limit":
        return end_at_limit(seconds, command)
    return end_with(int(number), command)


def main(arguments):
    if arguments[:1] == ["--after"]:
        return go_on(*arguments[1:])
    try:
        seconds = float(arguments[0])
        command = arguments[1:]
        if seconds <= 0 or not command:
            raise ValueError
    except (IndexError, ValueError):
        say(f"'{' '.join(arguments)}': wanted SECONDS (more than 0) COMMAND [ARGUMENT...]")
        return 125
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    handle_stops()
    try:
        child = start(command)
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
        return 127
    status = wait_for(child, seconds)
    return end_at_limit(arguments[0], command) if status is None else end_with(status, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
