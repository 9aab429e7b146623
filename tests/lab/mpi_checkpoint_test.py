#!/usr/bin/python3
"""An MPI job over shared memory, quiesced, dumped and restored by CRIU: in the lab's guest, Debian 13.

    mpi_checkpoint_test.py BUILD [--full]

In a guest, because CRIU 4.1.1 can dump no TCP socket on Linux 6.18, and mpirun has some. --full goes through all
transports (mpi_checkpoints.py), as docs/checkpoints.md has them; only shared memory is judged.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

from checkpoint_test import lab_folder

HERE = os.path.dirname(os.path.abspath(__file__))
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
            [LAB, "-q", "--release", "trixie", "--limit", "1800" if given.full else "300", "--share", shared,
             "--share", modules(), "run", "--", "python3", f"{HERE}/mpi_checkpoints.py", shared, modules(),
             *([] if given.full else ["btl sm"])],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", check=False)
    print(done.stdout)
    if done.returncode != 0 or not re.search(r"(?m)^btl sm: restored, rounds \d+ then \d+, wrong 0$", done.stdout):
        print(f"mpi_checkpoint_test: status {done.returncode}, and the job over shared memory did not come back")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
