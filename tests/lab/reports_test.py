#!/usr/bin/python3
"""The programs of docs/reports/ that need a device, over soft-RoCE in both Debians: as their pages say.

    reports_test.py RELEASE FOLDER

They are compiled here into FOLDER, as their first lines say. Seen to fail: with FI_MR_CACHE_MAX_COUNT=0 where the cache
is to be seen.
"""
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LAB, REPORTS = (os.path.join(HERE, "../..", part) for part in ("tools/lab", "docs/reports"))
LIMIT_S = 120
OFF = "FI_MR_CACHE_MAX_COUNT=0 "
# Command, exit status, and lines that it has to print.
RUNS = (
    ("pinned_after_close", 1, ("after fi_close +1024 KiB", "after munmap of the block +1024 KiB",
                               "of the domain +0 KiB")),
    (OFF + "pinned_after_close", 0, ("after fi_close +0 KiB",)),
    ("fabric_answers_wider", 1, ("pages 0 to 15: remote read remote write remote atomic",
                                 "the key is the first one's, of all 16 pages")),
    (OFF + "fabric_answers_wider", 0, ("pages 0 to 15: local use", "pages 5 to 5: remote read\n")),
    ("node_taken_twice monitor", 0, ("ended: 20000 registrations, notified [1-9]",)),
    ("node_taken_twice registers", 0, ("ended: 80000 registrations",)),
)


def compile_all(folder):
    for name in sorted({re.search(r"\b[a-z]+_[a-z_]+", command)[0] for command, _, _ in RUNS}):
        source = os.path.join(REPORTS, name + ".c")
        with open(source, encoding="utf-8") as file:
            line = re.search(rf"^ \*   (cc .*{name}\.c.*)$", file.read(), flags=re.M)[1]
        words = [source if word == name + ".c" else word for word in line.split()]
        subprocess.run(words, cwd=folder, check=True, timeout=LIMIT_S)


def main():
    release, folder = sys.argv[1:]
    if not all(map(os.path.exists, ("/usr/include/rdma/fi_ext.h", "/usr/include/infiniband/verbs.h"))):
        print("SKIP: headers of libfabric or libibverbs are missing: tools/setup.sh")
        # In continuous integration nothing is missing, or tools/setup.sh is wrong.
        return 1 if os.environ.get("CI") else 77
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    compile_all(folder)
    script = "\n".join(f"echo run {at}; env {command.replace(' ', f' {folder}/', 1) if OFF in command else folder + '/' + command}"
                       "; echo status $?" for at, (command, _, _) in enumerate(RUNS))
    done = subprocess.run([LAB, "--release", release, "--limit", "400", "--mount", folder, "run", script], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1000, check=False)
    print(done.stdout)
    parts = re.split(r"(?m)^run \d+\r?$", done.stdout.replace("\r", ""))[1:]
    wrong = [] if done.returncode == 0 and len(parts) == len(RUNS) else [f"the lab ended with {done.returncode}"]
    for (command, status, lines), text in zip(RUNS, parts):
        if f"status {status}\n" not in text + "\n":
            wrong.append(f"{command}: not status {status}")
        wrong += [f"{command}: no {line!r}" for line in lines if not re.search(line, text)]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
