#!/usr/bin/python3
"""The deadlock and staleness matrices (docs/deadlock-matrix.md): stacks times allocators, one boot a Debian.

    matrix.py --build DIR [--full] [--only REGEX] [--json FILE] [--write-doc FILE]

Exit status 1 when a cell contradicts what must hold (verdicts.py says what that is), and when a guest ended before all of
its cells had run.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from stacks import ALLOCATORS, CELLS, cell_name, cell_of
from verdicts import deadlock_table, is_sampled, judge, shrinking_table, staleness_table, write_doc

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(os.path.dirname(HERE))
LIBRARIES = "/usr/lib/x86_64-linux-gnu"

def gather_libraries(build, shared):
    """All allocators in one directory that the guest sees: its own Debian may lack them."""
    libraries = os.path.join(shared, "libraries")
    os.mkdir(libraries)
    for name in {allocator.library for allocator in ALLOCATORS if allocator.library}:
        for place in (os.path.join(build, "lib"), LIBRARIES):
            if os.path.exists(os.path.join(place, name)):
                shutil.copy(os.path.join(place, name), libraries)
                break
        else:
            sys.exit(f"matrix: there is no {name} in {build}/lib or {LIBRARIES}; build the project, "
                     "and run tools/setup.sh bench")
    return libraries


def run_release(release, build, wanted, counts):
    """The results, and what is wrong with the run itself: nothing, or one sentence."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rdmalloc-matrix.") as shared:
        programs = os.path.join(shared, "programs")
        os.mkdir(programs)
        libraries = gather_libraries(build, shared)
        for program in ("lab_broadcast", "lab_registrations", "lab_heap_that_shrinks"):
            shutil.copy(os.path.join(build, "bin", program), programs)
        cells = [cell_of(stack, allocator, libraries, programs, counts)
                 for stack, allocator in CELLS if stack.release == release and wanted(stack, allocator)]
        if not cells:
            return [], []
        with open(f"{shared}/cells.json", "w", encoding="utf-8") as file:
            json.dump(cells, file)
        print(f"matrix: {len(cells)} cells on {release}", flush=True)
        whole = sum(cell["limit"] for cell in cells) + 300
        status = subprocess.run(
            [f"{PROJECT}/tools/lab", "-q", "--release", release, "--limit", str(min(whole, 86400)),
             "--share", shared, "run", "--", "python3", f"{HERE}/cells.py", f"{shared}/cells.json",
             f"{shared}/results.json"], stdin=subprocess.DEVNULL, check=False).returncode
        if not os.path.exists(f"{shared}/results.json"):
            sys.exit(f"matrix: the guest ({release}) ended with status {status} and no result")
        with open(f"{shared}/results.json", encoding="utf-8") as file:
            results = json.load(file)
    wrong = []
    if status != 0 or len(results) != len(cells):
        wrong.append(f"the guest ({release}) ended with status {status} after {len(results)} of {len(cells)} cells")
    return results, wrong


def with_earlier(file, results):
    """All of them in the order of the tables; what was run now takes the place of what was before."""
    with open(file, encoding="utf-8") as earlier:
        by_name = {result["name"]: result for result in json.load(earlier) + results}
    names = [cell_name(*cell) for cell in CELLS]
    return [by_name[name] for name in names if name in by_name]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--full", action="store_true", help="1,000 broadcasts a cell instead of 20 (--write-doc: "
                        "50), and cells without a judgement, the peers', or that prove what another does")
    parser.add_argument("--growing", type=int, metavar="N",
                        help="broadcasts of memory not registered before, instead of 100, of 200 (--write-doc) or of "
                             "2,000 (--full), which give other allocators time to purge")
    parser.add_argument("--only", default="", help="cells whose 'stack | allocator' this matches, "
                        "peers' too")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--add", metavar="FILE", help="also results that --json wrote, for the cells "
                        "that are not run now")
    parser.add_argument("--write-doc", metavar="FILE", help="fills in the tables of which a cell was run")
    options = parser.parse_args()
    fresh, growing, limit = (1000, 2000, 1800) if options.full else \
        (50, 200, 300) if options.write_doc else (20, 100, 300)
    counts = {"fresh": fresh, "recycled": fresh, "growing": options.growing or growing, "limit": limit, "shrinking": 80}
    # Whether a peer hangs is a matter of the moment and not judged: only where it is asked for.
    all_cells = options.full or options.only or options.write_doc
    # A hang's stack is the page's, and half of the time that the control takes.
    counts["stack_of_control"] = bool(all_cells)

    def is_wanted(stack, allocator):
        return (all_cells or is_sampled(stack, allocator)) and re.search(
            options.only, cell_name(stack, allocator))

    results, broken = [], []
    for release in ("host", "trixie"):
        here, wrong = run_release(release, os.path.abspath(options.build), is_wanted, counts)
        results += here
        broken += wrong
    if options.add:
        results = with_earlier(options.add, results)
    for result in results:
        judge(result)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    if options.write_doc:
        write_doc(options.write_doc, results)
    print(deadlock_table(results), staleness_table(results), shrinking_table(results), sep="\n\n")
    problems = [result for result in results if result["problem"]]
    for result in problems:
        print(f"matrix: {result['name']}: {result['problem']}")
        print("\n".join("    " + line for line in result["output"]))
    for sentence in broken:
        print(f"matrix: {sentence}")
    print(f"matrix: {len(results)} cells, {len(problems) + len(broken)} problems")
    return 1 if problems or broken or not results else 0


if __name__ == "__main__":
    sys.exit(main())
