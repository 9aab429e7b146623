#!/usr/bin/python3
"""Runs cells one after the other inside the guest, each with its own limit and its own verdict.

    cells.py CELLS.json RESULTS.json

A cell: {"name", "command": [...], "environment": {...}, "limit": seconds, "lines": of output, 40, "stack": of a
deadlock, true}. Its result adds "packets" and "registrations" made meanwhile, "seconds", and "outcome":
  done       ended by itself with status 0; "output" has its last lines
  failed     ended by itself with another "status"
  deadlock   a thread waits for a lock that it holds: "cycle" and "stack" (lock_cycle.py)
  limit      neither, when the limit had passed; the stacks of all its processes are in the output
Results are written after every cell, so that a guest that dies leaves what it had.
"""
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import lock_cycle  # noqa: E402
import with_stacks  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36
LOOK_SECONDS = 0.5


TRACING = "/sys/kernel/tracing"


def packets_sent():
    """By rxe0, since the boot: proof of the way that data took."""
    with open("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts", encoding="ascii") as file:
        return int(file.read())


def count_registrations():
    """Has the kernel count the calls that register memory, by any caller and any name."""
    subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACING], check=True)
    for file, text in (("kprobe_events", "p:lab/register rxe_reg_user_mr\n"),
                       ("events/lab/enable", "1\n")):
        with open(f"{TRACING}/{file}", "w", encoding="ascii") as control:
            control.write(text)


def registrations_made():
    """By all processes, since count_registrations()."""
    with open(f"{TRACING}/kprobe_profile", encoding="ascii") as file:
        hits, misses = file.read().split()[1:3]
    if misses != "0":
        raise RuntimeError(f"the kernel missed {misses} registrations")
    return int(hits)


def confirmed_cycle(before):
    """(pid, ring) of a process whose ring was the same at the last look, and all rings by pid."""
    rings = {pid: lock_cycle.cycle_of(pid) for pid in with_stacks.descendants()}
    rings = {pid: ring for pid, ring in rings.items() if ring}
    for pid, ring in rings.items():
        if before.get(pid) == ring:
            return (pid, ring), rings
    return None, rings


def describe(pid, ring, with_stack):
    cycle = [f"thread {thread} waits for the mutex at {lock_cycle.place_of(pid, address)}, "
             f"held by thread {owner}" + (" itself" if owner == thread else "")
             for thread, address, owner in ring]
    return {"outcome": "deadlock", "cycle": cycle,
            "mutexes": [lock_cycle.place_of(pid, address) for _, address, _ in ring],
            "stack": lock_cycle.backtrace(pid, ring[0][0]) if with_stack else []}


def watch(child, limit, with_stack):
    """The cell's outcome; it may still run afterwards."""
    deadline, rings = time.monotonic() + limit, {}
    while True:
        try:
            status = child.wait(LOOK_SECONDS)
            return {"outcome": "done" if status == 0 else "failed", "status": status}
        except subprocess.TimeoutExpired:
            pass
        found, rings = confirmed_cycle(rings)
        if found:
            return describe(*found, with_stack)
        if time.monotonic() > deadline:
            with_stacks.print_all_stacks()
            return {"outcome": "limit"}


def reap_orphans():
    """Descendants that became ours when their parents ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def run_cell(cell):
    packets, registrations, begun = packets_sent(), registrations_made(), time.monotonic()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(cell["command"], env={**os.environ, **cell["environment"]},
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                 start_new_session=True)
        result = watch(child, cell["limit"], cell.get("stack", True))
        with_stacks.kill_descendants()
        child.wait()
        reap_orphans()
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    result |= {"name": cell["name"], "packets": packets_sent() - packets,
               "registrations": registrations_made() - registrations, "output": lines[-cell.get("lines", 40):],
               "seconds": round(time.monotonic() - begun, 1)}
    return result


def main(cells_file, results_file):
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(cells_file, encoding="utf-8") as file:
        cells = json.load(file)
    count_registrations()
    results = []
    for cell in cells:
        result = run_cell(cell)
        results.append(result)
        print(f"{cell['name']}: {result['outcome']}, {result['seconds']} s, "
              f"{result['packets']} packets, {result['registrations']} registrations", flush=True)
        with open(results_file, "w", encoding="utf-8") as file:
            json.dump(results, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
