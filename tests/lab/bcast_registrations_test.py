#!/usr/bin/python3
"""What bcast_registrations.py asserts, on results made up here: no boot. Each was seen to fail by
taking the condition of problems_of() or problems_of_mixed() that it is about away."""
import json
import unittest

import bcast_registrations
from bcast_registrations import LEAST_MIXED, MIDDLE, SMALL


def row(pattern, size, registrations, wrong_bytes=0):
    return {"type": "row", "pattern": pattern, "bytes": size, "registrations": registrations,
            "wrong_bytes": wrong_bytes, "bcast_us": [1.0]}


def ran(name, *rows, ends=True, **changes):
    lines = [*rows, *([{"type": "end"}] if ends else [])]
    # As print_end() and emit() of bcast_worker write it.
    output = [json.dumps(line, separators=(",", ":")) for line in lines]
    return {"name": name, "outcome": "done", "packets": 5000, "registrations": 40,
            "output": output, **changes}


def mixed(transport, **registrations):
    """A run for each allocator; an underscore stands for the hyphen of a name."""
    return [ran(f"{transport} mixed {name.replace('_', '-')}", row("mixed", 0, count))
            for name, count in registrations.items()]


class Problems(unittest.TestCase):
    def problems(self, results):
        return list(bcast_registrations.problems_of(results, bcast_registrations.counts_of(results)))

    def none(self, *results):
        self.assertEqual(self.problems(results), [])

    def some(self, words, *results):
        found = self.problems(results)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_mixed_is_fewer_than_under_each_peer(self):
        self.none(*mixed("ucx", rdmalloc=8, tcmalloc=9))
        self.none(*mixed("ofi", rdmalloc=14, tcmalloc=30))
        self.none(*mixed("ofi", rdmalloc=20, tcmalloc=30))
        self.none(*mixed("ucx", rdmalloc=9, tcmalloc=10, mimalloc_keeps=22))
        for transport, least in LEAST_MIXED.items():
            self.some(f"{least + 1} under tcmalloc",
                      *mixed(transport, rdmalloc=least + 1, tcmalloc=least + 1, glibc=99))

    def test_mixed_is_level_only_where_it_is_the_least_there_is(self):
        self.none(*mixed("ucx", rdmalloc=8, tcmalloc=8))
        self.none(*mixed("ofi", rdmalloc=14, tcmalloc=14))
        self.some("9 under tcmalloc", *mixed("ucx", rdmalloc=9, tcmalloc=9))
        self.some("14 under tcmalloc", *mixed("ucx", rdmalloc=14, tcmalloc=14))

    def test_mixed_is_never_more_than_under_a_peer(self):
        self.some("8 under tcmalloc", *mixed("ucx", rdmalloc=9, tcmalloc=8))
        self.some("20 under glibc", *mixed("ofi", rdmalloc=21, tcmalloc=30, glibc=20))

    def test_mixed_above_the_least_needs_the_nearest_peers_count(self):
        died = ran("ucx mixed tcmalloc", ends=False, outcome="failed")
        self.some("no count of tcmalloc's", *mixed("ucx", rdmalloc=1000), died)
        self.some("no count of tcmalloc's", *mixed("ucx", rdmalloc=9, glibc=1000))
        self.none(*mixed("ucx", rdmalloc=8), died)

    def test_mixed_below_the_least_is_a_wrong_count(self):
        for transport, least in LEAST_MIXED.items():
            self.some(f"where {least} is the least",
                      *mixed(transport, rdmalloc=least - 1, tcmalloc=least + 1))
            self.some(f"where {least} is the least", *mixed(transport, rdmalloc=least - 1))

    def test_fresh_and_phases_register_nothing_under_rdmalloc(self):
        def both(name, fresh=0, phases=0):
            return ran(f"ucx fresh,phases {name}", row("fresh", SMALL, 0), row("fresh", MIDDLE, fresh),
                       row("phases", SMALL, phases), row("phases", MIDDLE, 0))
        self.none(both("rdmalloc"))
        self.none(both("rdmalloc"), both("jemalloc", fresh=16, phases=8))
        self.some(f"fresh, {MIDDLE} B: 1 registrations", both("rdmalloc", fresh=1))
        self.some(f"phases, {SMALL} B: 2 registrations", both("rdmalloc", phases=2))

    def test_pattern_that_did_not_run_is_a_problem(self):
        self.some("no row of phases", ran("ucx fresh,phases rdmalloc", row("fresh", SMALL, 0)))

    def test_rdmalloc_ends_right_over_the_device_through_a_cache(self):
        def one(*rows, **changes):
            return ran("ofi mixed rdmalloc", *(rows or [row("mixed", 0, 14)]), **changes)
        self.none(one())
        self.some("limit", one(outcome="limit"))
        self.some("done", one(ends=False))
        self.some("done", {**one(), "output": ['{"type":"end"}']})
        self.some("wrong bytes", one(row("mixed", 0, 14, wrong_bytes=1)))
        self.some("only 999 packets", one(packets=999))
        self.some("no registration at all", one(registrations=0))


class Runs(unittest.TestCase):
    def test_default_has_every_pattern_and_the_nearest_peer(self):
        default, full = (list(bcast_registrations.works(full)) for full in (False, True))
        self.assertEqual([name for name, _, _ in default], ["fresh,phases", "mixed"])
        self.assertEqual([by_all for _, _, by_all in default], [False, True])
        self.assertTrue(all(by_all for _, _, by_all in full))
        self.assertIn("tcmalloc", bcast_registrations.CLOSEST)


if __name__ == "__main__":
    unittest.main()
