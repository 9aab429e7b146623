#!/usr/bin/python3
"""bench_memory where the whole machine is set otherwise: in guests.

    memory_test.py BENCH_MEMORY

Under transparent huge pages `always`, small processes take no more than tests/bench/limits/memory_always.txt says;
and programs in a cgroup of 256 MiB, v2 in that guest and v1 in another, end or are killed as it says. Control: one
that asks for more than 256 MiB is killed, under glibc as well.
Seen to fail: with a limit of half of what was counted; with the guest's huge pages left as they are;
with cgroup v2 mounted for v1.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))
import limits  # noqa: E402


def counted_in_guest(bench, folder, huge_pages, cgroup, parts, repetitions):
    """{(row, allocator): {figure: value}}"""
    done = subprocess.run(
        [bench, "--lab", "--thp", huge_pages, "--cgroup", cgroup, "--parts", parts, "--allocators",
         "glibc,rdmalloc", "--repetitions", str(repetitions), "--quiet", "--lab-memory", "4G", "--output", folder],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False)
    print(done.stdout, end="")
    if done.returncode != 0:
        sys.exit(f"memory_test: {cgroup}, {huge_pages}: exit status {done.returncode}")
    report = json.loads(pathlib.Path(folder, "memory.json").read_text(encoding="utf-8"))
    told = (report["host"]["transparent_huge_pages"], report["settings"]["cgroup"])
    if told != (huge_pages, cgroup) or report["failures"]:
        sys.exit(f"memory_test: it ran with {told}; failures: {report['failures']}")
    return {(cell["row"], cell["allocator"]): {name: value["median"]
                                               for name, value in cell["figures"].items()}
            for cell in report["results"]}


def killed_of(found):
    control = "limited:9000x33000"
    for allocator in ("glibc", "rdmalloc"):
        if found[control, allocator]["killed"] != 1:
            sys.exit(f"memory_test: {control} was not killed under {allocator}: there is no limit")
    return {(row, "killed"): figures["killed"] for (row, allocator), figures in found.items()
            if allocator == "rdmalloc" and row.startswith("limited:")}


def main(bench):
    table = limits.read("memory_always.txt")
    of_limits = {key: value for key, value in table.items() if key[1] == "killed"}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        # The median of five: where thread stacks begin with a chunk of 2 MiB, one run in four, they have huge pages.
        found = counted_in_guest(bench, folder, "always", "v2", "small,limits", 5)
        counted = killed_of(found)
        counted.update(limits.to_glibc(found, "resident_mib"))
        limits.hold(table, lambda _: counted)
        killed = killed_of(counted_in_guest(bench, folder, "madvise", "v1", "limits", 1))
        limits.hold(of_limits, lambda _: killed)


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
