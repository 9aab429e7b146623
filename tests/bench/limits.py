"""Tables of what is counted, and of what it may be at most.

A line of such a table: row, figure, the limit that is held, and what is wanted in the end. Where a count falls,
the limit is to follow it.
"""
import pathlib
import sys

SLACK = 1.5  # what is counted lies this far below its limit: a lower one would hold as well
RUNS = 5


def read(name):
    """Of limits/: {(row, figure): (limit, wanted)}"""
    table = {}
    for line in (pathlib.Path(__file__).resolve().parent / "limits" / name).read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            row, figure, limit, wanted = line.split()
            table[row, figure] = float(limit), float(wanted)
    return table


def to_glibc(found, figure):
    """Of {(row, allocator): {figure: value}} rdmalloc's ratio: {(row, "to_glibc"): ratio}"""
    return {(row, "to_glibc"): figures[figure] / found[row, "glibc"][figure]
            for (row, allocator), figures in found.items() if allocator == "rdmalloc" and figure in figures}


def hold(table, count):
    """Ends the test unless everything is counted, and is no more than its limit.

    `count(rows)` is {(row, figure): value}, with these rows' at least. How the scheduler mixes threads, and what
    runs beside them, decides on some counts: over its limit is what is so in each of five runs.
    """
    counted = count({row for row, _ in table})
    over = {key: [counted[key]] for key, (limit, _) in table.items() if counted.get(key, 0) > limit}
    for _ in range(RUNS - 1):
        rows = {row for row, figure in over if counted[row, figure] > table[row, figure][0]}
        if not rows:
            break
        again = count(rows)
        for key, values in over.items():
            if key[0] in rows:
                values.append(again[key])
                counted[key] = min(values)
    for key, values in over.items():
        print("{} {}: {}".format(*key, ", ".join(f"{value:.4g}" for value in values)))
    wrong = []
    print(f"{'row':36}{'figure':12}{'counted':>12}{'limit':>12}{'wanted':>12}")
    for (row, figure), (limit, wanted) in table.items():
        value = counted.get((row, figure))
        if value is None or value > limit:
            wrong.append(f"{row} {figure}")
        note = "not counted" if value is None else "over its limit" if value > limit else \
            "the limit could be lower" if value * SLACK < limit else ""
        shown = "-" if value is None else f"{value:.4g}"
        print(f"{row:36}{figure:12}{shown:>12}{limit:>12}{wanted:>12}  {note}")
    if wrong:
        sys.exit(f"FAILED: {', '.join(wrong)}")
