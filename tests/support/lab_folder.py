"""Where tools/lab keeps what it has fetched: asked of the tool, since a copy of its rules would miss a change of them."""
import os
import subprocess

COMMON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "lab.d", "common.sh")


def lab_folder():
    return subprocess.run(["bash", "-c", '. "$0" && lab_dir', COMMON], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, check=True).stdout.removesuffix("\n")
