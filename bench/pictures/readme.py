#!/usr/bin/env python3
"""The pictures of README.md: docs/pictures/bcast.svg and docs/pictures/threads.svg, from the JSON files beside them.

    bench/pictures/readme.py                      # draws them again
    bench/pictures/readme.py --measure threads    # measures one anew (or bcast, or both), and draws it: minutes

The JSON files hold what a bench left (docs/bench.md), without what is not drawn and what names the machine's folders.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

TREE = pathlib.Path(__file__).resolve().parents[2]
FOLDER = TREE / "docs" / "pictures"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bcast_report
import svg

ALLOCATORS = ["glibc", "mimalloc", "jemalloc", "tcmalloc", "rdmalloc"]
SHAPES = {"replace:16-1K:128": "Threads that replace blocks of their own",
          "hand-over:16-1K:1024": "One thread allocates, another frees"}
COMMANDS = {
    "bcast": ["bcast_compare", "--repetitions", "5", "--patterns", "fresh,reused", "--sizes", "64K,258048,1M,4M,16M,64M"],
    "threads": ["bench_threads", "--repetitions", "3", "--threads", "1,2,4,16,64,256", "--shapes", ",".join(SHAPES)],
}


def command_line(name):
    program, *arguments = COMMANDS[name]
    return [program, "--allocators", ",".join(ALLOCATORS), *arguments]


# ---------------------------------------------------------------- what is kept of a bench's JSON file

def kept(name, told):
    one = {"command": " ".join(command_line(name)), "host": told["host"], "results": []}
    one["allocators"] = [{"name": allocator["name"]} for allocator in told["allocators"]]
    if name == "bcast":
        one.update({key: told[key] for key in ("mpi", "settings")})
        one["transports"] = [{"name": transport["name"]} for transport in told["transports"]]
        one["peak_rss_mib"] = {}
        for row in told["results"]:
            if row["pattern"] in ("fresh", "reused"):
                one["results"].append({**{key: row[key] for key in ("transport", "pattern", "bytes", "allocator")},
                                       "bcast_us": {"repetitions": row["bcast_us"]["repetitions"]}})
        return one
    one["repetitions"] = told["repetitions"]
    for row in told["results"]:
        one["results"].append({"shape": row["group"], "threads": row["about"]["threads"], "allocator": row["allocator"],
                               "steady_cpu_ns": row["figures"]["steady_cpu_ns"]["minimum"]})
    return one


def written(told):
    """JSON with a line for each result: small to read, small in a diff."""
    head = {key: value for key, value in told.items() if key != "results"}
    rows = ",\n  ".join(json.dumps(row) for row in told["results"])
    return json.dumps(head, indent=1)[:-2] + f',\n "results": [\n  {rows}\n ]\n}}\n'


def machine(told):
    return f"{told['host']['processor']}, {told['host']['cores']} cores, {told['host']['date'][:10]}"


# ---------------------------------------------------------------- the pictures

def bcast_picture(told):
    report = bcast_report.Report(told)
    question = bcast_report.question_of_fresh(report, report.transports[0])
    question.panel.question = "MPI_Bcast of a fresh buffer, against a reused one"
    question.panel.axis = "time fresh / time reused, by size of the message"
    question.panel.note = (f"{told['mpi'].split(',')[0]}, {told['settings']['ranks']} ranks over shared memory, "
                           f"{told['settings']['repetitions']} repetitions; {machine(told)}")
    return svg.picture([question.panel], report.allocators, "Time of MPI_Bcast of a fresh buffer against a reused one, "
                       "by size of the message, under " + bcast_report.listed(report.allocators))


def threads_answer(series):
    """rdmalloc against the best other: where it is about equal (within a tenth) or better, and the worst place."""
    ratios = {}
    for threads, ours in sorted(series["rdmalloc"].items()):
        best = min((points[threads], name) for name, points in series.items()
                   if name != "rdmalloc" and threads in points)
        ratios[threads] = (ours / best[0], best[1])
    good = [threads for threads, (ratio, _) in ratios.items() if ratio <= 1.1]
    worst = max(ratios, key=lambda threads: ratios[threads][0])
    text = f"rdmalloc is within a tenth of the best other, or faster, at {bcast_report.listed(map(str, good))} " \
           f"thread{'s' if good != [1] else ''}" if good else "rdmalloc is at no count of threads within a tenth of the best other"
    ratio, rival = ratios[worst]
    return text + (f"; at worst it takes {ratio:.1f} times {rival}'s, at {worst}." if ratio > 1.1 else ".")


def threads_picture(told):
    panels = []
    for shape, words in SHAPES.items():
        series = {allocator["name"]: {row["threads"]: row["steady_cpu_ns"] for row in told["results"]
                                      if (row["shape"], row["allocator"]) == (shape, allocator["name"])}
                  for allocator in told["allocators"]}
        counts = sorted({threads for points in series.values() for threads in points})
        panels.append(svg.Lines(words, threads_answer(series),
                                "ns of processor time, malloc and free, 16 B to 1 KiB", series,
                                {count: str(count) for count in counts}, logarithmic=True, below="threads"))
    panels[-1].note = f"Minimum of {told['repetitions']} repetitions; {machine(told)}"
    return svg.picture(panels, [allocator["name"] for allocator in told["allocators"]],
                       "Processor time of malloc and free against the number of threads")


PICTURES = {"bcast": bcast_picture, "threads": threads_picture}


def measure(name):
    with tempfile.TemporaryDirectory() as folder:
        program, *arguments = command_line(name)
        subprocess.run([str(TREE / "build" / "release" / "bin" / program), *arguments, "--output", folder], check=True,
                       stdout=subprocess.DEVNULL)
        take(name, pathlib.Path(folder, f"{name}.json"))


def take(name, path):
    FOLDER.mkdir(exist_ok=True)
    told = json.loads(path.read_text())
    missing = set(ALLOCATORS) - {allocator["name"] for allocator in told["allocators"]}
    if missing or told["failures"]:
        sys.exit(f"{path}: {told['failures'] or f'without {missing}'}: not taken")
    (FOLDER / f"{name}.json").write_text(written(kept(name, told)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="+", choices=list(PICTURES), default=[])
    for name in parser.parse_args().measure:
        measure(name)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(json.loads((FOLDER / f"{name}.json").read_text())))
        print(FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
