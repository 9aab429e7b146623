#!/usr/bin/python3
"""Purges at 1 kHz through initialisations and finalisations of MPI (mpi_pauses.cc), in turn without
a fabric, over UCX and over libfabric: no hang, no crash, purges before, between and after, and holds.

    mpi_pauses.py PROGRAM LIBRDMALLOC_SO COUNT

Seen to fail with the holds left out of interpose/dlopen.cc and interpose/patching.cc (none counted).
"""
import os
import re
import subprocess
import sys

KINDS = [{"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"},
         {"OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any",
          "UCX_TLS": "tcp,self"},
         {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi",
          "OMPI_MCA_mtl_ofi_provider_include": "tcp;ofi_rxm"}]


def main(program, library, count):
    holds = purges = 0
    for number in range(int(count)):
        # Isolated: a singleton that starts no daemon, of which nothing here is about.
        environment = {**os.environ, **KINDS[number % len(KINDS)], "LD_PRELOAD": library,
                       "RDMALLOC_DECAY_MS": "0", "OMPI_MCA_ess_singleton_isolated": "1"}
        done = subprocess.run([program], env=environment, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        found = re.search(r"purges (\d+) (\d+) holds (\d+)", done.stdout)
        if done.returncode != 0 or not found or int(found[3]) == 0:
            print(f"run {number}, {KINDS[number % len(KINDS)]}: status {done.returncode}\n"
                  f"{done.stdout}")
            return 1
        purges += int(found[2]) - int(found[1])
        holds += int(found[3])
    print(f"{count} initialisations and finalisations, {purges} purges beside them, {holds} holds")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
