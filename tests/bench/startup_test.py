"""startup_test.py DRIVER CASE: one behaviour of startup_compare.

Seen to fail: `arguments` with the check of --program removed, `quick` with problem_of() always empty.
"""
import json
import os
import pathlib
import sys

import driving
from driving import expect

DRIVER = sys.argv[1]
CASE = sys.argv[2]
drive = driving.Driver(DRIVER, "startup").run


def case_arguments():
    for arguments, wanted in [(["--program", "/nowhere/program"], "/nowhere/program"),
                              (["--allocators", "nomalloc"], "nomalloc"),
                              (["--repetitions", "0"], "repetitions")]:
        status, output = drive(*arguments)
        expect(status == 2 and wanted in output, f"{arguments}: exit status {status}", output)
    status, output = drive("--list")
    expect(status == 0 and "allocator glibc" in output, "--list", output)


def case_quick():
    """Every figure is there; counts only are judged: memory and system calls, no time."""
    pathlib.Path("broken.so").write_text("no library")
    status, output = drive("--allocators", "glibc,rdmalloc", "--peer",
                           f"broken={os.path.abspath('broken.so')}", "--repetitions", "5")
    expect(status == 0, f"exit status {status}, not 0", output)
    report = json.loads(pathlib.Path("out/startup.json").read_text())
    rows = {row["allocator"]: row for row in report["results"]}
    expect(set(rows) == {"glibc", "rdmalloc"}, "a row of a library that was not preloaded", output)
    expect(report["failures"][0]["allocator"] == "broken", "the failure", output)
    for name, row in rows.items():
        expect(row["wall_ms"]["count"] == 5 and row["wall_ms"]["median"] > 0, f"{name}: ms", output)
        expect(100 < row["rss_kib"]["median"] < 8192, f"{name}: peak", output)
        expect(5 < row["system_calls"] < 300, f"{name}: system calls", output)
    expect(rows["rdmalloc"]["rss_kib_over_glibc"] <= 2048, "peak over glibc's + 2 MiB", output)
    expect(rows["rdmalloc"]["system_calls"] > rows["glibc"]["system_calls"], "calls", output)


driving.run_case(globals(), CASE)
