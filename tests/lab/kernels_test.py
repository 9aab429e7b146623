#!/usr/bin/python3
"""The allocator's own test programs under Debian's kernels, in guests.

    kernels_test.py BUILD host|bullseye

host: the kernel that tools/lab takes here, Linux 6.1 on Debian 12; bullseye: Debian 11's, Linux 5.10. A
sample of the programs in BUILD/bin, of what a kernel may do otherwise: system calls by situation, what
madvise leaves, limits, threads and their ends. And in a cgroup of version 2, under bullseye's of version 1,
phases of blocks of all sizes in little memory (tests/invariants/take_back_cgroup.cc), ten times, with a control
that must be killed; in version 2 also ten times below memory.high, without RDMALLOC_LIMIT, where nothing slows
them down, and with swap, whose device is taken out of use in the middle.
Seen to fail: without RDMALLOC_LIMIT in the cgroup, with a program that is not there; with two shards (half of
the phases were killed). One may be: threads go on for the time of a purge (one of 30 was). Slowed down each
time: without the room of a small cgroup.
"""
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from lab_folder import lab_folder  # noqa: E402

WITH_STACKS = f"python3 {HERE.parent}/support/with_stacks.py"
KERNELS = {"host": r"\d+\.\d+", "bullseye": r"5\.10"}
PROGRAMS = ("lock_test topology_test lying_kernel_test system_calls_test life_cycle_test take_back_test "
            "slab_pages_test").split()
PRELOADED = ["late_caches frees", "late_caches third", "late_caches fourth", "thread_moments single",
             "thread_moments timer", "thread_moments thread"]
GUEST = """
cd /tmp
echo "kernel $(uname -r)"
for program in {programs}; do
  {limited} {bin}/$program --gtest_brief=1 > out 2>&1
  status=$?
  echo "$program: $status"; grep -E '^\\[  (FAILED|SKIPPED)|PASSED' out
  [ $status = 0 ] || tail -200 out
done
while read -r program; do
  LD_PRELOAD={library} {bin}/$program; echo "$program: $?"
done << 'END'
{preloaded}
END
# Where systems have them, and the library looks for them.
cgroups=/sys/fs/cgroup
if [ {version} = 2 ]; then
  mount -t cgroup2 none $cgroups && echo +memory > $cgroups/cgroup.subtree_control
else
  mount -t tmpfs none $cgroups && cgroups=$cgroups/memory && mkdir $cgroups
  mount -t cgroup -o memory none $cgroups
fi
phases() {{
  LD_PRELOAD={library} {bin}/take_back_cgroup $cgroups $*
  status=$?
  echo "take_back_cgroup $*: $status"
  rmdir $cgroups/take_back_cgroup
  return $status
}}
killed=0
for i in 1 2 3 4 5 6 7 8 9 10; do RDMALLOC_LIMIT=32M phases || killed=$((killed + 1)); done
echo "phases that lived: $((killed <= 1))"
phases more || true
slowed=0
if [ {version} = 2 ]; then
  for i in 1 2 3 4 5 6 7 8 9 10; do phases high || slowed=$((slowed + 1)); done
  insmod "$(find {kernels} -path "*/$(uname -r)/*" -name brd.ko)" rd_nr=1 rd_size=262144
  mkswap /dev/ram0 > /dev/null && swapon /dev/ram0
  phases swap /dev/ram0 || true
fi
echo "phases that nothing slowed: $((slowed <= 1))"
"""


def main(build, release):
    folder = os.path.join(build, "bin")
    guest = GUEST.format(bin=folder, limited=f"{WITH_STACKS} 200", library=os.path.join(build, "lib", "librdmalloc.so"),
                         programs=" ".join(PROGRAMS), preloaded="\n".join(PRELOADED),
                         kernels=os.path.join(lab_folder(), "kernels"),
                         version=1 if release == "bullseye" else 2)
    done = subprocess.run(
        [str(HERE.parent.parent / "tools" / "lab"), "-q", "--kernel", release, "--rdma", "none", "--memory",
         "4G", "--limit", "600", "run", guest],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False)
    print(done.stdout, end="")
    statuses = dict(re.findall(r"(?m)^(\w[\w /]*?) ?: (\d+)$", done.stdout))
    wanted = {program: "0" for program in PROGRAMS + PRELOADED}
    wanted["phases that lived"] = wanted["phases that nothing slowed"] = "1"
    wanted["take_back_cgroup more"] = "137"
    if release == "host":
        wanted["take_back_cgroup swap /dev/ram0"] = "0"
    wrong = [f"{name}: {statuses.get(name, 'not run')}, not {status}" for name, status in wanted.items()
             if statuses.get(name) != status]
    if not re.search(rf"(?m)^kernel {KERNELS[release]}\.", done.stdout):
        wrong.append(f"this is not the kernel of {release}")
    for sentence in wrong:
        print("kernels_test:", sentence)
    return 1 if wrong or done.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1]), sys.argv[2]))
