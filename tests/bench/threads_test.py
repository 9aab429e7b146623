"""threads_test.py DRIVER CASE: one behaviour of bench_threads. Times are never looked at, only that there are some.

Seen to fail: `arguments` with parse_run() refusing nothing, `label` with take() not asking
is_served_by(), `random` with the seed left out, `quick` with derive() left out, and with hand_over() taking a batch that is not full.
"""
import pathlib
import subprocess
import sys

from driving import Driver, expect, no_malloc, run_case

DRIVER = Driver(sys.argv[1], "threads")


def case_arguments():
    DRIVER.refuses_as_grid([(["--shapes", "replace:16"], "PATTERN:LEAST-MOST"), (["--threads", "0"], "@0"),
                    (["--threads", "1,x"], "@x"), (["--threads", "4294967298"], "@4294967298"), (["--scale", "0"], "scale"),
                    (["--random", "0"], "random"), (["--random", "3", "--shapes", "replace:16:8"], "--shapes"),
                    (["--threads", "2,4,2", "--shapes", "replace:16:8"], "replace:16:8@2 is asked for twice"),
                    (["--threads", "2", "--shapes", "replace:1K:8,replace:1024:8"], "replace:1K:8@2 is asked for twice")])
    DRIVER.lists("row come-and-go:16-1K:64@256")
    worker = pathlib.Path(DRIVER.program).parent / "thread_patterns"
    for arguments in [[], ["nothing"], ["replace", "--threads", "0"], ["replace", "--sizes", "16"],
                      ["replace", "--sizes", "32-16"], ["replace", "--settle-s", "-1"]]:
        done = subprocess.run([worker, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        expect(done.returncode == 2 and done.stderr, f"worker {arguments}", done.stderr)


def case_label():
    DRIVER.leaves_out_a_sham("--shapes", "replace:16:8", "--threads", "2", "--scale", "0.001", "--repetitions", "1")


def case_random():
    """The same rows for the same seed, others for another; and they run."""
    def rows(seed):
        status, output = DRIVER.run("--list", "--random", "30", "--seed", seed)
        expect(status == 0, f"exit status {status}, not 0", output)
        return [line for line in output.splitlines() if line.startswith("  row ")]
    expect(len(rows("7")) == 30 and rows("7") == rows("7") and rows("7") != rows("8"), "not drawn by the seed",
           "\n".join(rows("7")))
    found, output = DRIVER.figures("--random", "3", "--scale", "0.001", "--repetitions", "1", "--allocators", "glibc")
    expect(len(found) == 3, f"only {len(found)}", output)


def case_quick():
    """Every shape runs to its end with each number of threads, under ours and under glibc's."""
    found, output = DRIVER.figures("--quick", "--allocators", "glibc,rdmalloc", "--threads", "1,3,64", "--scale",
                                   "0.01")
    expect(len(found) >= 14 * 3 * 2, f"only {len(found)}", output)
    for where, figures in found.items():
        for figure in ["cpu_ns", "steady_cpu_ns", "peak_mib"]:
            expect(figures.get(figure, 0) > 0, f"{where}: no {figure}", output)
    for cell in DRIVER.report()["results"]:
        # All that were asked for, but what rounds and batches of each thread leave.
        asked = cell["about"]["operations"]
        measured = cell["told"]["operations"]
        expect(0.9 * asked <= measured <= 1.1 * asked + 64 * cell["about"]["threads"],
               f"{cell['row']}: {measured} operations, not {asked}", output)
    for header in ["once warm", "of the whole process", "peak of resident"]:
        expect(header in output, f"no '{header}' in the tables", output)


run_case(globals(), sys.argv[2])
