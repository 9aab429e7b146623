#!/usr/bin/python3
"""./run, ./test and tools/setup.sh as a shell that stands elsewhere, or a machine of another kind, meets them.

    scripts_test.py

Each was seen to fail with the scripts as they were: no help but from the scripts' own folder; a package on hold, which apt
leaves as it is, taken for a missing one; the lab's root begun where there is no debootstrap.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

# As ./test sets it: bash warns of a locale that is not installed.
os.environ["LC_ALL"] = "C.UTF-8"
TREE = pathlib.Path(__file__).resolve().parents[2]


def call(*words, **more):
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False, **more)


class Scripts(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="rdmalloc scripts ")  # with a space
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{text}\n", encoding="ascii")
        path.chmod(0o755)

    def test_help_from_any_folder(self):
        for name in ("run", "test"):
            shutil.copy(TREE / name, self.folder)
            for words, folder in ((f"./{name}", self.folder), (f"{self.folder.name}/{name}", self.folder.parent),
                                  (str(self.folder / name), "/")):
                done = call(words, "--help", cwd=folder)
                self.assertEqual((done.returncode, done.stderr), (0, ""), words)
                self.assertIn(f"  ./{name} [", done.stdout, words)

    def test_package_on_hold_is_there(self):
        environment = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

        def missing():
            return call(TREE / "tools/setup.sh", "--print", "build", env=environment).stdout.split()
        self.program("bin/apt-get", "exit 1")
        self.program("bin/dpkg-query", "")
        wanted = missing()[4:]  # apt-get install -y --no-install-recommends
        self.assertIn("cmake", wanted)
        for state, left in (("ii ", []), ("hi ", []), ("rc ", wanted), ("iF ", wanted), ("un ", wanted)):
            self.program("bin/dpkg-query", "cat <<'END'\n" + "\n".join(f"{state} {name}" for name in wanted) + "\nEND")
            self.assertEqual(missing()[4:], left, state)

    def test_lab_root_is_made_where_it_can_be(self):
        self.program("bin/id", "echo 0")
        self.program("tools/build.sh", "[ -d build ] && echo 'a root is made'; exit 1")
        self.program("tools/lab", "exit 1")
        shutil.copy(TREE / "test", self.folder)
        for name in ("bash", "dirname", "mkdir", "setpriv", "unshare"):
            (self.folder / "bin" / name).symlink_to(shutil.which(name))
        for is_there in (False, True):
            if is_there:
                self.program("bin/debootstrap", "")
            done = call(self.folder / "test", "--no-setup", env={"PATH": f"{self.folder}/bin"})
            self.assertEqual("a root is made" in done.stdout, is_there, done)


if __name__ == "__main__":
    unittest.main()
