#!/usr/bin/python3
"""The preloaded library knows libfabric 2.6 when it sees it, and says what to do.

    libfabric_race_test.py LIBRDMALLOC STUB_LIBFABRIC

Seen to fail with each condition of libfabric_race.cc taken away, and with either of its calls.
"""
import os
import subprocess
import sys
import unittest

WORDS = "libfabric 2.6 is loaded"
LIBRARY, STUB = "", ""
# Twice, and closed in between: what is said is said once.
OPENS = ("import ctypes, _ctypes, sys\n"
         "for _ in range(2): _ctypes.dlclose(ctypes.CDLL(sys.argv[1])._handle)")


def errors_of(command, preload, release, settings):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("RDMALLOC_", "FI_"))}
    environment |= {"LD_PRELOAD": preload, "STUB_LIBFABRIC_RELEASE": release, **settings}
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, env=environment, check=True)
    return done.stderr


class Release(unittest.TestCase):
    def warnings(self, release="2.6", **settings):
        """How often a program is warned that opens libfabric."""
        return errors_of([sys.executable, "-c", OPENS, STUB], LIBRARY, release,
                         settings).count(WORDS)

    def test_opened_late_is_warned_of_once_with_the_remedies(self):
        told = errors_of([sys.executable, "-c", OPENS, STUB], LIBRARY, "2.6", {})
        self.assertEqual(told.count(WORDS), 1, told)
        self.assertIn("RDMALLOC_PURGE=off", told)
        self.assertIn("FI_MR_CACHE_MAX_COUNT=0", told)

    def test_linked_is_warned_of_before_main(self):
        for notify in ("auto", "hooks", "explicit"):
            told = errors_of(["/bin/true"], f"{LIBRARY}:{STUB}", "2.6", {"RDMALLOC_NOTIFY": notify})
            self.assertEqual(told.count(WORDS), 1, f"{notify}: {told}")

    def test_a_caller_that_tells_libfabric_is_warned(self):
        for notify in ("auto", "hooks", "explicit"):
            self.assertEqual(self.warnings(RDMALLOC_NOTIFY=notify), 1, notify)
        self.assertEqual(self.warnings(FI_MR_CACHE_MAX_COUNT="10"), 1)

    def test_other_releases_are_not_warned_of(self):
        for release in ("1.17", "2.1", "2.5", "2.7", "3.6", "1.6"):
            self.assertEqual(self.warnings(release), 0, release)

    def test_remedies_and_quiet_end_the_warning(self):
        for settings in ({"RDMALLOC_PURGE": "off"}, {"RDMALLOC_PURGE": "manual"},
                         {"RDMALLOC_NOTIFY": "off"}, {"FI_MR_CACHE_MAX_COUNT": "0"},
                         {"RDMALLOC_LOG": "quiet"}):
            self.assertEqual(self.warnings(**settings), 0, settings)


if __name__ == "__main__":
    LIBRARY, STUB = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1])
