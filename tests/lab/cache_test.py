#!/usr/bin/python3
"""The verbs, libfabric and ucx registrars and our cache on a real device, in one boot.

    cache_test.py RELEASE STEPS PROGRAM...      programs/verbs_cache.cc, fabric_cache.cc, ucx_cache.cc;
                                                examples/regcache_verbs.c and the quick start's

The naive cache is the control: it must be caught, and is how the oracle was seen to fail.
"""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = int(sys.argv[2])
RUN_LIMIT_S, LIMIT_S = 120 + STEPS, max(1500, 10 * STEPS)
ORACLE = (f"oracle {STEPS}", r"oracle \d+ steps wrong_bytes 0\n")
# verbs_cache has the fewest wrong bytes: 57,344 after 60 steps (three times), 753,662 after 100 (twice).
NAIVE = (f"naive {max(STEPS, 100)}", r"naive \d+ steps wrong_bytes [1-9]")
FORKS = (f"forks {STEPS // 3}", r"forks \d+ steps wrong_bytes 0\n")
LIMITS = ("limits", r"limits 0 failures")
NO_CACHE = "FI_MR_CACHE_MAX_COUNT=0"
RXM = "FI_UNIVERSE_SIZE=16"  # rxe's completion queues are too short for its default
# Without the newer protocols, which let the peer's software answer a get and never ask the device.
UCX = ("UCX_TLS=rc UCX_NET_DEVICES=rxe0:1 UCX_IB_GID_INDEX=0 UCX_PROTO_ENABLE=n "
       "UCX_WARN_UNUSED_ENV_VARS=n")
# UCP's cache over all devices, and the one of the verbs transport below it, which UCX 1.16 gave up.
UCP_CACHE_OFF, IB_CACHE_OFF = "UCX_RCACHE_ENABLE=n", "UCX_IB_REG_METHODS=direct"


def runs_of_ucx(release):
    environment = f"{UCX} {UCP_CACHE_OFF} {IB_CACHE_OFF}"
    refused = ("refused", r"Set UCX_RCACHE_ENABLE=n[^$]*refused 0 failures")
    with_caches = [UCX, f"{UCX} {IB_CACHE_OFF}"]
    if release == "host":
        with_caches.append(f"{UCX} {UCP_CACHE_OFF}")
    return [(environment, *LIMITS), (environment, *ORACLE),
            (f"{environment} RDMALLOC_DECAY_MS=0", *ORACLE), (environment, *NAIVE)] + [
                (cached, *refused) for cached in with_caches]


def runs_of(name, release):
    """(environment, arguments, what the output must match) for each run of a program."""
    if name.endswith("ucx_cache"):
        return runs_of_ucx(release)
    if name.endswith("regcache_verbs"):  # the example: the buffers' chunk, and the target
        return [("", "", r"100 buffers written, 2 registrations\n")]
    if name.endswith("quick_start_verbs"):  # docs/quick-start/verbs.md
        return [("", "", r"100 buffers, 1 registrations\n")]
    if name.endswith("verbs_cache"):
        return [("", *LIMITS), ("", *ORACLE), ("RDMALLOC_DECAY_MS=0", *ORACLE), ("", *NAIVE),
                ("", *FORKS), ("", "quiesce", r"quiesce 0 failures"),
                ("RDMALLOC_LOG=quiet", "faults", r"faults 0 failures")]
    runs = []
    for provider, settings in (("'verbs;ofi_rxm'", RXM), ("verbs", "")):
        def with_provider(environment, what, provider=provider, settings=settings):
            return (f"{settings} {environment}", f"{provider} {what[0]}", what[1])
        runs += [with_provider(NO_CACHE, LIMITS), with_provider(NO_CACHE, ORACLE),
                 with_provider(f"{NO_CACHE} RDMALLOC_DECAY_MS=0", ORACLE),
                 with_provider(NO_CACHE, NAIVE),
                 with_provider("", ("refused", r"Set FI_MR_CACHE_MAX_COUNT=0[^$]*refused 0 failures"))]
    return runs


def main(release, _steps, *programs):
    runs = [(program, *run) for program in programs for run in runs_of(program, release)]
    lines = []
    for number, (program, environment, arguments, _) in enumerate(runs):
        lines.append(f"echo run {number}: {environment} {arguments}; env {environment} python3 "
                     f"{HERE}/../support/with_stacks.py {RUN_LIMIT_S} {os.path.abspath(program)} {arguments}; "
                     "echo status $?")
    output = []
    with subprocess.Popen([f"{HERE}/../../tools/lab", "-q", "--release", release, "--limit", str(LIMIT_S),
                           "run", "\n".join(lines)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as lab:
        for line in lab.stdout:  # shown as it comes
            print(line, end="", flush=True)
            output.append(line)
    parts = re.split(r"(?m)^run \d+:.*$", "".join(output))[1:]
    wrong = [f"{environment} {arguments}" for (_, environment, arguments, pattern), part
             in zip(runs, parts) if not (re.search(pattern, part) and "status 0" in part)]
    if lab.returncode != 0 or len(parts) != len(runs) or wrong:
        print(f"cache_test: the lab's status {lab.returncode}, {len(parts)} of {len(runs)} runs, "
              f"not as they must be: {wrong}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
