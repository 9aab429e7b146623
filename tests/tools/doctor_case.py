"""What the tests of rdmalloc doctor share: their arguments, and a look at its findings."""
import json
import os
import shutil
import sys
import tempfile
import unittest

import launching
from launching import call, environment, script

TOOL, MPI_PROGRAM = sys.argv[1:]
PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "doctor.md")
IS_ROOT = os.geteuid() == 0
# As a plain user: without any capability, and with the library within reach.
AS_NOBODY = ["setpriv", "--reuid", str(launching.NOBODY), "--regid", str(launching.NOBODY),
             "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
needs_root = unittest.skipUnless(IS_ROOT, "needs root: becomes another user, or mounts")
CAN_MOUNT = IS_ROOT and call(["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs",
                              "/mnt"]).returncode == 0
needs_mounts = unittest.skipUnless(CAN_MOUNT, "nothing can be mounted here, as in most containers")
OPEN_MPI = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
needs_open_mpi = unittest.skipUnless(launching.is_open_mpi(OPEN_MPI), "Open MPI is not installed")
needs_mpi_program = unittest.skipIf(MPI_PROGRAM == "none", "built without MPI")


class Case(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="rdmalloc-doctor-")
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        launching.readable_by_all(self.folder)
        self.tool = TOOL

    def root(self, files):
        """A folder for --root with these files; a text of None makes a folder."""
        top = tempfile.mkdtemp(dir=self.folder)
        launching.readable_by_all(top)
        for name, text in files.items():
            path = top + name
            os.makedirs(path if text is None else os.path.dirname(path), exist_ok=True)
            if text is not None:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
        return top

    def look(self, *command, files=None, env=None, before=(), **more):
        """All findings, by their ids."""
        root = ["--root", self.root(files)] if files is not None else []
        done = call([*before, self.tool, "doctor", "--json", *root, "--", *command], env=env, **more)
        self.assertIn(done.returncode, (0, 1, 2), done)
        report = json.loads(done.stdout)
        self.assertEqual(report["schema"], "rdmalloc-doctor-1")
        severities = {one["severity"] for one in report["findings"]}
        worst = max(severities, key=["good", "note", "warning", "bad"].index)
        self.assertEqual(report["verdict"], worst)
        self.assertEqual(done.returncode, {"bad": 2, "warning": 1}.get(worst, 0))
        for one in report["findings"]:
            # Whatever is said to be wrong has its reason and its remedy, and nothing else has.
            self.assertEqual([bool(one[key]) for key in ("seen", "why", "fix")],
                             [True] + [one["severity"] != "good"] * 2, one)
        return {one["id"]: one for one in report["findings"]}

    def check(self, name, severity, words, *command, **more):
        one = self.look(*command, **more)[name]
        self.assertEqual(one["severity"], severity, one)
        for word in words:
            self.assertIn(word, " ".join(one.values()))
        return one

    def copied_tool(self):
        """Within reach of every user."""
        library = call(["sh", "-c", f"ldd {TOOL} | awk '/librdmalloc/{{print $3}}'"]).stdout.strip()
        for source in (TOOL, library):
            shutil.copy(source, os.path.join(self.folder, os.path.basename(source)))
        return ["env", f"LD_LIBRARY_PATH={self.folder}"], os.path.join(self.folder, "rdmalloc")

    def compiled(self, name, source, *options):
        path = os.path.join(self.folder, name)
        done = call(["cc", "-x", "c", "-o", path, "-", *options], stdin=None, input=source)
        self.assertEqual(done.returncode, 0, done)
        return path

    def launcher(self, name, says):
        os.makedirs(os.path.join(self.folder, "bin"), exist_ok=True)
        return script(os.path.join(self.folder, "bin", name), f"#!/bin/sh\necho '{says}'\n")
