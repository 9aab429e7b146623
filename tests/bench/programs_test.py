"""programs_test.py DRIVER CASE MADVISE_MALLOC: one behaviour of bench_programs.

Seen to fail: `arguments` with the check of --programs removed, `label` without the call of
served_by_another(), `failed` without the mark, `quick` with keep() left out, `calls` with the purge thread counted among the program's,
`traces` with the check of a trace's length left out, and with a redis-server that is not there.
"""
import os
import pathlib
import sys

import driving
from driving import expect

DRIVER = driving.Driver(sys.argv[1], "programs")
CASE = sys.argv[2]
MADVISE_MALLOC = sys.argv[3]


def drive(*arguments):
    if "--traces" not in arguments:
        arguments = ["--traces", "none", *arguments]
    return DRIVER.run(*arguments)


report = DRIVER.report


def case_arguments():
    DRIVER.refuses([(["--allocators", "nomalloc"], "nomalloc"),
                    (["--programs", "noprogram"], "noprogram"),
                    (["--threads", "0"], "threads"),
                    (["--scale", "x"], "scale"),
                    (["--traces", "nothing"], "nothing"),
                    (["--peers", "/nowhere"], "/nowhere")])
    DRIVER.lists("program larson")


def case_label():
    DRIVER.leaves_out_a_sham("--programs", "sh6", "--scale", "0.01", "--repetitions", "1", "--traces", "none")


def case_failed():
    """A figure that lacks a run that failed is marked."""
    source = ("#include <fcntl.h>\n#include <unistd.h>\nvoid *__libc_malloc(unsigned long);"
              "void *malloc(unsigned long n) { return __libc_malloc(n); }"
              "__attribute__((constructor)) static void once(void) { if (open(\"was\", O_CREAT | O_EXCL, 0600) < 0) _exit(9); }")
    driving.made("once.so", source, "-shared", "-fPIC")
    status, output = drive("--programs", "cfrac", "--scale", "0.01", "--repetitions", "2", "--allocators", "glibc",
                           "--peer", f"once={os.path.abspath('once.so')}")
    row = next(line for line in output.splitlines() if line.startswith("  cfrac")).split()
    expect(status == 0 and "!" not in row[1] and any("!" in cell for cell in row[2:]), f"{status}: {row}", output)


def case_quick():
    """Every program runs to its end under ours and under glibc's."""
    status, output = drive("--allocators", "glibc,rdmalloc", "--scale", "0.01", "--repetitions",
                           "1", "--threads", "3")
    expect(status == 0, f"exit status {status}, not 0", output)
    rows = {(row["program"], row["allocator"]): row for row in report()["results"]}
    programs = {program for program, _ in rows}
    expect(len(programs) >= 17, f"only {programs}", output)
    for program in programs:
        for allocator in ["glibc", "rdmalloc"]:
            row = rows.get((program, allocator))
            expect(row is not None and row["rss_mib"]["median"] > 0, f"{program} {allocator}",
                   output)


def case_traces():
    """Real programs are recorded, and replayed under each allocator."""
    status, output = drive("--programs", "sh6", "--scale", "0.001", "--traces", "gcc,redis",
                           "--allocators", "glibc,rdmalloc", "--repetitions", "1", "--count-calls")
    expect(status == 0, f"exit status {status}, not 0", output)
    for name, needed in ("gcc", "g++"), ("redis", "redis-tools"):
        rows = {row["allocator"]: row for row in report()["results"] if row["program"] == f"trace:{name}"}
        if not rows and "is not installed" in output:
            print(f"SKIP: no {needed} to record")
            sys.exit(77)
        expect(set(rows) == {"glibc", "rdmalloc"}, f"no row of the trace {name}", output)
        calls = rows["rdmalloc"]["calls"]["calls_of_program"]
        expect(set(calls) <= {"madvise(MADV_HUGEPAGE)"}, f"I1 in a replay of {name}: {calls}", output)

    broken = pathlib.Path("broken.trace")
    broken.write_bytes(pathlib.Path("out/traces/gcc.trace").read_bytes()[:-8])
    status, output = drive("--programs", "sh6", "--scale", "0.001", "--traces", str(broken),
                           "--allocators", "glibc", "--repetitions", "1")
    expect("LEFT OUT trace:broken" in output and "cut off" in output, "a broken trace", output)


def calls_of(*arguments):
    """What was counted, by program."""
    status, output = drive("--repetitions", "1", "--threads", "3", "--count-calls", *arguments)
    expect(status == 0 and not report()["failures"], f"exit status {status}, not 0", output)
    return output, {row["program"]: row["calls"] for row in report()["results"]
                    if row["allocator"] != "glibc"}


def case_calls():
    """I1 over every program: under rdmalloc, purging at every chance, no thread of a program gives
    memory back between its start and its end. A malloc that calls madvise is the control."""
    os.environ["RDMALLOC_DECAY_MS"] = "0"
    output, programs = calls_of("--allocators", "rdmalloc", "--scale", "0.02")
    expect(len(programs) >= 17, f"only {programs}", output)
    for program, calls in programs.items():
        calls["calls_of_program"].pop("madvise(MADV_HUGEPAGE)", None)
        expect(not calls["calls_of_program"], f"{program}: {calls}", output)
    by_others = [calls["calls_of_others"].get("madvise", 0) for calls in programs.values()]
    expect(sum(by_others) > 0, "nothing was purged meanwhile", output)

    output, programs = calls_of("--programs", "larson", "--scale", "0.001", "--allocators",
                                "glibc", "--peer", f"control={MADVISE_MALLOC}")
    expect(programs["larson"]["calls_of_program"].get("madvise", 0) > 100,
           "the control was not seen", output)


driving.run_case(globals(), CASE)
