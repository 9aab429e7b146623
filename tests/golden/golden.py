#!/usr/bin/python3
"""The fast paths, instruction by instruction, against the golden table fast_paths.json.

    golden.py STEPS LIBRARY COMPILER [--update]

STEPS (steps.cc) steps through LIBRARY; objdump names what ran. Exact for each operation on a warm
thread: instructions, of them loads, stores and branches (jumps, taken or not, calls and returns;
push, pop and ret count as the stores and loads that they are). For a fixed sequence of 6,000
operations: each entry point's sum within 2 %, its longest way at most the table's. And on the first
of these ways no conditional jump, with the compare before it, crosses or ends at a multiple of 32
bytes (cmake/options.cmake).

COMPILER is the table's row, "g++ 12.2". A compiler without a row: SKIP, which names those there
are. --update writes the row; the diff of the table is what a review looks at.
Seen to fail: with one more load, compare and jump in release() (alloc/api/allocate.h); without the
option that keeps jumps within 32 bytes.
"""
import json
import os
import re
import subprocess
import sys

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fast_paths.json")
SUM_TOLERANCE = 0.02


def steps(program, library, mode):
    done = subprocess.run(
        [program, mode], stdout=subprocess.PIPE, text=True, check=True,
        env={**os.environ, "LD_PRELOAD": library, "RDMALLOC_PURGE": "manual"})
    return dict(line.split(":", 1) for line in done.stdout.splitlines())


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def disassembly(library):
    """File offset of each instruction of the library: its text."""
    segments = [tuple(int(number, 16) for number in numbers) for numbers in re.findall(
        r"(?m)^  LOAD +(\w+) (\w+) \w+ (\w+) \w+ R E", output_of("readelf", "-lW", library))]
    found = re.findall(r"(?m)^\s+([0-9a-f]+):\s+(.*?)\s*(?:#.*|<.*)?$", output_of(
        "objdump", "-d", "--no-show-raw-insn", "-M", "intel", library))
    return {int(address, 16) - start + offset: text for address, text in found
            for offset, start, length in segments if 0 <= int(address, 16) - start < length}


def counts_of(instructions):
    counts = {"instructions": len(instructions), "loads": 0, "stores": 0, "branches": 0}
    for text in instructions:
        words = re.sub(r"^(?:(?:rep|repz|lock|bnd|notrack|addr32|cs)\s+)+", "", text).split(None, 1)
        name, operands = words[0], words[1] if len(words) > 1 else ""
        if name[0] == "j" or name in ("call", "ret"):
            counts["branches"] += 1
        if name in ("call", "push"):
            counts["stores"] += 1
        elif name in ("ret", "pop"):
            counts["loads"] += 1
        if "[" in operands and name not in ("lea", "nop"):
            # Intel's order: the first operand is written, but by cmp and test.
            is_first = "[" in operands.split(",")[0]
            writes = is_first and name not in ("cmp", "test", "call", "jmp", "push")
            reads = not (writes and name.startswith("mov"))
            counts["stores"] += writes
            counts["loads"] += reads
    return counts


def split_jumps(addresses, texts, ends):
    """Conditional jumps of a way, with the compare that goes with each, which cross or end at 32 bytes."""
    for before, address in zip([None, *addresses], addresses):
        if not re.match(r"j(?!mp)", texts[address]):
            continue
        compares = before is not None and ends[before] == address and re.match(
            r"(cmp|test|add|sub|and|inc|dec)\b", texts[before])
        start = before if compares else address
        if start // 32 != ends[address] // 32:
            yield address


def measure(program, library):
    texts = disassembly(library)
    ends = dict(zip(texts, list(texts)[1:]))
    paths, split = {}, set()
    for name, addresses in steps(program, library, "paths").items():
        way = [int(each, 16) for each in addresses.split()]
        paths[name] = counts_of([texts[address] for address in way])
        split |= {f"{name}: {texts[at]} at {at:#x}" for at in split_jumps(way, texts, ends)}
    if split:
        raise SystemExit("jumps across 32 bytes, which the assembler was told to avoid:\n" +
                         "\n".join(sorted(split)))
    sequence = {}
    for name, told in steps(program, library, "longest").items():
        calls, total, longest = map(int, re.findall(r"\d+", told))
        sequence[name] = {"calls": calls, "instructions": total, "longest": longest}
    return {"paths": paths, "sequence": sequence}


def differences(golden, found):
    for name in sorted(set(golden["paths"]) | set(found["paths"])):
        want, have = golden["paths"].get(name), found["paths"].get(name)
        if want != have:
            yield f"{name}: {have}, the golden table says {want}"
    for name, want in golden["sequence"].items():
        have = found["sequence"].get(name, {"calls": 0, "instructions": 0, "longest": 0})
        if have["calls"] != want["calls"]:
            yield f"sequence, {name}: {have['calls']} calls instead of {want['calls']}"
        if abs(have["instructions"] - want["instructions"]) > SUM_TOLERANCE * want["instructions"]:
            yield (f"sequence, {name}: {have['instructions']} instructions, the golden table says "
                   f"{want['instructions']}")
        if have["longest"] > want["longest"] * (1 + SUM_TOLERANCE):
            yield (f"sequence, {name}: the longest way takes {have['longest']} instructions, the "
                   f"golden table says at most {want['longest']}")


def main():
    program, library, compiler = sys.argv[1:4]
    with open(TABLE, encoding="utf-8") as file:
        table = json.load(file)
    update = sys.argv[4:] == ["--update"]
    if compiler not in table and not update:
        print(f"SKIP: no golden row for {compiler}; there are rows for {', '.join(table)}")
        return 77
    found = measure(program, library)
    if update:
        table[compiler] = found
        with open(TABLE, "w", encoding="utf-8") as file:
            file.write(re.sub(r"\{\s+((?:\"\w+\": \d+,?\s*)+)\}",
                              lambda row: "{" + " ".join(row.group(1).split()) + "}",
                              json.dumps(table, indent=2, sort_keys=True)) + "\n")
        return 0
    wrong = list(differences(table[compiler], found))
    print("\n".join(wrong) or f"{compiler}: as in the golden table")
    if wrong:
        print(f"If that is meant: {' '.join(sys.argv)} --update, and say why in the commit.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
