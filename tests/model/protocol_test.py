#!/usr/bin/python3
"""Has spin look at every interleaving of protocol.pml and reclaim.pml, and of the same with one rule taken away: the first must be
right, each of the others must be found wrong."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))

# What runs together. Everything at once has too many states for a test.
TOGETHER = {
    "purge": ["WITH_ONE_USER", "WITH_NEIGHBOUR", "WITH_EVICTOR", "WITH_PURGER", "ROUNDS=1", "PURGES=1"],
    "purges": ["WITH_ONE_USER", "WITH_NEIGHBOUR", "WITH_PURGER", "ROUNDS=2", "PURGES=2"],
    "purge_two_domains": ["WITH_USERS", "WITH_PURGER", "ROUNDS=1", "PURGES=2", "DOMAINS=2"],
    "fabric": ["WITH_FABRIC", "WITH_ONE_USER", "WITH_PURGER", "ROUNDS=2", "PURGES=2"],
    "foreign": ["WITH_FOREIGN", "ROUNDS=1", "PURGES=1"],
    "invalidate": ["WITH_ONE_USER", "WITH_OWNER", "WITH_PURGER", "ROUNDS=1", "PURGES=1"],
    "close": ["WITH_ONE_USER", "WITH_OWNER", "WITH_CLOSER", "ROUNDS=2", "PURGES=1"],
    "quiesce": ["WITH_ONE_USER", "WITH_OWNER", "WITH_QUIESCER", "ROUNDS=2", "PURGES=1"],
    "quiesce_close": ["WITH_USERS", "WITH_CLOSER", "WITH_QUIESCER", "ROUNDS=1", "PURGES=1"],
    "exit": ["WITH_ONE_USER", "WITH_PURGER", "WITH_EXIT", "ROUNDS=1", "PURGES=2"],
    "coarse": ["WITH_COARSE", "ROUNDS=1", "PURGES=1"],
    # Of another model: what is taken from caches of threads.
    "reclaim": ["OPS=4"],
}
MODEL_OF = {"reclaim": "reclaim.pml", "reclaim_longer": "reclaim.pml"}
# With --full: 1 to 2.7 million states each, up to 290 MB.
LARGER = {
    "two_invalidate": ["WITH_USERS", "WITH_OWNER", "WITH_PURGER", "ROUNDS=1", "PURGES=1"],
    "two_close": ["WITH_USERS", "WITH_OWNER", "WITH_CLOSER", "ROUNDS=1", "PURGES=1"],
    "two_quiesce": ["WITH_USERS", "WITH_OWNER", "WITH_QUIESCER", "ROUNDS=1", "PURGES=1"],
    "reclaim_longer": ["OPS=5"],  # 17 million states, 2.3 GB
    "two_purges": ["WITH_USERS", "WITH_NEIGHBOUR", "WITH_PURGER", "ROUNDS=1", "PURGES=2"],
}
# The rule or the mended fault, where it shows, and how.
BROKEN = {
    "NO_I2": ("fabric", "invalid end state"),
    "NO_I3_WORDS": ("purge", "assertion violated"),
    "NO_I3_ORDER": ("purge", "assertion violated"),
    "NO_I3_WAIT": ("purge", "assertion violated"),
    "NO_I5": ("purge", "assertion violated"),
    "NO_I9": ("foreign", "assertion violated"),
    "ITEM2": ("quiesce", "assertion violated"),
    "ITEM4": ("exit", "assertion violated"),
    "ITEM5": ("close", "assertion violated"),
    "ITEM6": ("coarse", "assertion violated"),
    "NO_BARRIER_AFTER_ASKING": ("reclaim", "assertion violated"),
    "NO_BARRIER_AFTER_MARKING": ("reclaim", "assertion violated"),
    "NO_BLOCK_LEFT": ("reclaim", "assertion violated"),
    "NO_COMPARISON": ("reclaim", "assertion violated"),
    "NO_LOOK_ABOVE": ("reclaim", "assertion violated"),
    "NO_LOOK_AT_TOP": ("reclaim", "assertion violated"),
    "NO_LOOK_AT_MARK": ("reclaim", "assertion violated"),
}


def look(together, *broken):
    """What pan says of the processes of `together`."""
    with tempfile.TemporaryDirectory() as folder:
        defines = [f"-D{name}" for name in TOGETHER[together] + list(broken)]
        subprocess.run(["spin", "-a", *defines, os.path.join(HERE, MODEL_OF.get(together, "protocol.pml"))], cwd=folder, check=True, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT)
        subprocess.run(["cc", "-O0", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-DMEMLIM=8192",
                        "-o", "pan", "pan.c"],
                       cwd=folder, check=True)
        pan = subprocess.run(["./pan", "-m1000000"], cwd=folder, check=False, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
        return pan.stdout.lstrip()


class Protocol(unittest.TestCase):
    def test_every_interleaving_is_right(self):
        for together in TOGETHER:
            with self.subTest(together):
                said = look(together)
                states = int(re.search(r"(\d+) states, stored", said).group(1))
                print(f"{together}: {states} states", flush=True)
                self.assertTrue("errors: 0" in said, said[:200])
                self.assertFalse("max search depth too small" in said)
                self.assertFalse("Search not completed" in said, "MEMLIM (MiB) is too small")
                self.assertGreater(states, 1)

    def test_what_breaks_a_rule_is_found(self):
        for rule, (together, how) in BROKEN.items():
            with self.subTest(rule):
                said = look(together, rule)
                self.assertTrue("errors: 1" in said, "spin finds nothing")
                self.assertIn(how, said[:200])
                print(f"{rule}: {together}: {re.search('pan:1: (.*)', said).group(1)}", flush=True)


if __name__ == "__main__":
    if shutil.which("spin") is None:
        print("SKIP: no spin (Debian's package spin)")
        sys.exit(77)
    if "--full" in sys.argv:
        sys.argv.remove("--full")
        TOGETHER.update(LARGER)
    # The models are two tests, so that they run side by side.
    is_wanted = (lambda together: together in MODEL_OF) if "--reclaim" in sys.argv else (
        lambda together: together not in MODEL_OF)
    sys.argv = [argument for argument in sys.argv if argument != "--reclaim"]
    TOGETHER = {name: defines for name, defines in TOGETHER.items() if is_wanted(name)}
    BROKEN = {rule: where for rule, where in BROKEN.items() if is_wanted(where[0])}
    unittest.main()
