"""cores_test.py DRIVER CASE: one behaviour of bench_cores.

`limits` holds a sample of the counts of limits/cores.txt, `limits_full` all: cache lines that move between cores for
each operation. They need no quiet machine: threads run in turns, under QEMU.

Seen to fail: `arguments` with parse_run() and take_option() refusing nothing, `control` with a store that moves
nothing, and with one that always does, `label` with take() not asking is_served_by(), `limits` with a limit of
half of what was counted, and with a row that there is not, `top` with addresses counted from the file's
beginning, which named a function of the purge thread. The row reg-hit-beside-miss was seen to fail with code that
is broken, too: with gets that leave no slot (0.13), and with a miss that looks through all registrations under its
domain's lock (0.33). So was reg-miss: with each generation or each new record taken by itself (1.4, 3.3). It shows no
lock: threads that sleep for one let the others go on alone for long.
bursts:200K:64@64 was (0.25) where a thread read a line of each shard whenever its own shard's spans in use had
changed by 2 MiB (coarse_classes.cc).
"""
import os
import pathlib
import platform
import shutil
import subprocess
import sys

import limits
from driving import Driver, expect, no_malloc, run_case, skip

DRIVER = Driver(sys.argv[1], "cores")
# Of the table what ./test counts: most threads, each part of the middle, blocks that change hands, each path of the cache.
SAMPLE = ("replace:8-512:100@16", "replace:16-4K:128@64", "replace:1K-32K:32@64", "replace:256K-1M:8@16", "bursts:64K:128@16",
          "bursts:200K:64@64", "hand-over:1K-32K:64@16", "larson:16-1K:128@16", "reg-get-put:512:64@16", "reg-miss:64K:16@16",
          "reg-fresh-key:4K-16K:32@16")
EMULATOR = f"qemu-{platform.machine()}"


def lines_of(*rows, allocators="glibc"):
    """Lines for each operation, by row."""
    arguments = [word for row in rows for word in ("--row", row)]
    found, _ = DRIVER.figures("--allocators", allocators, "--operations", "300", "--jobs", "2", *arguments)
    return {row: figures["lines_per_operation"] for (row, _), figures in found.items()}


def case_arguments():
    DRIVER.refuses_as_grid([(["--row", "replace:16"], "PATTERN:LEAST-MOST"), (["--row", "replace:4K-16:8@2"], "4K-16"),
                    (["--row", "replace:16:8@0"], "@0"), (["--turn", "0"], "turn")])
    DRIVER.lists("row larson")
    plugin = pathlib.Path(DRIVER.program).parent.parent / "lib" / "libcoherence.so"
    for option, wanted in [("turn=0", "1 to 1000000"), ("threads=3", "no option 'threads'")]:
        done = subprocess.run([EMULATOR, "-plugin", f"{plugin},{option}", "/bin/true"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        expect(done.returncode != 0 and wanted in done.stdout, f"plugin {option}", done.stdout)


def case_control():
    """One counter of all moves with nearly each addition; counters of their own don't."""
    lines = lines_of("shared-counter:1:1@16", "own-counters:1:1@16")
    expect(0.5 < lines["shared-counter:1:1@16"] < 1.1, "a counter of all", lines)
    expect(lines["own-counters:1:1@16"] < 0.01, "own counters", lines)


def case_label():
    """A preload that serves no malloc must not become a column; a pattern that fails is a failure."""
    status, output = DRIVER.run("--row", "rest:1:1@2", "--row", "nothing:1:1@2", "--allocators", "glibc", "--peer",
                                f"sham={no_malloc()}")
    expect(status == 3, f"exit status {status}, not 3", output)
    failures = DRIVER.failures()
    expect("malloc is served by" in failures["rest:1:1@2", "sham"]["what"], "no reason", output)
    expect("there is no 'nothing'" in failures["nothing:1:1@2", "glibc"]["details"], "no reason", output)


def case_top():
    """The code that moves lines is named: what takes blocks that other threads have freed, by whichever way."""
    _, output = DRIVER.figures("--allocators", "rdmalloc", "--operations", "300", "--top", "60", "--row",
                               "hand-over:16-1K:64@8")
    expect(any(name in output for name in ("slab_take", "give_back_word", "TaggedStack")),
           "nothing that passes blocks from thread to thread", output)


def case_limits():
    table = limits.read("cores.txt")
    missing = set(SAMPLE) - {row for row, _ in table}
    expect(not missing, f"not in limits/cores.txt: {missing}", "")
    hold_limits({key: limit for key, limit in table.items() if key[0] in SAMPLE})


def case_limits_full():
    hold_limits(limits.read("cores.txt"))


def hold_limits(table):
    # A second holds a thousandth of the operations that it has outside of the emulator, so the purge thread's
    # rounds would count for a thousand times what they cost, and for more on a busy machine.
    os.environ["RDMALLOC_PURGE"] = "manual"
    limits.hold(table, lambda rows: {(row, "lines"): value
                                     for row, value in lines_of(*sorted(rows), allocators="rdmalloc").items()})


if not shutil.which(EMULATOR):
    skip(f"no {EMULATOR}; tools/setup.sh installs it (qemu-user)")
run_case(globals(), sys.argv[2])
