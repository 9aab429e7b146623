"""memory_test.py DRIVER CASE: one behaviour of bench_memory.

`limits` holds what is resident under rdmalloc: no more than limits/memory.txt says. Counts, not times: what the
machine does meanwhile changes nothing. They are of a kernel whose transparent huge pages are `madvise`; where they
are `always`, lab.memory holds such counts.

Seen to fail: `arguments` with check() passing everything, `label` with told_by_maps() and take() not looking who
serves malloc, `failed` without the mark and the count of what failed, `quick` with derive() left out, with resident memory in the place of what is back, with --until-s not passed on, `killed` with the limit's file left unwritten, `limits` with a limit of
half of what was counted, and with a row in the table that there is not.
"""
import pathlib
import re
import subprocess
import sys

import limits
from driving import Driver, expect, made, no_malloc, run_case, skip

DRIVER = Driver(sys.argv[1], "memory")
HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
SMALL = ["cat", "rest:16:1@64", "heap-1M", "heap-3M", "heap-10M", "heap-30M", "small-blocks"]


def case_arguments():
    DRIVER.refuses_as_grid([(["--parts", "noparts"], "noparts"), (["--thp", "sometimes"], "sometimes"),
                    (["--cgroup", "v3"], "v3"), (["--scale", "0"], "scale"), (["--settle-s", "x"], "settle")])
    DRIVER.lists("row python")
    worker = pathlib.Path(DRIVER.program).parent / "memory_patterns"
    for arguments in [[], ["live"], ["live", "--bytes", "0"], ["live", "--bytes", "8", "--alignment", "24"],
                      ["nothing"], ["vectors", "--settle-s", "-1"]]:
        done = subprocess.run([worker, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        expect(done.returncode == 2 and done.stderr, f"worker {arguments}", done.stderr)


def case_label():
    """A preload that serves no malloc must not become a column, whether a program says who serves it or not."""
    status, output = DRIVER.run("--filter", "^(live:33000|cat)$", "--allocators", "glibc", "--peer",
                                f"sham={no_malloc()}", "--peer", "gone=/dev/null")
    expect(status == 0, f"exit status {status}, not 0", output)
    expect({cell["allocator"] for cell in DRIVER.report()["results"] if cell["row"] == "live:33000"} == {"glibc"},
           "a sham row", output)
    failures = DRIVER.failures()
    expect("malloc is served by" in failures["live:33000", "sham"]["what"], "no reason", output)
    expect("is not mapped" in failures["cat", "gone"]["what"], "no reason", output)


def case_failed():
    """A row that failed is missing from its section's figure and from the mean, and both say so."""
    source = ("void *__libc_malloc(unsigned long); void _exit(int);"
              "void *malloc(unsigned long n) { if (n == 23) _exit(9); return __libc_malloc(n); }")
    made("dies.so", source, "-shared", "-fPIC")
    status, output = DRIVER.run("--parts", "sweep", "--sizes-a-doubling", "2", "--filter", "^live:(16|23|32)$",
                                "--allocators", "glibc,rdmalloc", "--rdmalloc", "dies.so")
    expect(status == 1 and "FAILED: live:23 with rdmalloc" in output, f"exit status {status}, not 1", output)
    cells = next(line for line in output.splitlines() if line.startswith("  16 B to 32 B")).split()
    expect("!" in output.split("16 B to 32 B")[1].splitlines()[0], f"not marked: {cells}", output)
    expect("rdmalloc failed in 1 rows" in output, "the mean", output)
    expect(all(cell["command"] for cell in DRIVER.report()["results"]), "the commands", output)


def case_quick():
    """Every row but the sweep's runs to its end under ours and under glibc's, and has its figures."""
    found, output = DRIVER.figures("--quick", "--allocators", "glibc,rdmalloc", "--parts",
                                   "sizes,patterns,threads,returned,small", "--scale", "0.02")
    rows = {row for row, _ in found}
    expect(len(rows) >= 35, f"only {rows}", output)
    for row in rows:
        wanted = "resident_to_asked" if row.startswith("live:") else "resident_mib" if row in SMALL + ["python"] \
            else "peak_mib"
        for allocator in ["glibc", "rdmalloc"]:
            expect(found[row, allocator].get(wanted, 0) > 0, f"{row} {allocator}: no {wanted}", output)
    for row in ["peak-idle", "peak-trickle", "peak-idle/one-thread"]:
        # glibc unmaps large blocks at once, and no more than was freed can be back.
        expect(60 < found[row, "glibc"]["back_1s"] < 105, f"{row}: {found[row, 'glibc']}", output)
        expect("back_1s" in found[row, "rdmalloc"] and "back_5s" not in found[row, "rdmalloc"], row, output)
    expect(pathlib.Path("out/memory.svg").exists() or "no picture" in output, "the picture", output)
    found, output = DRIVER.figures("--parts", "small", "--filter", "^heap-1M$")
    expect({"glibc", "rdmalloc", "rdmalloc-nohuge"} <= {allocator for _, allocator in found}, "the columns", output)


def case_killed():
    """A limit on a cgroup kills who asks for more, under any allocator; who has room ends."""
    status, output = DRIVER.run("--parts", "limits", "--list")
    if status == 2 and "no row" in output:
        skip("no cgroup of this machine may be limited; lab.memory does it")
    found, output = DRIVER.figures("--parts", "limits", "--allocators", "glibc,rdmalloc")
    killed = {key: value["killed"] for key, value in found.items()}
    for allocator in ["glibc", "rdmalloc"]:
        expect(killed["limited:9000x33000", allocator] == 1, f"control, {allocator}", output)
    expect(killed["limited:6000x33000", "glibc"] == 0, "glibc", output)
    limits.hold({(row, figure): value for (row, figure), value in limits.read("memory.txt").items() if figure == "killed"},
                lambda _: {(row, "killed"): value for (row, allocator), value in killed.items() if allocator == "rdmalloc"})


def rows_pattern(rows):
    return "^(" + "|".join(re.escape(row) for row in sorted(rows)) + ")$"


def count(held, rows):
    """{(row, figure): value} of those rows of rdmalloc's."""
    counted = {}
    if patterns := rows - set(SMALL):
        found, _ = DRIVER.figures("--allocators", "rdmalloc", "--scale", "0.2", "--settle-s", "30", "--jobs", "8",
                                  "--filter", rows_pattern(patterns))
        # How the scheduler mixes so many threads decides on some: the median of fifteen.
        if threads := {row for row, figure in held if row in patterns and "@" in row and figure == "peak_mib"}:
            peaks, _ = DRIVER.figures("--allocators", "rdmalloc", "--scale", "0.2", "--settle-s", "1",
                                      "--repetitions", "15", "--filter", rows_pattern(threads))
            for key, figures in peaks.items():
                found[key]["peak_mib"] = figures["peak_mib"]
        counted = {(row, figure): value for (row, _), figures in found.items() for figure, value in figures.items()}
    if small := rows & set(SMALL):
        # Where the loader maps a library decides how many of its pages a fault brings along: the median of five.
        found, _ = DRIVER.figures("--allocators", "glibc,rdmalloc", "--repetitions", "5", "--filter",
                                  rows_pattern(small))
        counted.update(limits.to_glibc(found, "resident_mib"))
    return counted


def case_limits():
    if "[madvise]" not in HUGE_PAGES.read_text():
        skip(f"huge pages are {HUGE_PAGES.read_text().strip()} here; the limits are of madvise")
    held = {key: limit for key, limit in limits.read("memory.txt").items() if key[1] != "killed"}
    limits.hold(held, lambda rows: count(held, rows))


run_case(globals(), sys.argv[2])
