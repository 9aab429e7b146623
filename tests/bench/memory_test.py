"""memory_test.py DRIVER CASE: one behaviour of bench_memory.

`limits` holds what is resident under rdmalloc: no more than limits/memory.txt says. Counts, not times: what the
machine does meanwhile changes nothing. They are of a kernel whose transparent huge pages are `madvise`; where they
are `always`, lab.memory holds such counts.

Seen to fail: `arguments` with check() passing everything, `label` with told_by_maps() and take() not looking who
serves malloc, `quick` with derive() left out, `killed` with the limit's file left unwritten, `limits` with a limit of
half of what was counted, and with a row in the table that there is not.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import limits

DRIVER = sys.argv[1]
CASE = sys.argv[2]
HERE = pathlib.Path(__file__).resolve().parent
HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
SMALL = ["cat", "rest:16:1@64", "heap-1M", "heap-3M", "heap-10M", "heap-30M", "small-blocks"]


def drive(*arguments):
    done = subprocess.run([DRIVER, "--quiet", *arguments], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def expect(condition, what, output):
    if not condition:
        print(output)
        sys.exit(f"FAILED: {what}")


def report():
    return json.loads(pathlib.Path("out/memory.json").read_text())


def figures():
    """{(row, allocator): {figure: value}}"""
    return {(cell["row"], cell["allocator"]): {name: value["median"] for name, value in cell["figures"].items()}
            for cell in report()["results"]}


def skip(why):
    print("SKIP:", why)
    sys.exit(77)


def case_arguments():
    for arguments, wanted in [(["--allocators", "nomalloc"], "nomalloc"), (["--parts", "noparts"], "noparts"),
                              (["--thp", "sometimes"], "sometimes"), (["--cgroup", "v3"], "v3"),
                              (["--scale", "0"], "scale"), (["--settle-s", "x"], "settle"),
                              (["--filter", "no such row"], "no such row")]:
        status, output = drive(*arguments)
        expect(status == 2, f"{arguments}: exit status {status}, not 2", output)
        expect(wanted in output, f"{arguments}: the message doesn't name '{wanted}'", output)
    status, output = drive("--list")
    expect(status == 0 and "row live:33000" in output and "row python" in output, "--list", output)
    worker = pathlib.Path(DRIVER).parent / "memory_patterns"
    for arguments in [[], ["live"], ["live", "--bytes", "0"], ["live", "--bytes", "8", "--alignment", "24"],
                      ["nothing"], ["vectors", "--settle-s", "-1"]]:
        done = subprocess.run([worker, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        expect(done.returncode == 2 and done.stderr, f"worker {arguments}", done.stderr)


def case_label():
    """A preload that serves no malloc must not become a column, whether a program says who serves it or not."""
    libm = subprocess.run(["cc", "-print-file-name=libm.so.6"], text=True, stdout=subprocess.PIPE).stdout.strip()
    status, output = drive("--filter", "^(live:33000|cat)$", "--allocators", "glibc", "--peer", f"sham={libm}",
                           "--peer", "gone=/dev/null")
    expect(status == 0, f"exit status {status}, not 0", output)
    expect({cell["allocator"] for cell in report()["results"] if cell["row"] == "live:33000"} == {"glibc"},
           "a sham row", output)
    whats = {(failure["row"], failure["allocator"]): failure["what"] for failure in report()["failures"]}
    expect("malloc is served by" in whats["live:33000", "sham"], "no reason", output)
    expect("is not mapped" in whats["cat", "gone"], "no reason", output)


def case_quick():
    """Every row but the sweep's runs to its end under ours and under glibc's, and has its figures."""
    status, output = drive("--quick", "--allocators", "glibc,rdmalloc", "--parts", "sizes,patterns,threads,small",
                           "--scale", "0.02")
    expect(status == 0 and not report()["failures"], f"exit status {status}, not 0", output)
    found = figures()
    rows = {row for row, _ in found}
    expect(len(rows) >= 35, f"only {rows}", output)
    for row in rows:
        wanted = "resident_to_asked" if row.startswith("live:") else "resident_mib" if row in SMALL + ["python"] \
            else "peak_mib"
        for allocator in ["glibc", "rdmalloc", "rdmalloc-nohuge"]:
            expect(found[row, allocator].get(wanted, 0) > 0, f"{row} {allocator}: no {wanted}", output)
    expect(pathlib.Path("out/memory.svg").exists() or "no picture" in output, "the picture", output)


def case_killed():
    """A limit on a cgroup kills who asks for more, under any allocator; who has room ends."""
    status, output = drive("--parts", "limits", "--allocators", "glibc,rdmalloc")
    if status == 2 and "no row" in output:
        skip("no cgroup of this machine may be limited; lab.memory does it")
    expect(status == 0 and not report()["failures"], f"exit status {status}, not 0", output)
    killed = {key: value["killed"] for key, value in figures().items()}
    for allocator in ["glibc", "rdmalloc"]:
        expect(killed["limited:9000x33000", allocator] == 1, f"control, {allocator}", output)
    expect(killed["limited:6000x33000", "glibc"] == 0, "glibc", output)
    limits.hold({(row, figure): value for (row, figure), value in table().items() if figure == "killed"},
                {(row, "killed"): value for (row, allocator), value in killed.items() if allocator == "rdmalloc"})


def table():
    return limits.read(HERE / "limits" / "memory.txt")


def rows_pattern(rows):
    return "^(" + "|".join(re.escape(row) for row in sorted(rows)) + ")$"


def case_limits():
    if "[madvise]" not in HUGE_PAGES.read_text():
        skip(f"huge pages are {HUGE_PAGES.read_text().strip()} here; the limits are of madvise")
    held = {key: limit for key, limit in table().items() if key[1] != "killed"}
    counted = {}
    rows = {row for row, figure in held if figure != "to_glibc"}
    status, output = drive("--allocators", "rdmalloc", "--scale", "0.2", "--settle-s", "15", "--jobs", "8",
                           "--filter", rows_pattern(rows))
    expect(status == 0 and not report()["failures"], f"exit status {status}, not 0", output)
    for (row, _), values in figures().items():
        counted.update({(row, figure): value for figure, value in values.items()})
    status, output = drive("--allocators", "glibc,rdmalloc", "--filter", rows_pattern(SMALL))
    expect(status == 0 and not report()["failures"], f"exit status {status}, not 0", output)
    found = figures()
    for row in SMALL:
        counted[row, "to_glibc"] = found[row, "rdmalloc"]["resident_mib"] / found[row, "glibc"]["resident_mib"]
    limits.hold(held, counted)


with tempfile.TemporaryDirectory() as work_folder:
    os.chdir(work_folder)
    globals()[f"case_{CASE}"]()
