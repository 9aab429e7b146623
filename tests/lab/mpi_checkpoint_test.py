#!/usr/bin/python3
"""An MPI job over shared memory, quiesced, dumped and restored by CRIU: in the lab's guest, Debian 13.

    mpi_checkpoint_test.py BUILD [--full]

In a guest, because CRIU 4.1.1 can dump no TCP socket on Linux 6.18, and mpirun has some. --full goes through all
transports (mpi_checkpoints.py), and each must end as the table in docs/checkpoints.md says.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, f"{HERE}/../support")
from lab_folder import lab_folder  # noqa: E402

RESTORED = r"restored, rounds \d+ then \d+, wrong 0"
EXPECTED = {  # the table of docs/checkpoints.md
    "btl sm": RESTORED,
    "btl tcp": RESTORED,
    "UCX posix": RESTORED,
    "UCX posix, default limit":
        r"refused at the dump: Can't dump ghost file /dev/shm/ucx_shm_posix_\w+ of \d+ size, increase limit; "
        "resumed by hand, goes on",
    "UCX sysv": RESTORED,
    "UCX sysv, IPC of all":
        r"refused at the dump: Task \d+ with SysVIPC shmem map @\w+ doesn't live in IPC ns; resumed by hand, goes on",
    "UCX tcp": RESTORED,
    "UCX tcp, rdmacm": r"a rank is not quiesced: \d+ /dev/infiniband/rdma_cm; goes on",
    "UCX rc": r"a rank is not quiesced: \d+ /dev/infiniband/uverbs0,.*; goes on",
    "mtl ofi tcp": RESTORED,
    "mtl ofi tcp, all providers":
        r"a rank is not quiesced: \d+ /dev/infiniband/uverbs0, \d+ anon_inode:\[infinibandevent\]; goes on",
    "mtl ofi shm": r"does not start: fi_getinfo\(\): No data available",
}
LAB = f"{HERE}/../../tools/lab"


def gather(build, folder):
    for name in ("bin/lab_checkpointed_ranks", "bin/rdmalloc", "lib/librdmalloc.so.0",
                 "lib/librdmalloc-mlock.so.0"):
        shutil.copy(f"{build}/{name}", folder)
    # The tool's own, of this Debian.
    needed = subprocess.run(["ldd", f"{build}/bin/rdmalloc"], stdout=subprocess.PIPE, text=True,
                            check=True).stdout
    shutil.copy(re.search(r"libfmt\S* => (\S+)", needed)[1], folder)


def modules():
    """Of the guest's kernel, as tools/lab has unpacked it."""
    kernels = lab_folder() + "/kernels"
    there = [os.path.join(kernels, version, "root", "lib", "modules", version, "kernel")
             for version in os.listdir(kernels)]
    [folder] = [folder for folder in there if os.path.isdir(folder)]
    return folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--full", action="store_true")
    given = parser.parse_args()
    subprocess.run([LAB, "-q", "--release", "trixie", "fetch"], check=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rdmalloc-checkpoint.") as shared:
        gather(os.path.abspath(given.build), shared)
        done = subprocess.run(
            [LAB, "-q", "--release", "trixie", "--limit", "2400" if given.full else "300", "--share", shared,
             "--share", modules(), "run", "--", "python3", f"{HERE}/mpi_checkpoints.py", shared, modules(),
             *(EXPECTED if given.full else ["btl sm"])],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", check=False)
    print(done.stdout)
    seen = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    wrong = [name for name in (EXPECTED if given.full else ["btl sm"])
             if not re.fullmatch(EXPECTED[name], seen.get(name, "nothing"))]
    for name in wrong:
        print(f"mpi_checkpoint_test: {name}: not as expected: {EXPECTED[name]}")
    if done.returncode != 0:
        print(f"mpi_checkpoint_test: status {done.returncode}")
    return 1 if wrong or done.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
