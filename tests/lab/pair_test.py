#!/usr/bin/python3
"""A broadcast between two hosts: two guests, a wire between them (tools/lab pair), a rank on each, both
under rdmalloc that purges at every chance, over libfabric verbs and over UCX.

    pair_test.py LAB_BROADCAST LIBRDMALLOC_SO

Every byte is checked at both ranks, and the packets of both devices are counted: at least as many as
the data must take leave the guest that sends it. The roots take turns, so both send half.
Seen to fail: with both ranks on left (no packet leaves right), and with UCX over tcp (none leaves either).
"""
import os
import re
import subprocess
import sys
import tempfile
import shutil

HERE = os.path.dirname(os.path.abspath(__file__))
FRESH, BYTES, GROWING, GROWING_BYTES = 30, 258048, 60, 24576
PACKET_BYTES = 4096  # the largest payload that soft-RoCE puts into a packet at this MTU
TRANSPORTS = {
    "libfabric verbs": "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' "
                       "-x FI_UNIVERSE_SIZE=16",
    # GID 0, the link-local address: at GID 1, the IPv4 one, the timeout of the UD endpoint by which UCX
    # connects aborts a rank, under any malloc.
    "UCX rc": "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=rc,self "
              "-x UCX_NET_DEVICES=rxe0:1 -x UCX_IB_GID_INDEX=0",
}
SENT = "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"


def script(program, library):
    lines = ["export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
             f'sent() {{ echo "sent left $(cat {SENT}) right $("$LAB_REMOTE" right cat {SENT})"; }}',
             '"$LAB_REMOTE" right "echo from $(hostname) to \\$(hostname); exit 3"; echo exit $?']
    for number, words in enumerate(TRANSPORTS.values()):
        lines += [f"echo run {number}; sent",
                  f"python3 {HERE}/../support/with_stacks.py 120 mpirun --mca plm_rsh_agent "
                  f'"$LAB_REMOTE" -host left,right -n 2 --mca oob_tcp_if_include eth0 {words} '
                  f"-x LD_PRELOAD={library} -x RDMALLOC_DECAY_MS=0 "
                  f"{program} {FRESH} {BYTES} fresh {GROWING} {GROWING_BYTES} growing; "
                  "echo status $?; sent"]
    return "\n".join(lines)


def problems_of(name, text):
    ended = re.search(r"broadcasts (\d+) wrong_bytes (\d+)", text)
    counts = [tuple(map(int, found)) for found in re.findall(r"sent left (\d+) right (\d+)", text)]
    if "status 0" not in text or not ended or len(counts) != 2:
        return [f"{name}: did not end well"]
    wrong = []
    if ended.groups() != (str(FRESH + GROWING), "0"):
        wrong.append(ended.group())
    least = (FRESH * BYTES + GROWING * GROWING_BYTES) // 2 // PACKET_BYTES
    for side, before, after in zip(("left", "right"), *counts):
        print(f"pair_test: {name}: {side} sent {after - before} packets, at least {least} of them data")
        if after - before < least:
            wrong.append(f"{side} sent {after - before} packets, fewer than the data takes: {least}")
    return [f"{name}: {what}" for what in wrong]


def main(program, library):
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rdmalloc-pair.") as shared:
        program, library = (shutil.copy(path, shared) for path in (program, library))
        done = subprocess.run([f"{HERE}/../../tools/lab", "-q", "--limit", "400", "pair",
                               script(program, library)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
    print(done.stdout)
    parts = re.split(r"(?m)^run \d+\n", done.stdout)
    wrong = [] if "from left to right\nexit 3" in parts[0] else ["the remote command is not as ssh's"]
    if done.returncode != 0 or len(parts) != len(TRANSPORTS) + 1:
        wrong.append(f"the lab's status {done.returncode}, {len(parts) - 1} runs")
    for name, part in zip(TRANSPORTS, parts[1:]):
        wrong += problems_of(name, part)
    print("pair_test:", "; ".join(wrong) or "as it must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
