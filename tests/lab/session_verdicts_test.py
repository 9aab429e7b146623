#!/usr/bin/python3
"""What the sessions test asserts, on lines made up here: no boot."""
import unittest

import session_verdicts as verdicts

RUNS = {run.name: run for run in verdicts.runs(True)}
LEAK_BYTES, LEAK_FILES = 30000, 5  # Open MPI's, in each session


def output(name, packets=None, status=0, run=None, **changes):
    """A run in which all went well, but for the changes: a number for the last session, or a function
    of the session's number. Of --full, unless `run` is given."""
    run = run or RUNS[name]
    lines = []
    for cycle in range(1, run.sessions + 1):
        leaks = cycle if run.like or run.settings is None else 0
        line = {"cycle": cycle, "wrong": 0, "registrations": 3 if run.transport.registers else 0,
                "deregistrations": 3 if run.transport.registers else 0, "notified": 7, "attached": 1,
                "attaches": 1, "own_misses": 2, "own_hits": 10, "own_live": 1, "purges_seen": 7,
                "live_bytes": 1000000 + leaks * LEAK_BYTES, "rss_kib": 20000 + leaks * 40,
                "mappings": 300, "mappings_of_blocks": 20, "fds": 9 + leaks * LEAK_FILES, "threads": 2,
                "components": 0, "components_left": 0}
        for field, value in changes.items():
            if callable(value):
                line[field] = value(cycle)
            elif cycle == run.sessions:
                line[field] = value
        lines.append(" ".join(f"{field} {value}" for field, value in line.items()))
    if packets is None:
        packets = 1000 if run.transport.has_packets else 0
    return verdicts.parse("\n".join(lines) + f"\nstatus {status} packets {packets}\n")


def problems(name, **changes):
    run = RUNS[name]
    return verdicts.problems_of(run, output(name, **changes), run.like and output(run.like))


class SessionVerdicts(unittest.TestCase):
    def none(self, name, **changes):
        self.assertEqual(problems(name, **changes), [])

    def some(self, words, name, **changes):
        self.assertIn(words, " ".join(problems(name, **changes)))

    def test_what_goes_well_has_no_problem(self):
        for name in RUNS:
            self.none(name)

    def test_every_session_must_have_ended_well(self):
        self.some("100 of 100 sessions", "mtl tcp, T0", status=1)
        self.some("of 100 sessions", "mtl tcp, T0", cycle=7)
        self.some("wrong bytes", "btl tcp, T0", wrong=1)

    def test_live_bytes_grow_by_no_more_than_glibcs_beside_it(self):
        self.none("mtl tcp, T0", live_bytes=lambda cycle: 1000000 + cycle * int(LEAK_BYTES * 1.4))
        self.some("live_bytes grew", "mtl tcp, T0",
                  live_bytes=lambda cycle: 1000000 + cycle * LEAK_BYTES * 3)
        self.some("live_bytes grew", "mtl verbs, T0",
                  live_bytes=lambda cycle: 1000000 + cycle * LEAK_BYTES)

    def test_pages_files_mappings_and_threads_grow_no_more_either(self):
        self.some("rss_kib grew", "mtl tcp, T0", rss_kib=40000)
        self.some("fds grew", "mtl tcp, T0", fds=510)
        self.some("fds grew", "mtl verbs, T0", fds=10)
        self.some("mappings grew", "mtl tcp, T0", mappings=305)
        self.some("mappings_of_blocks grew", "mtl tcp, T0", mappings_of_blocks=29)
        self.some("threads grew", "mtl tcp, T0", threads=3)

    def test_default_runs_show_what_grows_too(self):
        for run in verdicts.runs(False):
            if run.settings is None or run.name.endswith("twice, T0"):
                continue
            grown = output(run.name, run=run, fds=lambda cycle: 100 * cycle)
            self.assertIn("fds grew", " ".join(verdicts.problems_of(run, grown, run.like and output(run.like))))

    def test_registrations_are_those_of_the_second_session(self):
        self.none("mtl verbs, T0", registrations=lambda cycle: 4 if cycle == 1 else 3)
        self.some("registrations differ", "mtl verbs, T0", registrations=4)
        self.some("deregistrations differ", "mtl verbs, T0", deregistrations=2)
        self.some("0 registrations", "mtl verbs, T1", registrations=lambda cycle: 0)

    def test_the_session_went_over_the_device_or_did_not(self):
        self.some("0 packets", "btl verbs, T0", packets=0)
        self.some("5 packets", "btl tcp, T0", packets=5)

    def test_our_cache_serves_the_last_as_the_second(self):
        self.some("hit rate", "mtl tcp, T0", own_misses=4, own_hits=8)
        self.some("not asked", "mtl tcp, T0", own_hits=9)
        self.some("accumulate", "mtl tcp, T0", own_live=3)
        self.some("saw no purge", "mtl tcp, T0", purges_seen=0)

    def test_the_notifier_is_attached_anew(self):
        self.some("not attached", "mtl tcp, T0", attached=0)
        self.some("not attached", "mtl verbs, T1", notified=0)
        self.some("anew", "mtl tcp, T0", attaches=0)
        self.none("mtl verbs, T0", attaches=0)
        self.none("mtl tcp, without notifications", attached=0, notified=0, attaches=0)

    def test_no_component_stays(self):
        self.some("component", "mtl tcp, T0", components_left=1)


if __name__ == "__main__":
    unittest.main()
