#!/usr/bin/python3
"""Registrations that whole applications make with the device under each allocator: counted, in one boot.

    application_registrations.py BUILD [--imb IMB-MPI1] [--only REGEX] [--json FILE]

The applications of bench_applications that are MPI's, shorter (the guest is emulated), two ranks over UCX (rc) and over
libfabric (mtl ofi, verbs;ofi_rxm). The kernel counts each ibv_reg_mr of both ranks (cells.py), the libraries' own pools
with them: the row `start` is a program that only begins and ends, and what the tables show is what is beyond it. What is
not installed is left out by name. Nothing is asserted: lab.bcast_registrations holds the counts of a pattern of its own.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from bcast_registrations import ALLOCATORS, HERE, TRANSPORTS, find_library
from stacks import MPI_SETTINGS

TREE = pathlib.Path(HERE).parents[1]
SHOWN = ("glibc", "mimalloc", "jemalloc", "tcmalloc", "rdmalloc")
PYTHON = "/usr/bin/python3"
LIMIT_S = 300


def hpcc_input(size):
    """bench_applications' own, of another size."""
    text = (TREE / "bench/applications/applications.py").read_text(encoding="utf-8")
    made = re.search(r'write_text\(f"""(HPLinpack.*?)"""\)', text, re.S).group(1)
    return re.sub(r"\{run\.times\(.*?\)\}", str(size), made)


def applications(options, shared):
    """(name, words); those that are here."""
    (pathlib.Path(shared) / "hpccinf.txt").write_text(hpcc_input(300), encoding="utf-8")
    yield "start", [PYTHON, "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"]
    yield "mpi4py numpy", [PYTHON, str(TREE / "bench/applications/sources/mpi_arrays.py"), "12"]
    for name, program, words in (
            ("imb", options.imb, ["Bcast", "Allreduce", "Exchange", "-npmin", "2", "-iter", "10", "-msglog", "12:20"]),
            ("mpi threads", f"{options.build}/bin/application_mpi_threads", ["4", "6"]),
            ("lammps", shutil.which("lmp"), ["-in", str(TREE / "bench/applications/sources/melt.lammps"), "-var", "cells", "10",
                                             "-var", "steps", "30", "-var", "every", "10", "-log", "none"]),
            ("hpcc", shutil.which("hpcc"), [])):
        if program and os.path.exists(program):
            yield name, [program, *words]
        else:
            print(f"application_registrations: left out {name}: bench_applications --list says how to get it")


def cells_of(options, shared):
    for application, command in applications(options, shared):
        for transport, (words, settings) in TRANSPORTS.items():
            for name in SHOWN:
                library, own = ALLOCATORS[name]
                path = library and find_library(options.build, library)
                if library and not path:
                    continue
                exported = {**settings, **own}
                if path:
                    exported["LD_PRELOAD"] = shutil.copy(path, shared)
                yield {"name": f"{transport}|{application}|{name}", "limit": LIMIT_S, "lines": 12,
                       "environment": {**MPI_SETTINGS, "OMPI_MCA_plm": "isolated"},
                       "command": ["mpirun.openmpi", "-n", "2", "-wdir", shared, *words,
                                   *(word for item in exported.items() for word in ("-x", "=".join(item))), *command]}


def run(options):
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rdmalloc-registrations.") as shared:
        cells = [cell for cell in cells_of(options, shared) if re.search(options.only, cell["name"])]
        pathlib.Path(shared, "cells.json").write_text(json.dumps(cells), encoding="utf-8")
        status = subprocess.run(
            [f"{HERE}/../../tools/lab", "-q", "--limit", str(min(86400, 60 + LIMIT_S * len(cells))), "--share", shared,
             "run", "--", "python3", f"{HERE}/cells.py", f"{shared}/cells.json", f"{shared}/results.json"],
            stdin=subprocess.DEVNULL, check=False).returncode
        file = pathlib.Path(shared, "results.json")
        results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    if status != 0 or len(results) != len(cells):
        print(f"application_registrations: the guest ended with status {status} after {len(results)} of {len(cells)} cells")
    return results, status == 0 and len(results) == len(cells)


def table_of(results):
    counts = {tuple(result["name"].split("|")): result["registrations"] for result in results if result["outcome"] == "done"}
    rows = dict.fromkeys((application, transport) for transport, application, _ in counts)
    lines = ["| | " + " | ".join(SHOWN) + " | to the best peer |", "|---|" + "---:|" * (len(SHOWN) + 1)]
    for application, transport in rows:
        beyond = {}
        for name in SHOWN:
            start, here = (counts.get((transport, row, name)) for row in ("start", application))
            if here is not None and start is not None:
                beyond[name] = here if application == "start" else here - start
        peers = [count for name, count in beyond.items() if name != "rdmalloc"]
        ratio = f"{beyond['rdmalloc'] / min(peers):.2f}" if "rdmalloc" in beyond and peers and min(peers) > 0 else ""
        lines.append(f"| {application}, {transport} | " + " | ".join(str(beyond.get(name, "")) for name in SHOWN) + f" | {ratio} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--imb", default=shutil.which("IMB-MPI1"), help="where Intel's benchmarks were built")
    parser.add_argument("--only", default="", help="cells 'transport|application|allocator' that it matches")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    results, is_whole = run(options)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1), encoding="utf-8")
    for result in results:
        if result["outcome"] != "done":
            print(f"== {result['name']}: {result['outcome']}", *result["output"], sep="\n    ")
    print(table_of(results))
    return 0 if is_whole and results and all(result["outcome"] == "done" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
