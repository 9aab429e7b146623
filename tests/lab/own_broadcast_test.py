#!/usr/bin/python3
"""Registrations of a broadcast on our own interface, and of programs under the verbs shim: counted,
in one boot.

    own_broadcast_test.py BUILD [--full]

mixed goes to 4 MiB but for one run, 64 MiB are broadcast in one; --full has 32 and 64 MiB in all.
The counts of `--keys each` are the control: they show that the counting counts. Seen to fail with
the shim left out of LD_PRELOAD (the counts of `each`; perftest's words), with ib_write_bw where
ib_send_bw is, and with buffers leaving dirty spans (kFreeDirty in page_heap.cc's left_by): 4, 4 and 6
registrations in `phases`.
"""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
COUNT = 8  # broadcasts; two processes register for each
BUILD = os.path.abspath(sys.argv[1])
FULL = sys.argv[2:] == ["--full"]
COUNTING = f"{BUILD}/lib/liblab_count_registrations.so"
RDMALLOC = f"{BUILD}/lib/librdmalloc.so"
SHIM = f"{BUILD}/lib/librdmalloc-verbs-shim.so"

ZERO = r" registrations 0 wrong_bytes 0\n"
EACH = rf" registrations {2 * COUNT} wrong_bytes 0\n"
SOME = r" registrations [1-9]\d* wrong_bytes 0\n"
# ofi_rxm registers what is sent for remote reading, which the shim passes on (I13).
SENDERS = rf" registrations {COUNT} wrong_bytes 0\n"


def broadcast(fabric, keys, pattern, wanted, more=f"--count {COUNT}", preload=(COUNTING,)):
    # Emulated broadcasts take as long as a decay time, and a purge drops registrations: what is
    # counted must not depend on how busy the machine is.
    return (f"RDMALLOC_DECAY_MS=600000 LD_PRELOAD={':'.join(preload)}",
            f"{BUILD}/bin/rdma_bcast --fabric {fabric} --keys {keys} --pattern {pattern} {more}",
            wanted)


def mixed(fabric, keys, wanted, preload=(COUNTING,), mib=4):
    more = f"--count {COUNT} --bytes {(32 if FULL else mib) << 20}"
    return broadcast(fabric, keys, "mixed", wanted, more, preload)


# Waits for a server, by its port in hexadecimal.
LISTENS = 'until grep -q ":%04X [0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6; do sleep 0.2; done'


def perftest(program, preload, wanted):
    """perftest's server and client; `wanted` is what both say when they end. It asks for relaxed
    ordering unless told not to, which the shim passes on as every flag that it doesn't know. -F:
    without it perftest ends with status 1 when the processor's clock, sampled against time, gives
    no straight line, and an emulated clock may not; its figures, which that spoils, are not read."""
    one = f"{program} -d rxe0 -x 1 -n 20 -s 65536 -F --disable_pcie_relaxed"
    return (f"RDMALLOC_STATS=1 RDMALLOC_LAB_COUNT=1 LD_PRELOAD={':'.join(preload)}",
            f"sh -c '{one} > server.txt 2>&1 & {LISTENS % 18515}; "
            f"{one} localhost 2>&1; client=$?; wait $!; echo server $?; cat server.txt; exit $client'",
            rf"{wanted}[^\x00]*server 0[^\x00]*{wanted}")


UNDER_SHIM = (SHIM, COUNTING, RDMALLOC)
FEW = f"--count {COUNT}"


def large(mib, count):
    return f"--bytes {(64 if FULL else mib) << 20} --count {2 if FULL else count}"


# 64 MiB reach beyond the addresses up to which huge pages depend on how full they are (kHugeZoneSlices).
RUNS = [
    broadcast("verbs", "rdmalloc", "fresh", ZERO),
    broadcast("verbs", "rdmalloc", "fresh", ZERO, large(40, 1)),
    broadcast("verbs", "rdmalloc", "phases", ZERO),
    broadcast("verbs", "rdmalloc", "phases", ZERO, large(64, 1)),
    mixed("verbs", "rdmalloc", ZERO, mib=32),
    mixed("verbs", "each", EACH),
    broadcast("verbs", "each", "fresh", ZERO, FEW, UNDER_SHIM),
    mixed("verbs", "each", ZERO, UNDER_SHIM),
    broadcast("libfabric", "rdmalloc", "fresh", ZERO),
    broadcast("libfabric", "rdmalloc", "phases", ZERO),
    mixed("libfabric", "rdmalloc", ZERO),
    mixed("libfabric", "each", EACH),
    mixed("libfabric", "fabric", SOME + r"|" + ZERO),
    mixed("libfabric", "each", SENDERS, UNDER_SHIM),
    (f"LD_PRELOAD={':'.join(UNDER_SHIM)}", f"{BUILD}/bin/lab_shim_check", r"shim 0 failures"),
    # A program of others: one registration, from the cache, and the protection domain goes clean.
    (f"RDMALLOC_STATS=1 LD_PRELOAD={SHIM}:{RDMALLOC}",
     f"sh -c 'ibv_rc_pingpong -g 1 -n 20 > /dev/null 2>&1 & {LISTENS % 18515}; "
     "ibv_rc_pingpong -g 1 -n 20 localhost 2>&1 && wait $!'",
     r"20 iters[^\x00]*verbs shim: 1 registrations served by 1 real ones, 0 passed on"),
    # perftest: what it sends and receives from is served, what a peer writes to is not (I13).
    perftest("ib_send_bw", (COUNTING, RDMALLOC), r"1 registered, 1 deregistered"),
    perftest("ib_send_bw", UNDER_SHIM, r"shim: 1 registrations served by 1 real ones, 0 passed on"),
    perftest("ib_write_bw", (COUNTING, RDMALLOC), r"1 registered, 1 deregistered"),
    perftest("ib_write_bw", UNDER_SHIM, r"shim: 0 registrations served by 0 real ones, 1 passed on"),
    (f"LD_PRELOAD={SHIM}", "true", r"caches nothing: malloc is not rdmalloc's"),
]


def main():
    lines = []
    for number, (environment, command, _) in enumerate(RUNS):
        lines.append(f"echo run {number}: {command}; python3 "
                     f"{HERE}/../support/with_stacks.py 200 env {environment} {command}; echo status $?")
    output = []
    with subprocess.Popen([f"{HERE}/../../tools/lab", "-q", "--limit", "1100", "run",
                           "\n".join(lines)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as lab:
        for line in lab.stdout:  # shown as it comes
            print(line, end="", flush=True)
            output.append(line)
    parts = re.split(r"(?m)^run \d+:.*$", "".join(output))[1:]
    wrong = [command for (_, command, wanted), part in zip(RUNS, parts)
             if not (re.search(wanted, part) and "status 0" in part)]
    if lab.returncode != 0 or len(parts) != len(RUNS) or wrong:
        print(f"own_broadcast_test: the lab's status {lab.returncode}, {len(parts)} of {len(RUNS)} "
              "runs, not as they must be:", *wrong, sep="\n  ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
