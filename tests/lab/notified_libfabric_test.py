#!/usr/bin/python3
"""libfabric is notified of purges through the monitor that rdmalloc imports, and the counter says so: in a program
that registers over verbs and its cache, under RDMALLOC_NOTIFY=explicit, in one boot for each Debian.

    notified_libfabric_test.py RELEASE LAB_REGISTRATIONS LIBRDMALLOC_SO

Its domain over verbs starts the monitor; without a device none does, so no test outside the lab sees the counter rise.
Three runs: `explicit` notifies (notified_libfabric above 0) and every byte is right; `auto`, where libfabric hears by its
hooks in libc, counts none and is right; `off` counts none and has wrong bytes, so a cache that is not notified shows.
Seen to fail: with the call of notify() taken out of libfabric_monitor_notify() (wrong bytes), and its counter (0).
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from stacks import AT_EVERY_CHANCE, CACHE_SETTINGS

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 120  # of one run
# Buffers are longer than what threads cache, of which an idle one keeps one with its pages.
# Tier, and whether libfabric is notified by a call and whether all bytes are right.
RUNS = (("explicit", True, True), ("auto", False, True), ("off", False, False))


def script(folder):
    for tier, _, _ in RUNS:
        settings = {**CACHE_SETTINGS, **AT_EVERY_CHANCE, "RDMALLOC_NOTIFY": tier, "RDMALLOC_STATS": "1",
                    "LD_PRELOAD": f"{folder}/librdmalloc.so.0"}
        words = " ".join(f"{name}={value}" for name, value in settings.items())
        yield (f"echo run {tier}; python3 {HERE}/../support/with_stacks.py {LIMIT_S} env {words} "
               f"{folder}/lab_registrations 20 307200 recycled 2>&1; echo status $?")


def problems_of(output):
    parts = dict(re.findall(r"(?ms)^run (\w+)$(.*?)(?=^run |\Z)", output))
    for tier, is_notified, is_right in RUNS:
        text = parts.get(tier, "")
        line = re.search(r"wrong_bytes (\d+) recycled (\d+) came_back (\d+)", text)
        counter = re.search(r"(?m)^\s*(?:stats\.)?notified_libfabric\s+(\d+)", text)
        if line is None or counter is None:
            yield f"{tier}: it did not end: {text}"
            continue
        wrong, recycled, came_back = map(int, line.groups())
        told = int(counter[1])
        print(f"notified_libfabric_test: {tier}: notified_libfabric {told}, {wrong} wrong bytes, "
              f"{came_back} of {recycled} came back")
        if came_back * 2 < recycled:
            yield f"{tier}: only {came_back} of {recycled} buffers came back"
        if (told > 0) != is_notified:
            yield f"{tier}: notified_libfabric {told}"
        if (wrong == 0) != is_right:
            yield f"{tier}: {wrong} wrong bytes"


def main(release, program, library):
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rdmalloc-notified.") as folder:
        shutil.copy(program, folder)
        shutil.copy(library, folder + "/librdmalloc.so.0")
        done = subprocess.run(
            [f"{HERE}/../../tools/lab", "-q", "--release", release, "--limit", str(300 + 3 * LIMIT_S), "--mount", folder,
             "run", "\n".join(script(folder))], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False)
    output = done.stdout.decode(errors="replace").replace("\r", "")
    problems = list(problems_of(output))
    if done.returncode != 0:
        problems.append(f"the lab's status {done.returncode}: {output[-3000:]}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
