#!/usr/bin/python3
"""What each entry point costs over a fixed sequence, and at the worst, counted by callgrind.

    callgrind.py SEQUENCE SCRATCH_FOLDER COMPILER [--update]

SEQUENCE is callgrind_sequence.cc over the prefixed library, or (".a") that library, built by
COMPILER, which then compiles the sequence too. Compared with callgrind.json: the calls
of each entry point exactly, the sum of their instructions within 5 %, the longest call at most 20 %
above the table: some calls look at the clock, and which of them finds that a tick has passed is
chance. docs/bench.md shows the table of g++ and must agree with it.

COMPILER is the table's row, "g++ 12.2". A compiler without a row: SKIP, which names those there
are. --update writes the row and, of g++, the table in docs/bench.md.
Seen to fail: with a slab refill that looks at each bit of its words, with a row of docs/bench.md
changed.
"""
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TABLE = os.path.join(HERE, "callgrind.json")
ROOT = os.path.dirname(os.path.dirname(HERE))
DOCUMENT = os.path.join(ROOT, "docs", "bench.md")
BEGIN, END = "<!-- callgrind.py: begin -->\n", "<!-- callgrind.py: end -->\n"
TOLERANCE, LONGEST_TOLERANCE = 0.05, 0.2
# It reads the environment, the cgroups and the processors: another machine, another count.
TOLERANCES = {"the first malloc of all": 1}


def compiled(library, folder, compiler):
    """The sequence over a library that another compiler than the build's has made."""
    sequence = os.path.join(folder, "callgrind_sequence")
    subprocess.run(
        [compiler.split()[0], "-std=c++20", "-O2", "-fno-builtin", "-I", os.path.join(ROOT, "include"),
         "-I", ROOT, os.path.join(HERE, "callgrind_sequence.cc"), library, "-pthread", "-ldl",
         "-Wl,--strip-debug",  # valgrind 3.19 ends at clang's DWARF 5
         "-o", sequence], check=True)
    return sequence


def run(sequence, folder):
    """Callgrind's report of SEQUENCE: a part for each call."""
    out = os.path.join(folder, "callgrind.out")
    if os.path.exists(out):
        os.remove(out)
    # No purge thread: valgrind runs one thread at a time, and which one is no part of the sequence.
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--combine-dumps=yes",
         "--dump-line=no", f"--callgrind-out-file={out}", sequence],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={"PATH": os.environ["PATH"], "RDMALLOC_PURGE": "manual",
             "RDMALLOC_DECAY_MS": "3600000"})
    if done.returncode != 0:
        sys.exit(f"callgrind: status {done.returncode}\n{done.stdout[-4000:]}")
    with open(out, encoding="utf-8") as file:
        return file.read()


def parts(report, program):
    """(name, instructions run in `program`'s file) of each dump."""
    names = {}  # number -> file; callgrind writes a name once and its number from then on
    for part in report.split("\npart: ")[1:]:
        trigger = re.search(r"^desc: Trigger: Client Request: (.*)$", part, flags=re.M)
        here = cost = 0
        is_call = False
        for line in part.splitlines():
            if line.startswith(("ob=", "cob=")):
                number, name = re.match(r"c?ob=\((\d+)\)(?: (.*))?", line).groups()
                if name:
                    names[number] = name
                if line.startswith("ob="):
                    here = names[number]
            elif line.startswith("calls="):
                is_call = True  # the next line is what the called function took: not its caller's
            elif re.match(r"[-+*\d]\S* \d+$", line):
                if here == program and not is_call:
                    cost += int(line.split()[1])
                is_call = False
        if trigger:
            yield trigger.group(1), cost


def measure(sequence, folder):
    found, own = {}, {}
    for name, cost in parts(run(sequence, folder), sequence):
        if name.startswith("nothing"):
            own[name.removeprefix("nothing").removeprefix(", ")] = cost
            continue
        cost -= own.get(name, own[""])
        row = found.setdefault(name, {"calls": 0, "instructions": 0, "longest": 0})
        row["calls"] += 1
        row["instructions"] += cost
        row["longest"] = max(row["longest"], cost)
    if not any(row["instructions"] for row in found.values()):
        sys.exit(f"callgrind: of {sequence} no instruction was counted")
    return found


def differences(golden, found):
    for name in sorted(set(golden) | set(found)):
        if name not in golden or name not in found:
            yield f"{name}: only in {'the golden table' if name in golden else 'the sequence'}"
            continue
        want, have = golden[name], found[name]
        if have["calls"] != want["calls"]:
            yield f"{name}: {have['calls']} calls instead of {want['calls']}"
        # A handful of instructions is the compiler's freedom, also where 5 % is none.
        tolerance = TOLERANCES.get(name, TOLERANCE)
        slack = tolerance * want["instructions"] + 4
        if abs(have["instructions"] - want["instructions"]) > slack:
            yield f"{name}: {have['instructions']} instructions instead of {want['instructions']}"
        if have["longest"] > want["longest"] * (1 + max(tolerance, LONGEST_TOLERANCE)) + 4:
            yield f"{name}: the longest call takes {have['longest']}, not {want['longest']}"


def document(rows):
    lines = ["| entry point | calls | instructions a call | the longest call |\n",
             "|---|---:|---:|---:|\n"]
    for name in sorted(rows):
        row = rows[name]
        lines.append(f"| {name} | {row['calls']:,} | {row['instructions'] / row['calls']:,.0f} | "
                     f"{row['longest']:,} |\n")
    return "".join(lines)


def shown(text):
    return text.split(BEGIN)[1].split(END)[0]


def update(table, compiler, found):
    table[compiler] = found
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write(re.sub(r"\{\s+((?:\"\w+\": \d+,?\s*)+)\}",
                          lambda row: "{" + " ".join(row.group(1).split()) + "}",
                          json.dumps(table, indent=2, sort_keys=True)) + "\n")
    if not compiler.startswith("g++"):
        return
    with open(DOCUMENT, encoding="utf-8") as file:
        text = file.read()
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        before, rest = text.split(BEGIN)
        file.write(before + BEGIN + document(found) + END + rest.split(END)[1])


def main():
    # Callgrind names files by their whole paths.
    sequence, folder = map(os.path.abspath, sys.argv[1:3])
    compiler = sys.argv[3]
    with open(TABLE, encoding="utf-8") as file:
        table = json.load(file)
    is_update = sys.argv[4:] == ["--update"]
    if not shutil.which("valgrind"):
        print("SKIP: no valgrind here; tools/setup.sh installs it")
        return 77
    if compiler not in table and not is_update:
        print(f"SKIP: no row for {compiler}; there are rows for {', '.join(table)}")
        return 77
    os.makedirs(folder, exist_ok=True)
    if sequence.endswith(".a"):
        sequence = compiled(sequence, folder, compiler)
    found = measure(sequence, folder)
    if is_update:
        update(table, compiler, found)
        return 0
    wrong = list(differences(table[compiler], found))
    with open(DOCUMENT, encoding="utf-8") as file:
        if compiler.startswith("g++") and shown(file.read()) != document(table[compiler]):
            wrong.append("docs/bench.md shows another table than callgrind.json")
    print("\n".join(wrong) or f"{compiler}: as in callgrind.json")
    if wrong:
        print(f"If that is meant: {' '.join(sys.argv)} --update, and say why in the commit.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
