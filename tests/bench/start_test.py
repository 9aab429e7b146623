"""start_test.py DRIVER CASE: one behaviour of bench_start. Times are never looked at, only that there are some.

Seen to fail: `arguments` with the check of --threads left out, `quick` with derive() leaving out the page faults, and with
touch() doing half of each part.
"""
import pathlib
import subprocess
import sys

from driving import Driver, expect, run_case

DRIVER = Driver(sys.argv[1], "start")
WORKER = pathlib.Path(DRIVER.program).parent / "job_start"


def case_arguments():
    DRIVER.refuses_as_grid([(["--reserved-gib", "1"], "--reserved-gib 1"), (["--threads", "1,0"], "--threads 0"),
                    (["--touched-mib", "1"], "touched-mib")])
    DRIVER.lists("row touch of 400 GiB, 1 thread")
    for arguments in [[], ["nothing", "64", "64", "1"], ["touch", "64", "128", "1"], ["touch", "64", "64", "0"]]:
        done = subprocess.run([WORKER, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        expect(done.returncode == 2 and "usage" in done.stderr, f"job_start {arguments}", done.stderr)
    done = subprocess.run([WORKER, "prefault", "64", "64", "1"], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    expect(done.returncode == 1 and "no rdmalloc" in done.stderr, "prefault without rdmalloc", done.stderr)


def case_quick():
    """Every way runs to its end, and a page that is touched is a fault or lies in a huge page."""
    found, output = DRIVER.figures("--allocators", "glibc,rdmalloc", "--reserved-gib", "1", "--touched-mib", "64",
                                   "--threads", "1,3", "--repetitions", "1", "--filter", "touch|prefault")
    expect(len(found) == 6, f"{set(found)}", output)
    for where, figures in found.items():
        for figure in ["cpu_s", "back_ms", "end_ms", "page_faults"]:
            expect(figures.get(figure, 0) > 0, f"{where}: no {figure}", output)
        small_pages = 64 * 256 * (1 - figures["huge_percent"] / 100)
        expect(where[0].startswith("prefault") or figures["page_faults"] >= 0.9 * small_pages,
               f"{where}: {figures['page_faults']} faults for {small_pages} pages", output)


run_case(globals(), sys.argv[2])
