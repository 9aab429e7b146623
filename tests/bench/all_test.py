"""all_test.py DRIVER CASE: one behaviour of bench_all.

Seen to fail: `arguments` with choose_parts() refusing nothing, `quick` with a part's status passed over, `earlier` with what
an earlier run left not removed, with what is no JSON dumped as it is, and without --backed-mib among what is passed on.
"""
import json
import os
import pathlib
import sys

import driving
from driving import expect

DRIVER = sys.argv[1]
CASE = sys.argv[2]
drive = driving.Driver(DRIVER, "all").run


def case_arguments():
    for arguments, wanted in [(["--parts", "nothing"], "nothing"),
                              (["--allocators", "nomalloc"], "nomalloc")]:
        status, output = drive(*arguments)
        expect(status == 2 and wanted in output, f"{arguments}: exit status {status}", output)


def case_quick():
    """Parts run with the same allocators; their tables and JSON are in one report, a failure is told."""
    status, output = drive("--parts", "startup,programs", "--quick", "--allocators",
                           "glibc,rdmalloc")
    expect(status == 0, f"exit status {status}, not 0", output)
    report = json.loads(pathlib.Path("out/bench.json").read_text())
    expect(report["schema"] == "rdmalloc-bench-1", "schema", output)
    for part in ["startup", "programs"]:
        names = {row["allocator"] for row in report["parts"][part]["report"]["results"]}
        expect(names == {"glibc", "rdmalloc"}, f"{part}: {names}", output)
    expect("geometric mean" in pathlib.Path("out/index.html").read_text(), "the page", output)

    status, output = drive("--parts", "startup", "--quick", "--allocators", "rdmalloc",
                           "--rdmalloc", "/nowhere/lib.so")
    expect(status == 1, f"without rdmalloc: exit status {status}, not 1", output)


def case_earlier():
    """What a part did not leave is not taken from an earlier run, and the report is JSON without it."""
    status, output = drive("--parts", "startup", "--quick", "--allocators", "glibc", "--backed-mib", "7")
    report = json.loads(pathlib.Path("out/bench.json").read_text())
    expect(status == 0 and report["parts"]["startup"]["report"]["backed_mib"] == 7, f"--backed-mib: {status}", output)

    if not (pathlib.Path(DRIVER).parent / "bench_cores").exists():
        driving.skip("no bench_cores here")
    pathlib.Path("out/cores.json").write_text('{"schema": "rdmalloc-cores-1"}')
    pathlib.Path("out/cores.svg").write_text("<svg/>")
    os.environ["PATH"] = "/nowhere"  # no QEMU
    status, output = drive("--parts", "cores", "--quick", "--allocators", "glibc")
    report = json.loads(pathlib.Path("out/bench.json").read_text())
    expect(status == 3 and report["parts"]["cores"] == {"status": 3, "report": None}, f"status {status}", output)
    expect("cores.svg" not in pathlib.Path("out/index.html").read_text(), "an earlier picture", output)


driving.run_case(globals(), CASE)
