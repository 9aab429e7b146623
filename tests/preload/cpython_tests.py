#!/usr/bin/python3
"""CPython's own tests, under the preload and with glibc's malloc as the control.

    cpython_tests.py LIBRDMALLOC [MODULE...]

Debian's libpython3-testsuite has them. Each module (those of MODULES, or all with `all`) is run twice by
`python3 -m test`, and what each test came to is compared: one that passes with glibc's malloc passes with
ours. What does not is tried once more, alone and both ways, since some of these tests hang on the clock.

Some of them want a network, a terminal or another user and are skipped, or fail both ways; those are
counted and printed. A module that comes to no report with glibc's malloc is not compared.
Seen (2026-11-25, CPython 3.11.2's tests on Debian 12, a module at a time): 9,016 tests in 51 modules, none
that passes with glibc's malloc only. Not compared: test_socket, which did not end with glibc's malloc in a
sandbox without a network. Of the 366 modules that MODULES does not name, 334 came to a report: 22,918 tests, of
which 22,293 pass with glibc's malloc and with ours. The others want a network, Tk, Windows or a debugger.
Seen to fail: with a library in LIBRDMALLOC's place that refuses blocks of 300 KiB and more.
"""
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

PYTHON = "/usr/bin/python3"
# What allocates, forks, makes threads, maps memory or calls C; and what runs long.
MODULES = """
test_threading test_thread test_threading_local test_threadedtempfile test_threadsignals test_queue
test_multiprocessing_fork test_multiprocessing_forkserver test_multiprocessing_spawn test_concurrent_futures
test_fork1 test_subprocess test_os test_posix test_signal test_wait3 test_wait4 test_faulthandler test_atexit
test_mmap test_ctypes test_memoryview test_buffer test_array test_bytes test_unicode test_list
test_dict test_set test_tuple test_deque test_struct test_gc test_weakref
test_tracemalloc test_embed test_cmd_line test_resource test_socket test_ssl test_asyncio test_selectors
test_io test_fileio test_zlib test_bz2 test_lzma test_pickle test_json test_re test_decimal
test_long test_generators test_coroutines test_descr test_exceptions test_import test_importlib
test_hashlib test_tempfile test_shutil test_zipfile test_tarfile test_logging test_xml_etree
""".split()
MODULE_S = 900


def run(module, folder, environment, only=()):
    """{test: passed, skipped or failed}; with `only`, of those. A module that never got to its report: {}."""
    report = os.path.join(folder, "report.xml")
    if os.path.exists(report):
        os.remove(report)
    matches = [word for test in only for word in ("-m", test.rsplit(" ", 1)[-1])]
    command = [PYTHON, "-m", "test", "--timeout", "300", "--junit-xml", report, *matches, module]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                              timeout=MODULE_S, cwd=folder, env={**os.environ, **environment})
        output, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as expired:
        output, status = str(expired.stdout or "")[-2000:], "none in time"
    found = {}
    if os.path.exists(report):
        for case in xml.etree.ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case}
            result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            found[case.get("classname", "") + " " + case.get("name", "")] = result
    if not found and not re.search(r"skipped|no tests", output):
        error = re.findall(r"(?m)^\w*Error: .*$", output)
        print(f"{module}: no report, status {status}: {error[-1] if error else output[-300:]}", flush=True)
    return found


def worse(control, ours):
    return sorted(test for test, result in control.items()
                  if result == "passed" and ours.get(test) != "passed")


def main(library, *modules):
    probe = subprocess.run([PYTHON, "-c", "import test.test_threading"], check=False, stderr=subprocess.DEVNULL)
    if probe.returncode != 0:
        print("SKIP: wants CPython's tests: apt-get install libpython3-testsuite")
        return 77
    if modules == ("all",):
        listed = subprocess.run([PYTHON, "-m", "test", "--list-tests"], stdout=subprocess.PIPE, text=True,
                                check=True).stdout
        modules = re.findall(r"(?m)^test_\w+$", listed)
    preload = {"LD_PRELOAD": os.path.abspath(library)}
    mapped = subprocess.run([PYTHON, "-c", "print(open('/proc/self/maps').read())"], stdout=subprocess.PIPE,
                            text=True, check=True, env={**os.environ, **preload}).stdout
    if os.path.basename(os.path.realpath(library)) not in mapped:
        print(f"{PYTHON} does not load {library}")
        return 1
    totals = {"passed": 0, "skipped": 0, "failed": 0}
    wrong = []
    for module in modules or MODULES:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            control = run(module, folder, {})
            if not control:
                print(f"{module}: not compared", flush=True)
                continue
            suspects = worse(control, run(module, folder, preload))
            if suspects:
                again = run(module, folder, {}, suspects)
                suspects = worse({test: again.get(test, "passed") for test in suspects},
                                 run(module, folder, preload, suspects))
        for result in control.values():
            totals[result] += 1
        print(f"{module}: {len(control)} tests, {len(suspects)} pass with glibc's malloc only {suspects}", flush=True)
        wrong += suspects
    print(f"with glibc's malloc: {totals}; of those that pass, {len(wrong)} fail with ours {wrong}")
    if totals["passed"] == 0:
        print("no test passed with glibc's malloc: nothing was compared")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
