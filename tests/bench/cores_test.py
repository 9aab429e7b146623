"""cores_test.py DRIVER CASE: one behaviour of bench_cores.

`limits` holds the counts of limits/cores.txt: cache lines that move between cores for each operation. They need
no quiet machine: threads run in turns, under QEMU.

Seen to fail: `arguments` with parse_run() and take_option() refusing nothing, `control` with a store that moves
nothing, and with one that always does, `label` with take() not asking is_served_by(), `limits` with a limit of
half of what was counted, and with a row that there is not.
"""
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

import limits

DRIVER = sys.argv[1]
CASE = sys.argv[2]
HERE = pathlib.Path(__file__).resolve().parent


def drive(*arguments):
    done = subprocess.run([DRIVER, "--quiet", *arguments], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def expect(condition, what, output):
    if not condition:
        print(output)
        sys.exit(f"FAILED: {what}")


def report():
    return json.loads(pathlib.Path("out/cores.json").read_text())


def lines_of(*rows, allocators="glibc"):
    """Lines for each operation, by row."""
    arguments = [word for row in rows for word in ("--row", row)]
    status, output = drive("--allocators", allocators, "--operations", "300", "--jobs", "2", *arguments)
    expect(status == 0 and not report()["failures"], f"exit status {status}, not 0", output)
    return {cell["row"]: cell["figures"]["lines_per_operation"]["median"] for cell in report()["results"]}


def case_arguments():
    for arguments, wanted in [(["--allocators", "nomalloc"], "nomalloc"),
                              (["--row", "replace:16"], "PATTERN:LEAST-MOST"),
                              (["--row", "replace:4K-16:8@2"], "4K-16"),
                              (["--row", "replace:16:8@0"], "@0"),
                              (["--turn", "0"], "turn"),
                              (["--filter", "no such row"], "no such row"),
                              (["--filter", "("], "--filter (")]:
        status, output = drive(*arguments)
        expect(status == 2, f"{arguments}: exit status {status}, not 2", output)
        expect(wanted in output, f"{arguments}: the message doesn't name '{wanted}'", output)
    status, output = drive("--list")
    expect(status == 0 and "row larson" in output and "allocator glibc" in output, "--list", output)
    plugin = pathlib.Path(DRIVER).parent.parent / "lib" / "libcoherence.so"
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
    libm = subprocess.run(["cc", "-print-file-name=libm.so.6"], text=True,
                          stdout=subprocess.PIPE).stdout.strip()
    status, output = drive("--row", "rest:1:1@2", "--row", "nothing:1:1@2", "--allocators", "glibc",
                           "--peer", f"sham={libm}")
    expect(status == 3, f"exit status {status}, not 3", output)
    failures = {(failure["row"], failure["allocator"]): failure for failure in report()["failures"]}
    expect("malloc is served by" in failures["rest:1:1@2", "sham"]["what"], "no reason", output)
    expect("no pattern 'nothing'" in failures["nothing:1:1@2", "glibc"]["details"], "no reason", output)


def case_limits():
    table = limits.read(HERE / "limits" / "cores.txt")
    lines = lines_of(*(row for row, _ in table), allocators="rdmalloc")
    limits.hold(table, {(row, "lines"): value for row, value in lines.items()})


EMULATOR = f"qemu-{platform.machine()}"
if not shutil.which(EMULATOR):
    print(f"SKIP: no {EMULATOR}; tools/setup.sh installs it (qemu-user)")
    sys.exit(77)
with tempfile.TemporaryDirectory() as work_folder:
    os.chdir(work_folder)
    globals()[f"case_{CASE}"]()
