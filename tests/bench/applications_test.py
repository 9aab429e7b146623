"""applications_test.py DRIVER CASE: one behaviour of bench_applications. Times are never looked at, only that there are some.

Seen to fail: `arguments` with add_rows() not looking at what is left of --applications, `label` with malloc_of() saying
the preload's own name, `quick` with tell() leaving out the page faults, `failure` with tell() not asking for the status,
`not_installed` with left_out() always empty.
"""
import json
import os
import pathlib
import subprocess
import sys

from driving import Driver, expect, no_malloc, run_case

DRIVER = Driver(sys.argv[1], "applications")
BIN = pathlib.Path(DRIVER.program).parent
RUNNER = pathlib.Path(__file__).resolve().parents[2] / "bench/applications/applications.py"
TINY = ["--applications", "futures", "--scale", "0.01", "--repetitions", "1"]


def runner(*arguments):
    done = subprocess.run([sys.executable, RUNNER, *arguments], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def case_arguments():
    DRIVER.refuses_as_grid([(["--applications", "futures,none of that name"], "none of that name"), (["--scale", "0"], "scale")])
    DRIVER.lists("row futures")
    for arguments in [[], ["futures"], ["nothing", "--bin", BIN, "--work", "work"], ["--scale", "x"]]:
        status, output = runner(*arguments)
        expect(status == 2 and "usage" in output, f"runner {arguments}: exit status {status}, not 2", output)
    done = subprocess.run([BIN / "application_futures", "0", "1"], text=True, stderr=subprocess.PIPE)
    expect(done.returncode == 2 and "usage" in done.stderr, "application_futures 0 1", done.stderr)


def case_label():
    DRIVER.leaves_out_a_sham(*TINY)


def case_quick():
    """An application runs to its end under ours and under glibc's, and every figure is there."""
    found, output = DRIVER.figures(*TINY, "--allocators", "glibc,rdmalloc")
    expect(set(found) == {("futures", "glibc"), ("futures", "rdmalloc")}, f"{set(found)}", output)
    for where, figures in found.items():
        for figure in ["cpu_s", "wall_s", "peak_mib", "page_faults"]:
            expect(figures.get(figure, 0) > 0, f"{where}: no {figure}", output)


def case_failure():
    """An application that ends with an error is a failure with what it said, not a short run."""
    folder = pathlib.Path("bin")
    folder.mkdir()
    (folder / "bench_launch").symlink_to(BIN / "bench_launch")
    program = folder / "application_futures"
    program.write_text("#!/bin/sh\necho no room left; exit 3\n")
    program.chmod(0o755)
    status, output = runner("futures", "--bin", folder, "--work", "work")
    expect(status == 1 and "exit status 3" in output and "no room left" in output, f"exit status {status}", output)


def case_not_installed():
    """What is not installed is left out by name, with the line that mends it."""
    status, output = runner("--list", "--bin", "nowhere")
    rows = {row["name"]: row["left_out"] for row in map(json.loads, output.splitlines())}
    expect(status == 0 and "build the target" in rows["futures"], "the reason of futures", output)
    os.environ["PATH"] = str(pathlib.Path(sys.executable).parent / "nowhere")
    _, output = runner("--list", "--bin", BIN)
    rows = {row["name"]: row["left_out"] for row in map(json.loads, output.splitlines())}
    expect("apt-get install lammps" in rows["lammps"] or "apt-get install openmpi" in rows["lammps"], "lammps", output)


run_case(globals(), sys.argv[2])
