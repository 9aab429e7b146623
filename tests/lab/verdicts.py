"""What a cell's result means, what must not be, and the tables of docs/deadlock-matrix.md.

A problem, which fails the test, is one of these and nothing else:
  - the control of the deadlock matrix, in a stack with libfabric, does not deadlock on a lock of
    libfabric (else the run has shown nothing);
  - rdmalloc, in any of its settings, does not end, has a wrong byte, or sent nothing over rxe0;
  - fewer than half of the buffers that were to come back at the same address without their pages
    did (then the cell has shown nothing), with rdmalloc or with the silent control; 46 to 49 of 50
    were seen, and 17 to 19 of 20;
  - the silent control had no wrong bytes (else the right ones have shown nothing);
  - glibc's heap did not shrink, or the broadcasts that README.md, `rdmalloc doctor` and docs/reports/heap-that-shrinks.md
    say go wrong then were right.
Other allocators are reported: whether a purge of theirs falls due inside the cache is luck.
"""
import re

from stacks import ALLOCATORS, AT_EVERY_CHANCE, CELLS, STACKS, cell_name

LAST_LINE = re.compile(r"broadcasts (\d+) wrong_bytes (\d+) recycled (\d+) came_back (\d+) "
                       r"wrong_recycled (\d+)")
COUNTS = ("broadcasts", "wrong_bytes", "recycled", "came_back", "wrong_recycled")
# Of docs/reports/heap_that_shrinks.c: wrong are broadcasts, not bytes.
SHRINKING = re.compile(r"(\d+) broadcasts, (\d+) wrong; the heap shrank (\d+) times")


def lock_name(place):
    """libfabric's caches and their hooks share one static mutex, mm_lock (prov/util,
    util_mem_monitor.c); its other mutexes are members of objects on the heap."""
    return f"mm_lock ({place.split(' ')[0]})" if place.startswith("libfabric") else place


def what_happened(result):
    """For the table. Wrong bytes come first, since they make a program's exit status 1."""
    if result["outcome"] == "deadlock":
        return "**hangs**: " + ", ".join(lock_name(place) for place in result["mutexes"])
    if result["shrank"] is not None and result["wrong_bytes"]:
        return f"**{result['wrong_bytes']} of {result['broadcasts']} wrong**"
    if result["wrong_bytes"]:
        return f"{result['wrong_bytes']} wrong bytes"
    if result["outcome"] != "done" or result["wrong_bytes"] is None:
        return result["outcome"]
    return f"right, {result['broadcasts']}" if result["packets"] > 0 else "nothing went over rxe0"


def must_hang(stack, allocator):
    return allocator.role == "hangs" and "libfabric" in stack.name


def must_go_wrong(stack, allocator):
    """libucm's hook of sbrk keeps Open MPI 5 from hearing, and libfabric hears by Open MPI only."""
    return allocator.role == "shrinks" and stack.name == "Open MPI 5.0.7 + libfabric 2.1"


def is_judged(stack, allocator):
    """Whether problem_of() can find anything at all in such a cell."""
    return allocator.role in ("rdmalloc", "silent") or must_hang(stack, allocator) or must_go_wrong(stack, allocator)


def is_sampled(stack, allocator):
    """Whether the cell is run by default: judged, and not what the column beside it proves as well.
    libfabric alone has no Open MPI or UCX that could be told by a call: there `hooks` does what the
    default does. And without purging at every chance rdmalloc's purge thread has nothing to do within
    a cell; that it sends right under its defaults is looked at in all stacks with MPI. The report's program
    is run where glibc goes wrong."""
    if allocator.shrinks:
        return any(must_go_wrong(stack, one) for one in ALLOCATORS)
    repeats = stack.mpirun is None and allocator.role == "rdmalloc" and \
        allocator.settings in ({}, {**AT_EVERY_CHANCE, "RDMALLOC_NOTIFY": "hooks"})
    return is_judged(stack, allocator) and not repeats


def problem_of(result, stack, allocator):
    """None, or what must not be, in words."""
    verdict = result["verdict"]
    if must_hang(stack, allocator):
        hung = result["outcome"] == "deadlock" and "mm_lock" in verdict
        return None if hung else f"the control did not deadlock on libfabric's lock: {verdict}"
    if must_go_wrong(stack, allocator):
        return None if result["wrong_bytes"] and result["shrank"] else f"no wrong broadcast of a heap that shrank: {verdict}"
    if allocator.role == "rdmalloc" and not verdict.startswith("right"):
        return verdict
    if not allocator.recycles:
        return None
    if result["came_back"] is None or result["came_back"] * 2 < result["recycled"]:
        return f"only {result['came_back']} of {result['recycled']} buffers came back ({verdict})"
    if allocator.role == "silent" and not result["wrong_recycled"]:
        return f"stale registrations not caught: {verdict}"
    return None


def judge(result):
    """Fills in the counts of its last line (None without one), "verdict" and "problem"."""
    stack, allocator = next(cell for cell in CELLS if cell_name(*cell) == result["name"])
    output = "\n".join(result["output"])
    found = LAST_LINE.search(output)
    result.update(zip(COUNTS, map(int, found.groups()) if found else [None] * len(COUNTS)))
    result["shrank"] = None
    if allocator.shrinks and (found := SHRINKING.search(output)):
        result.update(zip(("broadcasts", "wrong_bytes", "shrank"), map(int, found.groups())))
    result["verdict"] = what_happened(result)
    result["problem"] = problem_of(result, stack, allocator)


def staleness(result):
    """For the second table."""
    if result["came_back"] is None:
        return result["verdict"]
    wrong, recycled = result["wrong_recycled"], result["recycled"]
    told = f"**{wrong} of {recycled} wrong**" if wrong else f"{recycled} of {recycled} right"
    return f"{told}, {result['came_back']} came back"


def shrinking(result):
    """For the third table."""
    return result["verdict"] + (f", shrank {result['shrank']} times" if result["shrank"] else "")


def table(results, allocators, words):
    """Stacks downwards, allocators across; words(result) fills a cell."""
    by_name = {result["name"]: words(result) for result in results}
    lines = ["| | " + " | ".join(allocator.name for allocator in allocators) + " |",
             "|---" * (len(allocators) + 1) + "|"]
    for stack in STACKS:
        if not any((stack, allocator) in CELLS for allocator in allocators):
            continue
        row = [by_name.get(cell_name(stack, allocator), "not run") for allocator in allocators]
        lines.append(f"| {stack.name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def deadlock_table(results):
    return table(results, [one for one in ALLOCATORS if one.role != "silent" and not one.shrinks],
                 lambda result: result["verdict"])


def staleness_table(results):
    return table(results, [one for one in ALLOCATORS if one.recycles], staleness)


def shrinking_table(results):
    return table(results, [one for one in ALLOCATORS if one.shrinks], shrinking)


def cycles(results):
    """Of each allocator's first hang the cycle and the frames that make it, for the page."""
    text = []
    shown = set()
    for result in results:
        allocator = result["name"].split(" | ")[1]
        if result["outcome"] != "deadlock" or allocator in shown:
            continue
        shown.add(allocator)
        text += [f"**{result['name'].replace(' | ', ', ')}** ({result['cycle'][0]}):", "", "```"]
        for number, (function, library) in enumerate(result["stack"]):
            text.append(f"#{number:<2} {function}" + (f"  ({library})" if library else ""))
        text += ["```", ""]
    return "\n".join(text)


def write_doc(path, results):
    with open(path, encoding="utf-8") as file:
        page = file.read()
    shrinks = {one.name for one in ALLOCATORS if one.shrinks}
    of_the_third = [result for result in results if result["name"].split(" | ")[1] in shrinks]
    parts = []
    if len(of_the_third) < len(results):
        parts += [("table", deadlock_table(results)), ("staleness", staleness_table(results)), ("cycles", cycles(results))]
    if of_the_third:
        parts.append(("shrinking", shrinking_table(results)))
    for name, text in parts:
        page, done = re.subn(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)",
                             lambda found, text=text: found[1] + text + "\n" + found[2], page,
                             flags=re.S)
        if done != 1:
            raise SystemExit(f"matrix: {path} has no place for the {name}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)
