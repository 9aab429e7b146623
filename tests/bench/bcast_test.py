"""bcast_test.py DRIVER CASE: one behaviour of bcast_compare, by its exit status and its JSON.

Each case was seen to fail: `corrupt_byte` with verify() emptied in the worker, `label` with
mislabelled() returning nothing, `hang` without the limit in attend(), `arguments` with check_sizes()
emptied, `crash` with keep() ignoring the outcome, `quick` with take_row() left out, `hang_at_end`
and `label` with exit_status() returning 0 whatever peers did, `help` with ./run's look at it taken out, `mpich` with the worker of Open MPI,
`quick` with print_ending() left out, `phases` with the first repetition only, `mpich_late` with UCX's tcp instead of its shared memory, `mpich_sigpipe` without the look at SIGPIPE, and
with any death of it forgiven.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from driving import expect, no_malloc

DRIVER = sys.argv[1]
CASE = sys.argv[2]
LIBRARY = pathlib.Path(DRIVER).parent.parent / "lib" / "librdmalloc.so"


def drive(*arguments, folder="."):
    done = subprocess.run([DRIVER, "--output", folder, "--quiet", *arguments], text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def case_arguments():
    for arguments, wanted in [
            (["--sizes", "12Q"], "12Q"),
            (["--sizes", "2G"], "2G"),
            (["--patterns", "stale"], "fresh, reused"),
            (["--allocators", "nomalloc"], "nomalloc"),
            (["--transports", "pigeon"], "shm, tcp"),
            (["--repetitions", "0"], "repetitions"),
            (["--mpirun", "/bin/true"], "/bin/true"),
            (["--nonsense"], "nonsense")]:
        status, output = drive(*arguments)
        expect(status == 2, f"{arguments}: exit status {status}, not 2", output)
        expect(wanted in output, f"{arguments}: the message doesn't name '{wanted}'", output)
    status, output = drive("--list")
    expect(status == 0 and "allocator glibc" in output, "--list", output)


def case_help(folder):
    """./run --help installs and builds nothing: there is nothing here to do it with."""
    shutil.copy(pathlib.Path(__file__).resolve().parents[2] / "run", folder)
    for arguments in (["--help"], ["-h"], ["--quick", "--help"]):
        done = subprocess.run(["./run", *arguments], text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        expect(done.returncode == 0, f"{arguments}: exit status {done.returncode}", done.stdout)
        expect("--no-setup" in done.stdout and "docs/bench.md" in done.stdout, "no help", done.stdout)
    # The driver's own help where it is built.
    os.makedirs("build/release/bin")
    driver = pathlib.Path("build/release/bin/bcast_compare")
    driver.write_text('#!/bin/sh\necho "driver $*"\n')
    driver.chmod(0o755)
    output = subprocess.run(["./run", "--quick", "--help"], text=True, stdout=subprocess.PIPE).stdout
    expect(output.endswith("\ndriver --help\n"), "not the driver's own help", output)


def fault(name, *further, folder, allocator="glibc"):
    return drive("--sizes", "4K", "--patterns", "fresh,reused", "--repetitions", "1", "--scale",
                 "0.1", "--allocators", allocator, "--worker-fault", name, *further, folder=folder)


def only_failure(folder):
    return json.loads(pathlib.Path(folder, "bcast.json").read_text())["failures"][0]


def case_corrupt_byte(folder):
    status, output = fault("corrupt-byte", folder=folder)
    expect(status == 3, f"exit status {status}, not 3: nothing right was measured", output)
    expect("wrong bytes arrived" in only_failure(folder)["what"], "not named as wrong bytes", output)
    expect("rank 1" in output, "the rank is not named", output)


def case_crash(folder):
    status, output = fault("crash", folder=folder)
    expect(status == 3, f"exit status {status}, not 3", output)
    expect("Segmentation fault" in only_failure(folder)["stderr"], "stderr is not kept", output)


def case_hang(folder):
    status, output = fault("hang", "--limit-s", "4", folder=folder)
    expect(status == 3, f"exit status {status}, not 3", output)
    failure = only_failure(folder)
    expect("limit" in failure["what"], "not named as a hang", output)
    if shutil.which("gdb"):
        expect("inject_fault" in failure["stacks"], "no stack of the rank that hangs", output)
        expect(failure["stacks"].count("--- bcast_worker") == 2, "not both ranks", output)
    # In a file that is named: on the terminal they would push the tables away.
    details = pathlib.Path(folder, "bcast.failures.txt")
    expect(failure["stacks"] in details.read_text(), "the stacks are in no file", details.read_text())
    expect(str(details) in output and "--- bcast_worker" not in output, "stacks on the terminal", output)
    lines = output[output.index("FAILED"):output.index("All that they wrote")].splitlines()
    expect(len(lines) <= 14, f"{len(lines)} lines of one failure", output)
    left = subprocess.run(["pgrep", "-f", f"bcast_worker.*--fault hang"], stdout=subprocess.PIPE)
    expect(left.returncode == 1, "ranks were left behind", output)


def case_hang_at_end(folder):
    """All rows are there and right, and yet the run hung: that is no success, also of a peer."""
    status, output = fault("hang-at-end", "--limit-s", "6", folder=folder)
    expect(status == 4, f"exit status {status}, not 4: a peer failed", output)
    expect("1 failures" in output, "the failure is not counted", output)
    report = json.loads(pathlib.Path(folder, "bcast.json").read_text())
    expect(report["results"], "what was measured before is lost", output)
    expect("limit" in only_failure(folder)["what"], "not named as a hang", output)
    if LIBRARY.exists():
        status, output = fault("hang-at-end", "--limit-s", "6", folder=folder, allocator="rdmalloc")
        expect(status == 1, f"exit status {status}, not 1: rdmalloc failed", output)


def case_label(folder):
    """A preload that serves no malloc must not become a row."""
    libm = no_malloc()
    status, output = drive("--quick", "--allocators", "glibc", "--peer", f"sham={libm}",
                           "--patterns", "fresh", folder=folder)
    expect(status == 4, f"exit status {status}, not 4: a peer failed", output)
    report = json.loads(pathlib.Path(folder, "bcast.json").read_text())
    expect(all(row["allocator"] == "glibc" for row in report["results"]), "a sham row", output)
    expect("malloc is served by" in report["failures"][0]["what"], "no reason", output)


def case_quick(folder):
    allocators = ["glibc", "rdmalloc"] if LIBRARY.exists() else ["glibc"]
    status, output = drive("--quick", "--sizes", "4K,258048", "--allocators", ",".join(allocators),
                           folder=folder)
    expect(status == 0, f"exit status {status}, not 0", output)
    report = json.loads(pathlib.Path(folder, "bcast.json").read_text())
    rows = {(row["allocator"], row["pattern"], row["bytes"]): row for row in report["results"]}
    for allocator in allocators:
        for pattern in ["fresh", "reused", "growing"]:
            for size in [4096, 258048]:
                row = rows[(allocator, pattern, size)]
                expect(row["broadcasts"] > 0 and row["bcast_us"]["median"] > 0, f"{row}", output)
        expect((allocator, "mixed", 0) in rows, "no row mixed", output)
    expect("<svg" in pathlib.Path(folder, "bcast.svg").read_text(), "no picture", output)
    expect("Does MPI_Bcast take longer from a fresh buffer" in output, "no table", output)
    has_tool = pathlib.Path(DRIVER).with_name("rdmalloc").exists()
    last = output.strip().splitlines()[-4 if has_tool else -1:]
    expect(last[0] == f"Picture: {folder}/bcast.svg", "the place of the picture is not told", output)
    if has_tool:
        for line, command in zip(last[2:], ("doctor", "run"), strict=True):
            expect(line.endswith(f"rdmalloc {command} -- mpirun -n 2 ./program"), "nothing to try next", output)
    if len(allocators) == 1:
        print("SKIP: no librdmalloc.so beside the driver; glibc's half was right")
        sys.exit(77)


def case_phases(folder):
    """Each repetition has its own: one alone shows no spread. The counts are there as well."""
    status, output = drive("--patterns", "phases", "--sizes", "64K", "--repetitions", "2", "--pause-ms", "1",
                           "--scale", "0.1", "--backed-mib", "8", "--allocators", "glibc", folder=folder)
    expect(status == 0, f"exit status {status}, not 0", output)
    report = json.loads(pathlib.Path(folder, "bcast.json").read_text())
    expect(report["backed_mib"] == 8, "what was backed is not told", output)
    row = report["results"][0]
    for figure in ("cycle_us", "first_after_pause_us"):
        values = row[figure]["repetitions"]
        expect(len(values) == 2 and all(values), f"{figure} of 2 repetitions: {values}", output)
    expect(row["kernel_us_per_broadcast"] >= 0 and row["huge_pages"] >= 0, f"no counts in {row}", output)


def mpich():
    mpiexec = shutil.which("mpiexec.mpich")
    if mpiexec is None or not pathlib.Path(DRIVER).with_name("bcast_worker_mpich").exists():
        print("SKIP: no MPICH (apt install mpich libmpich-dev)")
        sys.exit(77)
    return mpiexec


def drive_mpich(*arguments, folder, mpiexec=None):
    """One run under MPICH in which nothing failed; its report."""
    mpiexec = mpiexec or mpich()
    status, output = drive("--mpirun", mpiexec, *arguments, folder=folder)
    expect(status == 0, f"exit status {status}, not 0", output)
    if "--list" in arguments:
        return output
    report = json.loads(pathlib.Path(folder, "bcast.json").read_text())
    expect(not report["failures"], f"{len(report['failures'])} failures", output)
    expect("MPICH" in report["mpi"], f"broadcasts of {report['mpi']}, not of MPICH", output)
    return report


def case_mpich(folder):
    allocators = ["glibc", "rdmalloc"] if LIBRARY.exists() else ["glibc"]
    report = drive_mpich("--quick", "--sizes", "4K,258048", "--patterns", "fresh,reused",
                         "--transports", "shm,ucx", "--allocators", ",".join(allocators),
                         folder=folder)
    rows = {(row["transport"], row["allocator"], row["pattern"], row["bytes"])
            for row in report["results"]}
    wanted = {(transport, allocator, pattern, size) for transport in ["shm", "ucx"]
              for allocator in allocators for pattern in ["fresh", "reused"]
              for size in [4096, 258048]}
    expect(wanted <= rows, f"rows are missing: {wanted - rows}", str(rows))
    output = drive_mpich("--list", "--transports", "all", folder=folder)
    expect("LEFT OUT tcp" in output, "what MPICH lacks is not named", output)


def case_mpich_late(folder):
    """A rank that comes late to the end must not let the others hang in MPI_Finalize."""
    allocators = ["glibc", "rdmalloc"] if LIBRARY.exists() else ["glibc"]
    drive_mpich("--quick", "--sizes", "4K", "--patterns", "fresh", "--transports", "shm,ucx",
                "--repetitions", "3", "--limit-s", "30", "--worker-fault", "late-at-end", "--allocators",
                ",".join(allocators), folder=folder)


def case_mpich_sigpipe(folder):
    """A launcher that dies of SIGPIPE after its ranks have ended is no failure; one that does before is."""
    small = ["--quick", "--sizes", "4K", "--patterns", "fresh", "--transports", "shm", "--allocators", "glibc"]
    for runs, is_failure in ((f'{mpich()} "$@"; kill -PIPE $$', False), ("kill -PIPE $$", True)):
        launcher = pathlib.Path(folder, "launcher")
        launcher.write_text(f'#!/bin/sh\n[ "$1" != --version ] || exec {mpich()} "$@"\n{runs}\n')
        launcher.chmod(0o755)
        if is_failure:
            status, output = drive("--mpirun", str(launcher), *small, folder=folder)
            expect(status != 0, "the exit status is 0", output)
            expect("the worker said nothing" in output, "the failure is not told", output)
        else:
            drive_mpich(*small, folder=folder, mpiexec=str(launcher))


def main():
    if shutil.which("mpirun") is None:
        print("SKIP: no mpirun (apt install openmpi-bin)")
        sys.exit(77)
    if CASE == "arguments":
        return case_arguments()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        globals()[f"case_{CASE}"](folder)


main()
