"""micro_test.py DRIVER CASE: one behaviour of micro_compare or rss_return.

Seen to fail: `arguments` with the check of --rss-bytes removed, `label` with take_benchmarks() not
asking is_served_by(), `quick` with put() left out, `rss` with verdict() always false and with
take_rss() not asking who serves malloc, `rss_kept`
(the control: purging off, nothing may come back) with verdict() always true.
"""
import json
import os
import pathlib
import subprocess
import sys

import driving
from driving import expect

DRIVER = driving.Driver(sys.argv[1], "micro")
drive = DRIVER.run
LIBRARY = pathlib.Path(DRIVER.program).parent.parent / "lib" / "librdmalloc.so"
RSS_RETURN = pathlib.Path(DRIVER.program).parent / "rss_return"


def case_arguments():
    DRIVER.refuses([(["--allocators", "nomalloc"], "nomalloc"),
                    (["--peer", "nonsense"], "NAME=PATH"),
                    (["--repetitions", "0"], "repetitions"),
                    (["--rss-bytes", "lots"], "lots")])
    status, output = drive("--quick", "--allocators", "glibc", "--filter", "nobench")
    expect(status == 3 and "nobench" in output, f"a filter without a match: {status}", output)
    DRIVER.lists()


def case_label():
    DRIVER.leaves_out_a_sham("--quick", "--filter", "pair/64$")


def case_quick():
    """Every benchmark runs to its end under ours and under glibc's."""
    status, output = drive("--quick", "--allocators", "glibc,rdmalloc", "--min-time-s", "0.001")
    expect(status == 0, f"exit status {status}, not 0", output)
    report = DRIVER.report()
    times = {(row["benchmark"], row["allocator"]): row["ns"]["median"] for row in report["results"]}
    families = {benchmark.split("/")[0] for benchmark, _ in times}
    for family in ["pair", "fifo", "random", "random_touch", "producer_consumer", "ping_pong",
                   "large", "grow_doubling", "grow_64K_steps", "heap_pair",
                   "heap_random"]:
        expect(family in families, f"no {family}", output)
    benchmarks = {benchmark for benchmark, _ in times}
    for benchmark in benchmarks:
        for allocator in ["rdmalloc"] if benchmark.startswith("heap_") else ["glibc", "rdmalloc"]:
            expect(times.get((benchmark, allocator), 0) > 0, f"{benchmark} {allocator}", output)


def rss(**environment):
    done = subprocess.run([RSS_RETURN, "--bytes", str(256 << 20), "--decay-ms", "1000"], text=True,
                          stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                          env=dict(os.environ, LD_PRELOAD=str(LIBRARY), **environment))
    return done.returncode, done.stdout


def case_rss():
    status, output = rss(RDMALLOC_DECAY_MS="1000")
    expect(status == 0, f"exit status {status}: memory did not come back", output)
    peak = [json.loads(line)["mib"] for line in output.splitlines() if '"peak"' in line][0]
    expect(peak >= 256, f"the storm used {peak} MiB only", output)

    os.environ["RDMALLOC_DECAY_MS"] = "200"
    status, output = drive("--filter", "none", "--allocators", "rdmalloc", "--peer", f"sham={driving.no_malloc()}",
                           "--repetitions", "1", "--rss-bytes", "16M")
    report = DRIVER.report()
    expect({row["allocator"] for row in report["rss"]} == {"rdmalloc"}, "a sham row", output)
    expect("malloc is served by" in report["failures"][0]["what"], "no reason", output)


def case_rss_kept():
    status, output = rss(RDMALLOC_PURGE="off")
    expect(status == 1, f"exit status {status}: purging is off, memory can't have come back", output)


driving.run_case(globals(), sys.argv[2])
