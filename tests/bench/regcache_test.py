"""regcache_test.py DRIVER CASE: one behaviour of regcache_compare.

Times are never looked at, only that there are some.

Seen to fail: `arguments` with parse_numbers() taking any number, `quick` with `foreign` left out of the
worker's subjects and with a get of the counted kind not counted, `failure` with take() not asking
whether the worker succeeded.
"""
import pathlib
import shutil
import subprocess
import sys

import driving
from driving import expect

DRIVER = driving.Driver(sys.argv[1], "regcache")
drive = DRIVER.run
report = DRIVER.report
OURS = {"load", "key", "load_chained", "key_chained", "count", "get_put", "get_put_apart", "foreign"}


def case_arguments():
    DRIVER.refuses([(["--regions", "lots"], "lots"), (["--regions", "0"], "regions"),
                    (["--threads", "65"], "65"), (["--threads", ","], "threads"),
                    (["--least", "0"], "least"), (["--rounds", "x"], "rounds"),
                    (["--allocators", "glibc"], "allocators")])
    worker = pathlib.Path(DRIVER.program).parent / "regcache_worker"
    for arguments in [["--regions", "0"], ["--threads", "1,x"], ["--rounds"], ["--more", "1"]]:
        done = subprocess.run([worker, *arguments], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        expect(done.returncode == 2 and "usage" in done.stderr, f"worker {arguments}", done.stderr)


def check_counts(counts, has_ucx, output):
    regions = counts["regions"]
    for kind in ["owned", "foreign"]:
        told = counts[kind]
        expect(told["registrations"] == regions == told["misses"], f"{kind}: {told}", output)
        # The owned were registered by reg_key, so that each get is a hit.
        missed = 0 if kind == "owned" else regions
        expect(told["hits"] == told["gets"] - missed > 0, f"{kind}: {told}", output)
    if has_ucx:
        expect(counts["ucx"]["registrations"] == regions, f"UCX: {counts}", output)


def case_quick():
    """Each subject has a time in each row, and all look-ups were hits."""
    status, output = drive("--quick", "--regions", "1,64", "--threads", "1,3", "--footprint", "2000")
    expect(status == 0, f"exit status {status}, not 0", output)
    told = report()
    has_ucx = told["ucx"] != ""
    expect(has_ucx or told["left_out"][0]["what"] == "UCX", "UCX is neither there nor left out", output)
    subjects = OURS | ({"ucx"} if has_ucx else set())
    rows = {(row["regions"], row["threads"], row["order"]): row for row in told["results"]}
    wanted = {(regions, threads, order) for regions in [1, 64] for threads in [1, 3]
              for order in ["random", "sequential"]}
    expect(set(rows) == wanted, f"rows: {sorted(rows)}", output)
    for where, row in rows.items():
        expect(set(row["ns"]) == subjects, f"{where}: {sorted(row['ns'])}", output)
        expect(all(ns["summary"]["median"] > 0 for ns in row["ns"].values()), f"{where}", output)
        expect(len(row["ratios"]) == (6 if has_ucx else 4), f"{where}: {row['ratios']}", output)
    expect([row["regions"] for row in told["changes"]] == [1, 64], "changes", output)
    for row in told["changes"]:
        expect({"invalidate", "register", "refused_get", "refused_key", "adopt", "disown"}
               <= set(row["ns"]), f"{row}", output)
    of_look_ups = [counts for counts in told["counts"] if counts["type"] == "counts"]
    expect([counts["regions"] for counts in of_look_ups] == [1, 64], "counts", output)
    for counts in of_look_ups:
        check_counts(counts, has_ucx, output)
    footprint = [counts for counts in told["counts"] if counts["type"] == "footprint"]
    expect(footprint[0]["registrations"]["rdmalloc"] == 2000, f"{footprint}", output)
    for header in ["1 thread, random", "3 threads, sequential", "invalidate", "memory of a"]:
        expect(header in output, f"no '{header}' in the tables", output)
    script = pathlib.Path("out/regcache.gp").read_text()
    expect(script.count("set title") == 4, "a panel for each", script)


def case_failure():
    """A worker that fails is a failure, with what it said."""
    folder = pathlib.Path("sham")
    folder.mkdir()
    driver = shutil.copy(DRIVER.program, folder)
    worker = folder / "regcache_worker"
    worker.write_text("#!/bin/sh\necho out of order >&2\nexit 7\n")
    worker.chmod(0o755)
    status, output = driving.Driver(driver, "regcache").run("--quick")
    expect(status == 1, f"exit status {status}, not 1", output)
    expect("out of order" in output and "exited with 7" in output, "no reason", output)


driving.run_case(globals(), sys.argv[2])
