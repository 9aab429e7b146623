#!/usr/bin/env python3
"""The tables and the picture of bcast_compare, from the JSON file that it leaves (docs/bench.md).

    bench/pictures/bcast_report.py out/bcast.json [--picture out/bcast.svg] [--all]

One part a question: a table, and a sentence of what it shows. A comparison whose spread over the repetitions is not
smaller than its difference shows none, and its row says so. --all adds MPI_Bcast alone, and what the kernel did for every row.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys

if __package__ in (None, ""):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import svg

OURS = "rdmalloc"
PATTERNS = ["fresh", "reused", "growing", "mixed", "phases"]


def size_text(size):
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        # 258048 B is what MPI users write for it, not 252 KiB.
        if size and size % (1 << shift) == 0 and (shift > 10 or size & (size - 1) == 0):
            return f"{size >> shift} {unit}"
    return f"{size} B"


def time_text(us):
    for limit, scale, unit in ((999.5, 1, "us"), (999.5e3, 1e3, "ms"), (math.inf, 1e6, "s")):
        if us < limit:
            return f"{us / scale:#.3g}".rstrip(".") + f" {unit}"
    raise AssertionError


def listed(names):
    names = list(names)
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


# ---------------------------------------------------------------- differences and their spread

class Comparison:
    """`mine` against `other`, repetition by repetition: each pair was measured within seconds, so a drift cancels."""

    def __init__(self, mine, other):
        ratios = [a / b for a, b in zip(mine, other) if a and b]
        self.count = len(ratios)
        self.ratio = statistics.median(ratios) if ratios else None
        self.spread = (max(ratios) - min(ratios)) / 2 if ratios else None
        # Of the slower to the faster ratios spread more than the other way round: which of the two is divided by
        # which must not decide what is shown.
        self.downward = [1 / ratio for ratio in ratios] if ratios and self.ratio > 1 else ratios

    def shows(self):
        """A difference larger than its spread, over two repetitions at least."""
        return self.count > 1 and \
            (max(self.downward) - min(self.downward)) / 2 < 1 - statistics.median(self.downward)


class Report:
    def __init__(self, report):
        self.report = report
        self.allocators = [allocator["name"] for allocator in report["allocators"]]
        self.transports = [transport["name"] for transport in report["transports"]]
        self.rows = {(row["transport"], row["pattern"], row["bytes"], row["allocator"]): row
                     for row in report["results"]}

    def places(self, transport, patterns):
        """(pattern, bytes) that any allocator has, in the order of the patterns."""
        there = {key[1:3] for key in self.rows if key[0] == transport and key[1] in patterns}
        return sorted(there, key=lambda place: (PATTERNS.index(place[0]), place[1]))

    def values(self, transport, place, allocator, figure):
        """One a repetition, None where it failed; [] without such a row."""
        return self.rows.get((transport, *place, allocator), {}).get(figure, {}).get("repetitions", [])

    def median(self, transport, place, allocator, figure):
        values = [value for value in self.values(transport, place, allocator, figure) if value]
        return statistics.median(values) if values else None

    def fresh_over_reused(self, transport, size, allocator, figure="bcast_us"):
        return Comparison(self.values(transport, ("fresh", size), allocator, figure),
                          self.values(transport, ("reused", size), allocator, figure))

    def to_glibc(self, transport, place, allocator, figure="cycle_us"):
        return Comparison(self.values(transport, place, allocator, figure),
                          self.values(transport, place, "glibc", figure))

    def rival(self, transport, place, figure):
        """The fastest besides ours."""
        medians = {name: self.median(transport, place, name, figure)
                   for name in self.allocators if not name.startswith(OURS)}
        there = {name: value for name, value in medians.items() if value}
        return min(there, key=there.get) if there else None


def verdict(report, transport, place, figure):
    """(what the row says, -1 faster, 1 slower, 0 no difference, None nothing to compare)."""
    rival = report.rival(transport, place, figure)
    if rival is None or not report.median(transport, place, OURS, figure):
        return "", None
    compared = Comparison(report.values(transport, place, OURS, figure),
                          report.values(transport, place, rival, figure))
    if not compared.count:
        return "", None
    if compared.count == 1:
        return f"{compared.ratio:.2f} of {rival}; measured once: no spread", None
    if not compared.shows():
        return (f"no difference: {100 * (compared.ratio - 1):+.0f} % to {rival}, "
                f"spread {100 * compared.spread:.0f} %"), 0
    return f"{compared.ratio:.2f} of {rival}", -1 if compared.ratio < 1 else 1


# ---------------------------------------------------------------- the questions

class Question:
    def __init__(self, title, answer, cells, head, rows, panel=None):
        self.title, self.answer, self.cells, self.head, self.rows, self.panel = title, answer, cells, head, rows, panel

    def text(self):
        return f"\n{self.title}\n  {self.answer}\n  ({self.cells})\n\n" + table([self.head, *self.rows])


def table(rows):
    """The first column to the left, the last (what the row says) as well, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) if i in (0, len(row) - 1) and len(row) > 2 else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def question_of_fresh(report, transport):
    sizes = [place[1] for place in report.places(transport, ["fresh"])]
    compared = {(name, size): report.fresh_over_reused(transport, size, name)
                for name in report.allocators for size in sizes}
    if not any(c.count for c in compared.values()):
        return None
    dearest, unmoved, unclear = {}, [], []
    for name in report.allocators:
        shown = [compared[name, size] for size in sizes if compared[name, size].shows()]
        worst = max((c.ratio for c in shown), default=1)
        if worst >= 1.2:
            dearest[name] = worst
        elif any(compared[name, size].count and compared[name, size].ratio >= 1.2 for size in sizes):
            unclear.append(name)
        elif any(compared[name, size].count for size in sizes):
            unmoved.append(name)
    once = all(c.count < 2 for c in compared.values())
    if once:
        answer = "Measured once: the spread is not known, so nothing is shown."
    elif dearest:
        (first, ratio), *others = dearest.items()
        answer = f"A fresh buffer takes up to {ratio:.1f} times as long under {first}"
        answer += "".join(f", {ratio:.1f} under {name}" for name, ratio in others)
        answer += f"; under {listed(unmoved)} never more than 1.2 times." if unmoved else "."
        answer += f" {listed(unclear)}: the spread hides it." if unclear else ""
    elif unclear:
        answer = f"No difference is shown; under {listed(unclear)} the spread may hide one."
    else:
        answer = "Under no allocator does a fresh buffer take more than 1.2 times as long."

    def cell(c):
        return "failed" if not c.count else f"{c.ratio:.2f}" + ("" if c.shows() or once else " ~")
    rows = []
    for size in sizes:
        of_row = [compared[name, size] for name in report.allocators]
        says = "measured once: no spread" if once else "shows no difference" if not any(c.shows() for c in of_row) else ""
        rows.append([size_text(size), *(cell(c) for c in of_row), says])
    title = f"Does MPI_Bcast take longer from a fresh buffer than from a reused one? ({transport})"
    axis = "MPI_Bcast of a fresh buffer / of a reused one, by message"
    panel = svg.Lines(title, answer, axis, {
        name: {size: compared[name, size].ratio for size in sizes if compared[name, size].count}
        for name in report.allocators}, {size: size_text(size) for size in sizes})
    return Question(title, answer, "MPI_Bcast fresh / reused; ~ the spread is not smaller than the difference: shows none",
                    ["", *report.allocators, ""], rows, panel)


def counted(verdicts):
    """A sentence of the rows' verdicts."""
    told = [v for v in verdicts if v is not None]
    if not told:
        return ""
    return (f"Against the fastest other {OURS} is faster in {told.count(-1)} of {len(told)} rows, slower in "
            f"{told.count(1)}; {told.count(0)} show no difference.")


def question_of_times(report, transport, title, patterns, figure, cells, with_panel=None):
    places = report.places(transport, patterns)
    rows, verdicts = [], []
    for place in places:
        medians = [report.median(transport, place, name, figure) for name in report.allocators]
        if not any(medians):
            continue
        says, which = verdict(report, transport, place, figure)
        verdicts.append(which)
        label = place[0] if place[1] == 0 else size_text(place[1]) if len(patterns) == 1 else \
            f"{place[0]} {size_text(place[1])}"
        rows.append([label, *("failed" if value is None else time_text(value) for value in medians), says])
    if not rows:
        return None
    measured_once = all(which is None for which in verdicts) and OURS in report.allocators
    answer = counted(verdicts) or ("Measured once: the spread is not known, so nothing is shown."
                                   if measured_once else f"Without {OURS} and another there is nothing to compare.")
    panel = with_panel(title, answer) if with_panel else None
    return Question(title, answer, cells, ["", *report.allocators, f"{OURS} to the fastest other" if OURS in report.allocators else ""], rows, panel)


def question_of_cycle(report, transport):
    sizes = [place[1] for place in report.places(transport, ["fresh"])]

    def panel(title, answer):
        series = {name: {size: c.ratio for size in sizes
                         if (c := report.to_glibc(transport, ("fresh", size), name)).count}
                  for name in report.allocators}
        if not any(series.values()):
            return None
        return svg.Lines(title, answer, "time / glibc's, by message", series,
                         {size: size_text(size) for size in sizes}, logarithmic=True)
    return question_of_times(report, transport,
                             f"How long do malloc, write, MPI_Bcast and free take together? ({transport})", ["fresh"],
                             "cycle_us", "median", panel)


def question_of_programs(report, transport):
    def panel(title, answer):
        groups = {}
        for pattern in ("growing", "mixed", "phases"):
            for name in report.allocators:
                ratios = [report.to_glibc(transport, place, name).ratio
                          for place in report.places(transport, [pattern])]
                if ratios and all(ratios):
                    groups.setdefault(pattern, {})[name] = statistics.geometric_mean(ratios)
        return svg.Bars(title, answer, "time / glibc's, geometric mean over the sizes; less is better", groups) \
            if groups else None
    return question_of_times(report, transport,
                             f"And where buffers pile up, have every size, or come after pauses? ({transport})",
                             ["growing", "mixed", "phases"], "cycle_us",
                             "malloc, write, MPI_Bcast, free; median, of mixed the mean", panel)


def question_of_pauses(report, transport):
    return question_of_times(report, transport, f"How long does the first MPI_Bcast after a pause take? ({transport})",
                             ["phases"], "first_after_pause_us", "median")


def question_of_memory(report):
    peaks = {name: report.report["peak_rss_mib"][name] for name in report.allocators
             if report.report["peak_rss_mib"].get(name)}
    if not peaks:
        return None
    least = min(peaks, key=peaks.get)
    answer = f"{least} has least, {peaks[least]:.0f} MiB"
    answer += f"; {OURS} has {peaks[OURS] / peaks[least]:.2f} times that." if OURS in peaks and least != OURS else "."
    title = "How much memory does a rank have at its peak?"
    return Question(title, answer, "MiB resident, the largest rank of all runs", ["", *peaks, ""],
                    [["MiB", *(f"{peak:.0f}" for peak in peaks.values()), ""]],
                    svg.Bars(title, answer, "MiB resident, the largest rank of all runs", {"": peaks}))


def slowest_to_fastest(report, transport, place, name):
    values = [value for value in report.values(transport, place, name, "cycle_us") if value]
    return max(values) / min(values) if len(values) > 1 else None


def kernel_table(report, transport, patterns):
    """The counts beside the times: what the kernel did for the buffers, and how far that moved the repetitions."""
    rows = []
    for place in report.places(transport, patterns):
        cells = []
        for name in report.allocators:
            row = report.rows.get((transport, *place, name), {})
            if row.get("page_faults_per_broadcast") is None:
                cells.append("failed")
                continue
            parts = [f"{row['page_faults_per_broadcast']:.1f}"]
            if row.get("kernel_us_per_broadcast") is not None:  # older reports have none
                parts += [f"{row['huge_pages']:.0f}", time_text(row["kernel_us_per_broadcast"])]
            spread = slowest_to_fastest(report, transport, place, name)
            cells.append("  ".join([*parts, f"x{spread:.2f}"] if spread else parts))
        rows.append([f"{place[0]} {size_text(place[1])}" if place[1] else place[0], *cells, ""])
    if not rows:
        return ""
    return (f"\nWhat did the kernel do for them? ({transport})\n"
            "  (page faults a broadcast, huge pages at the end, processor time in the kernel a broadcast; slowest / fastest\n"
            "  repetition. The same counts and other times: memory that the host had to back, docs/host-memory.md)\n\n") + \
        table([["", *report.allocators, ""], *rows])


# What a name with a setting means. The settings themselves are in the JSON file.
VARIANTS = {"mimalloc-nopurge": "mimalloc that never gives pages back",
            "jemalloc-bg": "jemalloc that gives pages back from a thread of its own"}


def names_explained(report):
    """A line for each column that is an allocator with a setting; "" without one."""
    lines = []
    for allocator in report.report["allocators"]:
        if svg.base_of(allocator["name"]) != allocator["name"]:
            given = " ".join(f"{name}={value}" for name, value in allocator.get("environment", {}).items())
            meaning = VARIANTS.get(allocator["name"], f"{svg.base_of(allocator['name'])} with a setting")
            lines.append(f"  {allocator['name']}: {meaning}" + (f" ({given})" if given else ""))
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def questions_of(report):
    questions = []
    for transport in report.transports:
        questions += [question_of_fresh(report, transport), question_of_cycle(report, transport),
                      question_of_programs(report, transport), question_of_pauses(report, transport)]
    return [question for question in [*questions, question_of_memory(report)] if question]


def text_of(report, everything=False):
    text = "".join(question.text() for question in questions_of(report))
    for transport in report.transports:
        if everything:
            alone = question_of_times(report, transport, f"MPI_Bcast alone ({transport})", PATTERNS, "bcast_us", "median")
            text += alone.text() if alone else ""
        text += kernel_table(report, transport, PATTERNS if everything else ["growing", "mixed", "phases"])
    return text + names_explained(report) if text else text


def picture_of(report):
    """None where nothing was measured."""
    panels = [question.panel for question in questions_of(report) if question.panel]
    if not panels:
        return None
    host, settings = report.report["host"], report.report["settings"]
    panels[-1].note = (f"{report.report['mpi'].split(',')[0]}, {settings['ranks']} ranks, {settings['repetitions']} "
                       f"repetitions; {host['processor']}, {host['cores']} cores; {host['date'][:10]}"
                       + "".join(f"; {name}: {VARIANTS[name]}" for name in report.allocators if name in VARIANTS))
    return svg.picture(panels, report.allocators, "MPI_Bcast under different allocators")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json")
    parser.add_argument("--picture", help="the SVG to write")
    parser.add_argument("--all", action="store_true", help="also MPI_Bcast alone, and what the kernel did for every row")
    arguments = parser.parse_args()
    report = Report(json.loads(pathlib.Path(arguments.json).read_text()))
    print(text_of(report, arguments.all), end="")
    if arguments.picture and (picture := picture_of(report)):
        pathlib.Path(arguments.picture).write_text(picture)


if __name__ == "__main__":
    main()
