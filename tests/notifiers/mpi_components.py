#!/usr/bin/python3
"""Open MPI's components as files of their own, as Debian 12 ships them (110 in Open MPI 4.1.4; in Debian
13's 5.0.7 they are part of its libraries), loaded and closed again and again (mpi_components.cc): all
are gone after each cycle, the notifier was attached anew as many times, and what is left in memory is
no more than under glibc, since Open MPI leaks some.

    mpi_components.py PROGRAM LIBRDMALLOC_SO CYCLES

Seen to fail with notifiers_rescan() left out of dlclose (attaches 0), and with a dlopen of rdmalloc's
that is not closed (component files left).
"""
import os
import re
import subprocess
import sys

# What threads' magazines hold counts as live: 1.25 MiB for the program's thread and for the purge
# thread each.
SLACK_BYTES = 2 * 1280 * 1024


def run(program, cycles, preload):
    environment = {**os.environ, **preload, "OMPI_MCA_ess_singleton_isolated": "1",
                   "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"}
    done = subprocess.run([program, cycles], env=environment, stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    lines = [{name: int(value) for name, value in re.findall(r"(\w+) (\d+)", line)}
             for line in done.stdout.splitlines() if line.startswith("cycle ")]
    notified = re.search(r"(?m)^notified (\d+)$", done.stdout)
    if done.returncode != 0 or len(lines) != int(cycles) or not notified:
        sys.exit(f"mpi_components: status {done.returncode}, {len(lines)} of {cycles} cycles\n"
                 f"{done.stdout}")
    return lines, int(notified[1])


def problems_of(lines, notified, glibcs):
    second, last = lines[1], lines[-1]
    if second["loaded"] == 0:
        yield "this Open MPI has no component files"
    if any(line["left"] for line in lines):
        yield "component files stayed loaded"
    if any(line["attaches"] < line["loaded"] or not line["attached"] for line in lines):
        yield "the notifier was not attached anew after each component"
    if notified == 0:
        yield "it was notified of nothing afterwards"
    for name in ("loaded", "attaches", "fds", "mappings"):
        if last[name] != second[name]:
            yield f"{name} went from {second[name]} to {last[name]}"
    theirs = glibcs[-1]["live_bytes"] - glibcs[1]["live_bytes"]
    ours = last["live_bytes"] - second["live_bytes"]
    if ours > theirs * 1.5 + SLACK_BYTES:
        yield f"live bytes grew by {ours}, under glibc by {theirs}"


def main(program, library, cycles):
    glibcs, _ = run(program, cycles, {})
    lines, notified = run(program, cycles, {"LD_PRELOAD": library})
    wrong = list(problems_of(lines, notified, glibcs))
    print(f"glibc {glibcs[1]}\n   to {glibcs[-1]}\nours  {lines[1]}\n   to {lines[-1]}, notified {notified}")
    print("mpi_components:", "; ".join(wrong) or "as it must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
