#!/usr/bin/python3
"""What the matrices assert, on results made up here: no boot. Each was seen to fail by taking the
line of verdicts.py that it is about away."""
import os
import tempfile
import unittest

import stacks
import verdicts


def by_name(tuples, start):
    return next(one for one in tuples if one.name.startswith(start))


def judged(stack, allocator, outcome="done", **changes):
    """A cell in which all went well, but for the changes."""
    stack, allocator = by_name(stacks.STACKS, stack), by_name(stacks.ALLOCATORS, allocator)
    recycled = 50 if allocator.recycles else 0
    counts = {"broadcasts": 300, "wrong_bytes": 0, "recycled": recycled,
              "came_back": max(recycled - 1, 0), "wrong_recycled": 0, **changes}
    result = {"name": stacks.cell_name(stack, allocator), "outcome": outcome, "mutexes": [],
              "packets": changes.get("packets", 1000), "registrations": 300,
              "output": ["broadcasts {broadcasts} wrong_bytes {wrong_bytes} recycled {recycled} "
                         "came_back {came_back} wrong_recycled {wrong_recycled}".format(**counts)]}
    if allocator.shrinks:
        result["output"] = ["{broadcasts} broadcasts, {wrong_bytes} wrong; the heap shrank {shrank} times, 3 buffers were "
                            "where the last one was".format(**{"shrank": 40, **counts})]
    if outcome == "deadlock":
        result |= {"mutexes": ["libfabric.so.1 +0x10 (static)"], "output": [], "cycle": ["ring"],
                   "stack": [["madvise", "libc.so.6"]]}
    verdicts.judge(result)
    return result


class Problems(unittest.TestCase):
    def none(self, *arguments, **changes):
        self.assertIsNone(judged(*arguments, **changes)["problem"])

    def some(self, words, *arguments, **changes):
        self.assertIn(words, judged(*arguments, **changes)["problem"] or "none")

    def test_control_must_hang_on_a_lock_of_libfabric_and_only_there(self):
        control = "control: malloc"
        self.none("Open MPI 4.1.4 + libfabric", control, "deadlock")
        self.none("Open MPI 5.0.7 + UCX", control)
        self.some("did not deadlock", "Open MPI 4.1.4 + libfabric", control)
        self.some("did not deadlock", "libfabric 2.1", control, "limit")
        hung = judged("libfabric 2.1", control, "deadlock")
        hung["mutexes"] = ["heap"]
        verdicts.judge(hung)
        self.assertIn("did not deadlock", hung["problem"])

    def test_rdmalloc_must_end_right_over_the_device(self):
        for stack in (one.name for one in stacks.STACKS):
            for allocator in (one for one in stacks.ALLOCATORS if one.role == "rdmalloc"):
                wrong = "**4 of 300 wrong**" if allocator.shrinks else "4 wrong bytes"
                if allocator.shrinks and "alone" in stack:
                    continue
                allocator = allocator.name
                self.none(stack, allocator)
                self.some("hangs", stack, allocator, "deadlock")
                self.some("limit", stack, allocator, "limit")
                self.some("failed", stack, allocator, "failed")
                self.some(wrong, stack, allocator, wrong_bytes=4)
                self.some("nothing went", stack, allocator, packets=0)

    def test_cell_in_which_no_buffer_came_back_has_shown_nothing(self):
        for allocator in (one.name for one in stacks.ALLOCATORS if one.recycles):
            if not allocator.startswith("control"):
                self.none("libfabric 2.1", allocator)
            self.some("only 24 of 50", "libfabric 2.1", allocator, came_back=24, wrong_recycled=1,
                      wrong_bytes=1 if allocator.startswith("control") else 0)

    def test_silent_control_must_be_caught_in_every_stack(self):
        silent = "control: rdmalloc"
        for stack in stacks.STACKS:
            self.none(stack.name, silent, "failed", wrong_bytes=9, wrong_recycled=49)
            self.some("not caught", stack.name, silent)
        self.some("only None", "libfabric 2.1", silent, "deadlock")

    def test_glibc_must_go_wrong_where_the_report_says_so(self):
        stack, glibc = "Open MPI 5.0.7 + libfabric", "glibc, its heap"
        self.none(stack, glibc, "failed", wrong_bytes=77)
        self.some("no wrong broadcast", stack, glibc)
        self.some("no wrong broadcast", stack, glibc, wrong_bytes=77, shrank=0)
        self.some("no wrong broadcast", stack, glibc, "deadlock")
        for other in ("Open MPI 4.1.4 + libfabric", "Open MPI 5.0.7 + UCX"):
            self.none(other, glibc)
            self.none(other, glibc, wrong_bytes=1)  # would be news, and no error of ours

    def test_peers_are_reported_and_not_judged(self):
        for outcome in ("done", "deadlock", "limit", "failed"):
            result = judged("libfabric 1.17", "mimalloc", outcome, wrong_bytes=3)
            self.assertIsNone(result["problem"])
            self.assertNotIn("right", result["verdict"])


class Sampled(unittest.TestCase):
    def test_default_has_all_controls_and_all_but_four_cells(self):
        cells = stacks.CELLS
        judged_cells = [cell for cell in cells if verdicts.is_judged(*cell)]
        sampled = [cell for cell in cells if verdicts.is_sampled(*cell)]
        self.assertEqual((len(cells), len(judged_cells), len(sampled)), (62, 39, 32))
        self.assertEqual([(stack.name, allocator.name) for stack, allocator in judged_cells
                          if (stack, allocator) not in sampled and not allocator.shrinks],
                         [(stack, allocator) for stack in ("libfabric 1.17 alone", "libfabric 2.1 alone")
                          for allocator in ("rdmalloc", "rdmalloc hooks, purging at every chance")])


class Page(unittest.TestCase):
    def test_tables_and_cycles_take_their_places(self):
        with tempfile.TemporaryDirectory() as directory:
            page = os.path.join(directory, "page.md")
            with open(page, "w", encoding="utf-8") as file:
                for place in ("table", "staleness", "shrinking", "cycles"):
                    file.write(f"<!-- {place} -->\nold\n<!-- end of {place} -->\n")
            verdicts.write_doc(page, [
                judged("libfabric 1.17", "control: malloc", "deadlock"),
                judged("libfabric 2.1", "control: malloc", "deadlock"),
                judged("libfabric 1.17", "control: rdmalloc", wrong_bytes=9, wrong_recycled=49),
                judged("libfabric 1.17", "rdmalloc, purging")])
            with open(page, encoding="utf-8") as file:
                text = file.read()
            self.assertEqual(text.count("old"), 1, "the table of which no cell was run")
            verdicts.write_doc(page, [judged("Open MPI 5.0.7 + libfabric", "glibc, its", "failed", broadcasts=80,
                                             wrong_bytes=77)])
            with open(page, encoding="utf-8") as file:
                text = file.read()
        self.assertIn("| Open MPI 5.0.7 + libfabric 2.1 | **77 of 80 wrong**, shrank 40 times | not run |", text)
        self.assertNotIn("old", text)
        self.assertIn("| libfabric 1.17 alone | **hangs**: mm_lock (libfabric.so.1) |", text)
        self.assertIn("| **49 of 50 wrong**, 49 came back |", text)
        self.assertIn("| 50 of 50 right, 49 came back |", text)
        self.assertEqual(text.count("#0  madvise  (libc.so.6)"), 1, "of each allocator the first hang")
        self.assertEqual(text.count("not run"), 8 * 6 - 3 + 4 * 6 - 2 + 2 * 4 - 1)

    def test_page_without_a_place_is_refused(self):
        with tempfile.NamedTemporaryFile("w") as page, self.assertRaises(SystemExit):
            verdicts.write_doc(page.name, [judged("libfabric 1.17", "rdmalloc, purging")])


if __name__ == "__main__":
    unittest.main()
