"""startup_test.py DRIVER CASE: one behaviour of startup_compare.

Seen to fail: `arguments` with the check of --program removed and with problem_of_output() always empty, `quick` with
problem_of() always empty, `served` with the linker not asked, with the rows of what failed kept, and with the user's
preload left in the environment, `said` with json's own dump().
"""
import os
import pathlib
import sys

import driving
from driving import expect, made

DRIVER = driving.Driver(sys.argv[1], "startup")
drive = DRIVER.run


def case_arguments():
    DRIVER.refuses([(["--program", "/nowhere/program"], "/nowhere/program"),
                    (["--allocators", "nomalloc"], "nomalloc"),
                    (["--repetitions", "0"], "repetitions")])
    for arguments in [["--output", "/proc/nowhere"], ["--json", "/proc/nowhere/startup.json"]]:
        status, output = drive(*arguments)
        expect(status == 2 and "/proc/nowhere" in output and "medians" not in output, f"{arguments}: {status}", output)
    status, output = drive("--repetitions", "1", "--allocators", "glibc", "--json", "/dev/full")
    expect(status == 2 and "can't write /dev/full" in output, f"a full disk: exit status {status}, not 2", output)
    DRIVER.lists()


def case_quick():
    """Every figure is there; counts only are judged: memory and system calls, no time."""
    pathlib.Path("broken.so").write_text("no library")
    status, output = drive("--allocators", "glibc,rdmalloc", "--peer",
                           f"broken={os.path.abspath('broken.so')}", "--repetitions", "5")
    expect(status == 0, f"exit status {status}, not 0", output)
    report = DRIVER.report()
    rows = {row["allocator"]: row for row in report["results"]}
    expect(set(rows) == {"glibc", "rdmalloc"}, "a row of a library that was not preloaded", output)
    expect(report["failures"][0]["allocator"] == "broken", "the failure", output)
    for name, row in rows.items():
        expect(row["wall_ms"]["count"] == 5 and row["wall_ms"]["median"] > 0, f"{name}: ms", output)
        expect(100 < row["rss_kib"]["median"] < 8192, f"{name}: peak", output)
        expect(5 < row["system_calls"] < 300, f"{name}: system calls", output)
    expect(rows["rdmalloc"]["rss_kib_over_glibc"] <= 2048, "peak over glibc's + 2 MiB", output)
    expect(rows["rdmalloc"]["system_calls"] > rows["glibc"]["system_calls"], "calls", output)


def failures():
    report = DRIVER.report()
    return {row["allocator"] for row in report["results"]}, {one["allocator"]: one["what"] for one in report["failures"]}


def case_served():
    """No row of a program that takes no preload, or that failed once; none of glibc's by the user's own preload."""
    still = made("still", "int main(void) { return 0; }", "-static")
    status, output = drive("--program", still, "--allocators", "glibc,rdmalloc", "--repetitions", "2")
    rows, failed = failures()
    expect(status == 1 and not rows and "static" in failed["rdmalloc"], f"static: exit status {status}, {failed}", output)

    once = pathlib.Path("once")
    once.write_text("#!/bin/sh\necho >>runs; [ $(wc -l <runs) -lt 3 ]\n")
    once.chmod(0o755)
    status, output = drive("--program", str(once.absolute()), "--allocators", "glibc", "--repetitions", "3")
    rows, failed = failures()
    expect(status == 3 and not rows and "glibc" in failed and "0.000" not in output, f"once: {status}, {failed}", output)

    os.environ["LD_PRELOAD"] = made("other.so", "void *__libc_malloc(unsigned long);"
                                    "void *malloc(unsigned long n) { return __libc_malloc(n); }", "-shared", "-fPIC")
    status, output = drive("--allocators", "glibc", "--repetitions", "2")
    expect(status == 0 and failures() == ({"glibc"}, {}), f"the user's preload: exit status {status}", output)
    expect("LEFT OUT LD_PRELOAD" in output, "the user's preload is not named", output)


def case_said():
    """What a program says on its way down may be no UTF-8; what the environment sets is in the report."""
    loud = made("loud.so", "long write(int, const void *, unsigned long); void _exit(int);"
                "__attribute__((constructor)) static void say(void) { write(2, \"caf\\xe9\\n\", 5); _exit(1); }",
                "-shared", "-fPIC")
    os.environ["MALLOC_ARENA_MAX"] = "7"
    status, output = drive("--allocators", "glibc", "--peer", f"loud={loud}", "--repetitions", "2")
    expect(status == 0 and failures()[0] == {"glibc"}, f"exit status {status}, not 0", output)
    report = DRIVER.report()
    expect(report["host"]["settings_of_malloc"]["MALLOC_ARENA_MAX"] == "7", "a setting", output)
    expect("for all of them MALLOC_ARENA_MAX=7" in output, "a setting is not named", output)


driving.run_case(globals(), sys.argv[2])
