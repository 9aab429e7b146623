#!/usr/bin/python3
"""Strict overcommit (vm.overcommit_memory = 2), which is a setting of the whole machine: in a guest.

    overcommit_test.py LIBRDMALLOC

Programs run as they do elsewhere; malloc gets as much as glibc's gets, says ENOMEM then, and gives
all of it again after it was freed. Without the smaller step of arena_commit() it gets less: seen to
fail so. The control is glibc's malloc: it must be refused as well, or the limit is none.
"""
import errno
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# Of 2 GiB in the guest, without swap: 1.2 GiB may be promised.
GUEST = f"""
set -e
echo 60 > /proc/sys/vm/overcommit_ratio
echo 2 > /proc/sys/vm/overcommit_memory
cd /tmp
printf '#include <vector>\\nint main() {{ return std::vector<int>(10).size() - 10; }}\\n' > program.cc
for malloc in "" "%s"; do
  echo "malloc: $malloc"
  LD_PRELOAD=$malloc python3 {HERE}/programs/until_refused.py
  LD_PRELOAD=$malloc g++ -O1 program.cc -o program && LD_PRELOAD=$malloc ./program && echo compiled
  LD_PRELOAD=$malloc python3 -c 'print(len([str(i) for i in range(1000000)]), "strings")'
done
"""


def main(library):
    done = subprocess.run(
        [f"{HERE}/../../tools/lab", "-q", "--rdma", "none", "--memory", "2G", "--limit", "300", "run",
         GUEST % os.path.abspath(library)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False)
    print(done.stdout, end="")
    parts = re.split(r"(?m)^malloc: .*\n", done.stdout)[1:]
    if done.returncode != 0 or len(parts) != 2:
        print(f"overcommit_test: the lab's status {done.returncode}, {len(parts)} of 2 mallocs")
        return 1
    rounds = []
    for part in parts:
        found = re.search(r"blocks (\d+) (\d+) errno (\d+) small ([01])", part)
        if not found or "compiled" not in part or "1000000 strings" not in part:
            print("overcommit_test: a program did not do its work")
            return 1
        rounds.append([int(text) for text in found.groups()])
    (most, *_), (first, second, error, small) = rounds
    wrong = []
    if not 32 <= most < 256:
        wrong.append(f"glibc got {most} blocks of 8 MiB: that is no limit of 1.2 GiB")
    if first < most * 9 // 10:
        wrong.append(f"{first} blocks where glibc gets {most}")
    if error != errno.ENOMEM:
        wrong.append(f"errno {error} at the refusal")
    if second < first:
        wrong.append(f"{second} blocks after {first} were freed")
    if not small:
        wrong.append("no 64 bytes while the large blocks were taken")
    for sentence in wrong:
        print("overcommit_test:", sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
