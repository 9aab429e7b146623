#!/usr/bin/python3
"""Ends of endpoints and of MPI jobs, beside a thread that purges without pause and under glibc as control.

    endpoint_end_test.py LAB_ENDPOINT_END LAB_FINALIZES LIBRDMALLOC_SO [--full]

libfabric up to 2.6 frees a connection's endpoint, whose table of functions it has set to NULL, and then posts
buffers to it for messages that it still finds in its queue (docs/deadlock-matrix.md). So a message that was not
read crashes the program under every malloc. What is asserted: with no such message all ends well, also beside
purges; with one it ends under rdmalloc as it does under glibc, purging or not. --full: more rounds, both
Debians, and MPI jobs that finalise right after their last broadcast, whose crashes must all be that one.
Seen to fail: with a message unread in the runs that must have none; without the word `purge` in those that must purge.
"""
import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile

from stacks import CACHE_SETTINGS, MPI_SETTINGS, OFI

HERE = os.path.dirname(os.path.abspath(__file__))
MODES = ("glibc", "rdmalloc", "purges")
LIMIT_S = 120  # of one run
BROADCASTS, BYTES = 6, 258048
# Sent and not read: none, which is right, and one.
UNREAD = (0, 1)
KNOWN_PLACE = "ompi_mtl_ofi_finalize"


def limited(limit, command):
    return f"python3 {HERE}/../support/with_stacks.py {limit} {command}"


def endpoint_lines(folder, rounds):
    for unread in UNREAD:
        for mode in MODES:
            preload = "" if mode == "glibc" else f"LD_PRELOAD={folder}/librdmalloc.so.0"
            words = f"{rounds} {unread} {'purge' if mode == 'purges' else ''}"
            yield (f"echo run endpoint {unread} {mode}; "
                   + limited(LIMIT_S, f"env FI_UNIVERSE_SIZE=16 {preload} {folder}/lab_endpoint_end {words}")
                   + "; echo status $?")


def job_lines(folder, runs, release):
    launcher = dict(MPI_SETTINGS, **({"OMPI_MCA_plm": "isolated"} if release == "host" else {}))
    yield "export " + " ".join(f"{name}={value}" for name, value in launcher.items())
    yield f"for run in $(seq {runs}); do"
    for mode in MODES:
        settings = dict(CACHE_SETTINGS)
        if mode != "glibc":
            settings["LD_PRELOAD"] = f"{folder}/librdmalloc.so.0"
        words = [word for word in OFI] + [word for name, value in settings.items()
                                          for word in ("-x", f"{name}={value}")]
        quoted = " ".join(f"'{word}'" for word in words)
        purge = "purge" if mode == "purges" else ""
        yield (f"echo run job $run {mode}; " + limited(
            LIMIT_S, f"mpirun.openmpi -n 2 {quoted} {folder}/lab_finalizes {BROADCASTS} {BYTES} {purge}")
            + "; echo status $?")
    yield "done"


def outcome_of_job(text, status):
    finalized = re.findall(r"rank (\d) finalized, wrong_bytes (\d+), purges (\d+)", text)
    if status == 0 and sorted(rank for rank, _, _ in finalized) == ["0", "1"]:
        return "right" if all(wrong == "0" for _, wrong, _ in finalized) else "wrong bytes"
    return "known crash" if KNOWN_PLACE in text else f"status {status}"


def outcome_of_endpoint(text, status, mode):
    ended = re.search(r"ended \d+ rounds, (\d+) purges", text)
    if status == 0 and ended:
        return "right" if mode != "purges" or int(ended[1]) > 0 else "no purge"
    return "crash" if re.search("signal 11|SIGSEGV", text) or status == 139 else f"status {status}"


def problems_of(release, output, runs):
    """What contradicts the page's words, of as many jobs for each malloc; prints what was seen."""
    endpoints, jobs, problems = {}, collections.Counter(), []
    for name, text in re.findall(r"(?ms)^run (.*?)$(.*?)(?=^run |\Z)", output):
        status = int((re.findall(r"(?m)^status (\d+)$", text) or ["-1"])[-1])
        words = name.split()
        if words[0] == "job":
            outcome = outcome_of_job(text, status)
            jobs[words[2], outcome] += 1
            if outcome not in ("right", "known crash"):
                problems.append(f"{release}: {name}: {outcome}: {text}")
        else:
            endpoints[int(words[1]), words[2]] = outcome_of_endpoint(text, status, words[2])
    for (unread, mode), outcome in endpoints.items():
        print(f"endpoint_end_test: {release}: {unread} unread, {mode}: {outcome}")
        wanted = "right" if unread == 0 else endpoints[unread, "glibc"]
        if outcome != wanted or outcome not in ("right", "crash"):
            problems.append(f"{release}: {unread} unread, {mode}: {outcome}, wanted {wanted}")
    if len(endpoints) != len(UNREAD) * len(MODES):
        problems.append(f"{release}: {len(endpoints)} runs of endpoints")
    if sum(jobs.values()) != runs * len(MODES):
        problems.append(f"{release}: {sum(jobs.values())} of {runs * len(MODES)} jobs")
    for (mode, outcome), count in sorted(jobs.items()):
        print(f"endpoint_end_test: {release}: jobs, {mode}: {count} {outcome}")
    return problems


def run_release(release, programs, full, runs):
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rdmalloc-ends.") as folder:
        for program in programs:
            shutil.copy(program, folder)
        lines = [*endpoint_lines(folder, 40 if full else 3), *(job_lines(folder, runs, release) if runs else [])]
        done = subprocess.run(
            [f"{HERE}/../../tools/lab", "-q", "--release", release, "--limit", str(600 + runs * 3 * LIMIT_S),
             "--share", folder, "run", "\n".join(lines)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    output = done.stdout.decode(errors="replace").replace("\r", "")
    problems = problems_of(release, output, runs)
    if done.returncode != 0:
        problems.append(f"{release}: the lab's status {done.returncode}: {output[-2000:]}")
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs=3)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--runs", type=int, help="jobs of MPI for each malloc, 0 or, with --full, 60")
    parser.add_argument("--release", action="append", choices=("host", "trixie"))
    given = parser.parse_args()
    runs = given.runs if given.runs is not None else 60 if given.full else 0
    problems = []
    for release in given.release or (("host", "trixie") if given.full else ("host",)):
        problems += run_release(release, given.programs, given.full, runs)
    for problem in problems:
        print(f"endpoint_end_test: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
