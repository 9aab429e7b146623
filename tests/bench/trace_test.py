"""trace_test.py FOLDER LIBRECORD CASE: what is recorded is what is replayed; what is broken is refused.

Seen to fail: `counts` with realloc's first event passed over, `threads` with a replay that waits for no
turn, `fork` with the recorder's page not wiped at fork, `broken_order` with a rehearsal that waits for no
turn, `cut_off` with the length of the file not looked at, `arguments` with --name taken as a path.
"""
import glob
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(sys.argv[1])
LIBRECORD = sys.argv[2]
CASE = sys.argv[3]
RDMALLOC = FOLDER.parent / "lib" / "librdmalloc.so"
FREE = 5  # Operation::free (bench/traces/format.h)


def run(*command, **environment):
    done = subprocess.run([str(part) for part in command], text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=50,
                          env=dict(os.environ, **environment))
    return done.returncode, done.stdout


def expect(condition, what, output=""):
    if not condition:
        print(output)
        sys.exit(f"FAILED: {what}")


def recordings(case):
    """Each recording of the program as (what pack_trace says of it, its trace)."""
    status, output = run(FOLDER / "trace_program", case, LD_PRELOAD=LIBRECORD,
                         BENCH_RECORD_TO="recording")
    expect(status == 0, f"the program under the recorder: {status}", output)
    packed = []
    for path in sorted(glob.glob("recording.*")):
        status, output = run(FOLDER / "pack_trace", path, path + ".trace")
        expect(status == 0, f"pack_trace: {status}", output)
        packed.append((json.loads(output), path + ".trace"))
    return packed


def replay(trace, operations):
    for library in ["", str(RDMALLOC)]:
        status, output = run(FOLDER / "replay_trace", trace, LD_PRELOAD=library)
        expect(status == 0, f"replay under '{library}': {status}", output)
        expect(json.loads(output)["operations"] == operations, "operations are missing", output)


def case_counts():
    [(packed, trace)] = recordings("counts")
    # 1000 each of malloc, calloc, posix_memalign and new with their ends, and a realloc. What libc and
    # the dynamic linker add is a handful.
    expect(0 <= packed["allocations"] - 4000 < 50, "allocations", packed)
    expect(0 <= packed["frees"] - 4000 < 50, "frees", packed)
    others = packed["operations"] - packed["allocations"] - packed["frees"]
    expect(1000 <= others < 1050, "reallocs", packed)
    expect(packed["unknown_blocks"] == 0 and packed["slots"] < 60, "slots", packed)
    replay(trace, packed["operations"])


def case_threads():
    [(packed, trace)] = recordings("threads")
    expect(packed["threads"] == 3, "threads", packed)
    expect(0 <= packed["frees"] - 1000 < 50, "frees", packed)
    for _ in range(5):
        replay(trace, packed["operations"])


def case_fork():
    packed = recordings("fork")
    expect(len(packed) == 2, "a recording for each process", packed)
    child = [said for said, _ in packed if said["is_forked"]]
    expect(len(child) == 1, "one of a forked child", packed)
    expect(child[0]["unknown_blocks"] == 1, "the parent's block", packed)
    expect(0 <= child[0]["allocations"] - 500 < 20, "the child's blocks", packed)
    for said, trace in packed:
        replay(trace, said["operations"])


def case_arguments():
    for program, arguments, wanted in [
            ("replay_trace", [], "usage"), ("replay_trace", ["/nowhere/file"], "No such file"),
            ("replay_trace", [sys.argv[0]], "no trace"), ("pack_trace", [], "usage"),
            ("record_trace", [], "nothing to record"), ("record_trace", ["noworkload"], "--name"),
            ("record_trace", ["--name", "a/b", "--", "true"], "no path")]:
        status, output = run(FOLDER / program, *arguments)
        expect(status == 2 and wanted in output, f"{program} {arguments}: {status}", output)
    status, output = run(FOLDER / "pack_trace", sys.argv[0], "x.trace")
    expect(status == 1 and "no recording" in output, f"pack_trace of no recording: {status}", output)
    status, output = run(FOLDER / "record_trace", "--name", "nothing", "--", "false")
    expect(status == 1 and "exited with 1" in output, f"a command that fails: {status}", output)
    status, output = run(FOLDER / "record_trace", "--name", "own", "--", FOLDER / "trace_program",
                         "counts")
    expect(status == 0 and pathlib.Path("out/own.trace").exists(), f"record_trace: {status}", output)


def refused(data, wanted):
    pathlib.Path("broken.trace").write_bytes(data)
    for options in [["--check"], []]:
        status, output = run(FOLDER / "replay_trace", *options, "broken.trace")
        expect(status == 2 and wanted in output, f"'{wanted}' was wanted: {status}", output)


def case_broken_order():
    [(_, trace)] = recordings("threads")
    data = pathlib.Path(trace).read_bytes()
    threads, _ = struct.unpack_from("<II", data, 8)
    events = []
    for thread in range(threads):
        offset, count = struct.unpack_from("<QQ", data, 16 + 16 * thread)
        events.append(range(offset, offset + 16 * count, 16))
    # A thread that waits for a turn that never comes.
    waits = [at for thread in events for at in thread if data[at + 14] & 0x80]
    expect(len(waits) >= 1000, f"only {len(waits)} hand-overs")
    late = bytearray(data)
    struct.pack_into("<I", late, waits[0] + 4, 1 << 30)
    refused(late, "waits for ever")
    # A block that ends twice.
    frees = max(([at for at in thread if data[at + 15] == FREE] for thread in events), key=len)
    twice = bytearray(data)
    twice[frees[1]:frees[1] + 16] = twice[frees[0]:frees[0] + 16]
    refused(twice, "broken order")
    slot = bytearray(data)
    struct.pack_into("<I", slot, frees[0], 1 << 30)
    refused(slot, "no such slot")


def case_cut_off():
    [(_, trace)] = recordings("counts")
    data = pathlib.Path(trace).read_bytes()
    refused(data[:-16], "cut off")
    refused(data[:20], "ends in its head")
    refused(b"x" + data[1:], "no trace")


with tempfile.TemporaryDirectory() as work_folder:
    os.chdir(work_folder)
    globals()[f"case_{CASE}"]()
