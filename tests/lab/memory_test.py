#!/usr/bin/python3
"""bench_memory where the whole machine is set otherwise: in guests.

    memory_test.py BENCH_MEMORY

Under transparent huge pages `always`, small processes, live blocks and the patterns take no more than
tests/bench/limits/memory_always.txt says: a mapping of ours that the kernel may back by huge pages would show in any of them. And
programs in a cgroup of 256 MiB, v2 in that guest and v1 in another, end or are killed as it says. Control: one
that asks for more than 256 MiB is killed, under glibc as well.
Seen to fail: with a limit of half of what was counted; with the guest's huge pages left as they are;
with cgroup v2 mounted for v1; live blocks and patterns with the arena's MADV_NOHUGEPAGE left out.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))
import limits  # noqa: E402


def counted_in_guest(bench, folder, huge_pages, cgroup, parts, repetitions, allocators="glibc,rdmalloc", more=()):
    """{(row, allocator): {figure: value}}"""
    done = subprocess.run(
        [bench, "--lab", "--thp", huge_pages, "--cgroup", cgroup, "--parts", parts, "--allocators",
         allocators, "--repetitions", str(repetitions), "--quiet", "--lab-memory", "4G", "--output", folder, *more],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False)
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit(f"memory_test: {cgroup}, {huge_pages}: exit status {done.returncode}")
    report = json.loads(pathlib.Path(folder, "memory.json").read_text(encoding="utf-8"))
    told = (report["host"]["transparent_huge_pages"], report["settings"]["cgroup"])
    if told != (huge_pages, cgroup if "limits" in parts else "none") or report["failures"]:
        sys.exit(f"memory_test: it ran with {told}; failures: {report['failures']}")
    return {(cell["row"], cell["allocator"]): {name: value["median"]
                                               for name, value in cell["figures"].items()}
            for cell in report["results"]}


def killed_of(found):
    control = "limited:9000x33000"
    for (row, allocator), figures in found.items():
        if row == control and figures["killed"] != 1:
            sys.exit(f"memory_test: {control} was not killed under {allocator}: there is no limit")
    if (control, "rdmalloc") not in found:
        sys.exit(f"memory_test: {control} did not run")
    return {(row, "killed"): figures["killed"] for (row, allocator), figures in found.items()
            if allocator == "rdmalloc" and row.startswith("limited:")}


def of_blocks_patterns_and_limits(bench, folder, table):
    """Of rdmalloc alone, as MiB, as a ratio to what was asked for, and whether it was killed."""
    rows = {row for row, figure in table if figure in ("resident_to_asked", "peak_mib", "killed")}
    pattern = "^(limited:9000x33000|" + "|".join(re.escape(row) for row in sorted(rows)) + ")$"
    found = counted_in_guest(bench, folder, "always", "v2", "sizes,sweep,patterns,limits", 1, "rdmalloc",
                             ["--quick", "--filter", pattern])
    counted = {(row, figure): value for (row, _), figures in found.items() for figure, value in figures.items()}
    return {**counted, **killed_of(found)}


def main(bench):
    table = limits.read("memory_always.txt")
    of_limits = {key: value for key, value in table.items() if key[1] == "killed"}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        # The median of five: where thread stacks begin with a chunk of 2 MiB, one run in four, they have huge pages.
        small = counted_in_guest(bench, folder, "always", "v2", "small", 5)
        counted = limits.to_glibc(small, "resident_mib")
        counted.update(of_blocks_patterns_and_limits(bench, folder, table))
        limits.hold(table, lambda _: counted)
        killed = killed_of(counted_in_guest(bench, folder, "madvise", "v1", "limits", 1))
        limits.hold(of_limits, lambda _: killed)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
