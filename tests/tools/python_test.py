#!/usr/bin/python3
"""The module `rdmalloc` for Python, under the preload and without it.

    python_test.py LIBRDMALLOC_SO LIBRDMALLOC_MLOCK_SO MODULE_FOLDER

Seen to fail: with the text in place of JSON asked for, without the check of results, with the
library loaded by its name instead of looked for in the process.
"""
import errno
import os
import sys
import tempfile
import unittest

from launching import call, environment, script

LIBRARY, MLOCK, FOLDER = (os.path.abspath(path) for path in sys.argv[1:])
# A domain with one registration, made as a C program makes it.
DOMAIN = f"""
import ctypes
mlock = ctypes.CDLL({MLOCK!r})
mlock.rdmalloc_domain_open_mlock.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
domain, held = ctypes.c_void_p(), ctypes.c_void_p()
assert mlock.rdmalloc_domain_open_mlock(None, ctypes.byref(domain)) == 0
process = ctypes.CDLL(None)
process.malloc.restype = ctypes.c_void_p
process.malloc.argtypes = [ctypes.c_size_t]
process.rdmalloc_reg_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                                     ctypes.c_uint32, ctypes.c_void_p]
process.rdmalloc_reg_put.argtypes = [ctypes.c_void_p]
process.rdmalloc_domain_close.argtypes = [ctypes.c_void_p]
block = process.malloc(20000)
assert process.rdmalloc_reg_get(domain, block, 20000, 3, ctypes.byref(held)) == 0
"""


def python(text, **more):
    return call(["/usr/bin/python3", "-c", "import rdmalloc\n" + text],
                env=environment(PYTHONPATH=FOLDER, PYTHONDONTWRITEBYTECODE="1", **more))


class Loaded(unittest.TestCase):
    def say(self, text, **more):
        done = python(text, LD_PRELOAD=LIBRARY, **more)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        return done.stdout.split()

    def test_counters_move_with_the_program(self):
        before, after, large = map(int, self.say("""
before = rdmalloc.stats()
kept = bytearray(64 << 20)
after = rdmalloc.stats()
print(before["live_bytes"], after["live_bytes"], after["large_spans"])"""))
        self.assertGreaterEqual(after - before, 64 << 20)
        self.assertGreater(large, 0)

    def test_the_module_says_which_process_of_which_job(self):
        self.assertEqual(self.say("""
import os
seen = rdmalloc.stats()
print(seen["schema"], seen["pid"] == os.getpid(), seen["rank"], seen["ranks"], rdmalloc.is_loaded(),
      rdmalloc.version() == seen["version"])""", PMI_RANK="4", PMI_SIZE="9"),
                         ["rdmalloc-stats-1", "True", "4", "9", "True", "True"])

    def test_domains(self):
        self.assertEqual(self.say(DOMAIN + """
[one] = rdmalloc.stats()["domains"]
print(one["name"], one["registrations"], one["in_use"], "closed_domains" in rdmalloc.stats())
process.rdmalloc_reg_put(held)
assert process.rdmalloc_domain_close(domain) == 0
seen = rdmalloc.stats()
print(len(seen["domains"]), seen["closed_domains"]["deregistrations"])"""),
                         ["mlock", "1", "1", "False", "0", "1"])

    def test_settings(self):
        self.assertEqual(self.say("""
print(rdmalloc.ctl("purge.decay_ms"), rdmalloc.ctl("purge.decay_ms", 7),
      rdmalloc.ctl("purge.decay_ms"), rdmalloc.ctl("stats.threads") >= 1, rdmalloc.purge() >= 0)
for name, value in (("no.such", None), ("stats.threads", 1), ("purge.decay_ms", 1 << 40)):
    try:
        rdmalloc.ctl(name, value)
    except rdmalloc.Error as error:
        print(error.errno, name in str(error))"""),
                         ["5000", "5000", "7", "True", "True", "2", "True", "1", "True", "22", "True"])


# I11: a child has its memory and no registration of its parent's, may make its own, and the parent's
# stay; also in the children of a pool, which allocate, and send back what was pickled to them.
MULTIPROCESSING = """
import multiprocessing
import sys
import rdmalloc

def work(number):
    seen = [len(rdmalloc.stats()["domains"])]
    own = Domain()
    seen.append(own.get())
    own.close()
    return sum(bytearray(b"x" * (number * 100000 + 1))) // ord("x"), seen

class Domain:
    def __init__(self):
        exec(DOMAIN, globals())
        self.domain, self.held, self.block = domain, held, block
    def get(self):
        again = ctypes.c_void_p()
        error = process.rdmalloc_reg_get(self.domain, self.block, 20000, 3, ctypes.byref(again))
        if error == 0:
            process.rdmalloc_reg_put(again)
        return error
    def close(self):
        process.rdmalloc_reg_put(self.held)
        assert process.rdmalloc_domain_close(self.domain) == 0

def of_parent(domain, answers):
    answers.put(domain.get())

if __name__ == "__main__":
    way = multiprocessing.get_context(sys.argv[1])
    parents = Domain()
    with way.Pool(3) as pool:
        for number, (length, seen) in enumerate(pool.map(work, range(30))):
            assert length == number * 100000 + 1 and seen == [0, 0], (number, length, seen)
    if sys.argv[1] == "fork":
        answers = way.SimpleQueue()
        child = way.Process(target=of_parent, args=(parents, answers))
        child.start()
        print(answers.get())
        child.join()
    [one] = rdmalloc.stats()["domains"]
    print(one["registrations"], one["in_use"], parents.get())
    parents.close()
"""


class Multiprocessing(unittest.TestCase):
    def test_children_of_a_parent_with_registrations(self):
        with tempfile.TemporaryDirectory() as folder:
            program = script(folder + "/program.py", f"DOMAIN = {DOMAIN!r}" + MULTIPROCESSING)
            for way, said in (("fork", [str(-errno.ECHILD), "1", "1", "0"]), ("spawn", ["1", "1", "0"])):
                with self.subTest(way=way):
                    done = call(["/usr/bin/python3", program, way],
                                env=environment(PYTHONPATH=FOLDER, PYTHONDONTWRITEBYTECODE="1",
                                                LD_PRELOAD=LIBRARY))
                    self.assertEqual((done.returncode, done.stderr), (0, ""), done)
                    self.assertEqual(done.stdout.split(), said)


class NotLoaded(unittest.TestCase):
    def test_the_exception_says_what_to_do(self):
        for preload in (None, "libm.so.6"):
            done = python("""
assert not rdmalloc.is_loaded()
for ask in (rdmalloc.stats, rdmalloc.version, rdmalloc.purge, lambda: rdmalloc.ctl("stats.threads")):
    try:
        ask()
        print("no exception")
    except rdmalloc.NotLoaded as error:
        text = str(error)
print(text)""", LD_PRELOAD=preload)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for word in ("librdmalloc.so", "rdmalloc run --", preload or "not set"):
                self.assertIn(word, done.stdout)
            self.assertNotIn("no exception", done.stdout)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
