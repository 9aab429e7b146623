#!/usr/bin/env python3
"""The programs of docs/reports/ compile, and show what their pages say of this machine.

    reports_test.py LIBRDMALLOC

What needs a device says so here, and is run by tests/lab/reports_test.py.

Seen to fail: with `field_mask` of ucx_answers_wider.c's query empty, with status 0 for "no verbs device", without `volatile` in where_malloc_purges.c (the control saw nothing) and in heap_unheard.c, and with a
program that no page names, without the known issue in README.md.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

LIBRARY = sys.argv.pop(1)
REPORTS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reports"
MIMALLOC = pathlib.Path("/usr/lib", os.uname().machine + "-linux-gnu", "libmimalloc.so.2")
# As root, and without ssh.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm": "isolated",
       "OMPI_MCA_rmaps_base_oversubscribe": "1"}
needs_mpi = unittest.skipUnless(shutil.which("mpicc") and shutil.which("mpirun"), "no MPI")


def version_of_open_mpi():
    said = subprocess.run(["mpirun", "--version"], text=True, stdout=subprocess.PIPE, check=False).stdout
    found = re.search(r"Open MPI\) (\d+)", said)
    return int(found.group(1)) if found else 0


class Reports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def compiled(self, name):
        """As its first lines say."""
        line = re.search(rf"^ \*   ((?:mpi)?cc .*{name}\.c.*)$", (REPORTS / f"{name}.c").read_text(), flags=re.M).group(1)
        words = [str(REPORTS / word) if word == f"{name}.c" else word for word in line.split()]
        subprocess.run([*words, "-Wall", "-Wextra", "-Werror"], cwd=self.folder, check=True, timeout=60)
        return self.folder / words[words.index("-o") + 1]

    def said(self, command, **environment):
        done = subprocess.run(command, env={**os.environ, **MPI, **environment}, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=120, check=False)
        return done.returncode, done.stdout

    def test_every_program_is_named_by_a_page_and_by_this_test(self):
        pages = "".join(path.read_text() for path in REPORTS.glob("*.md"))
        self.assertGreater(len(list(REPORTS.glob("*.c"))), 5)
        for path in REPORTS.glob("*.c"):
            self.assertIn(f"`{path.name}`", pages)
            self.assertIn(f'"{path.stem}"', pathlib.Path(__file__).read_text())
        for path in REPORTS.glob("*.md"):
            self.assertIn("What would mend it" if path.stem not in ("README", "promises") else "# ", path.read_text())
            self.assertIn(path.name, (REPORTS / "README.md").read_text() + "README.md")

    def test_users_find_what_can_happen_to_them(self):
        """Wrong bytes under glibc, and libfabric 2.6: on the first screen, in doctor's page and tool, in the matrix."""
        root = REPORTS.parents[1]
        for report in ("heap-that-shrinks.md", "node-taken-twice.md"):
            issues = (root / "README.md").read_text().split("## Known issues")[1].split("\n## ")[0]
            self.assertIn(f"](docs/reports/{report})", issues)
            self.assertIn(f"](reports/{report})", (root / "docs/deadlock-matrix.md").read_text())
        self.assertIn("](reports/heap-that-shrinks.md)", (root / "docs/doctor.md").read_text())
        # The same figure in the report and in the matrix, which a run has filled in.
        wrong = re.search(r"\| \*\*(\d+) of 80 wrong\*\*", (root / "docs/deadlock-matrix.md").read_text())[1]
        self.assertIn(f"**{wrong}**", (REPORTS / "heap-that-shrinks.md").read_text())

    def test_rdmalloc_notifies_from_outside(self):
        program = self.compiled("where_malloc_purges")
        status, text = self.said([program], LD_PRELOAD=LIBRARY, RDMALLOC_DECAY_MS="0", RDMALLOC_PURGE="thread")
        inside, outside = map(int, re.findall(r"(\d+) times", text))
        self.assertEqual((status, inside), (0, 0), text)
        self.assertGreater(outside, 0)
        if MIMALLOC.exists():  # the control: the program sees who does not
            status, text = self.said([program], LD_PRELOAD=str(MIMALLOC), MIMALLOC_DECOMMIT_DELAY="1")
            self.assertEqual(status, 1, text)

    def test_a_malloc_that_purges_still_serves(self):
        library = self.compiled("purges_inside_malloc")
        self.assertEqual(self.said(["/bin/ls", "/"], LD_PRELOAD=str(library))[0], 0)

    @unittest.skipUnless(os.path.exists("/usr/include/rdma/fi_ext.h") and
                         os.path.exists("/usr/include/infiniband/verbs.h"), "no headers of libfabric or verbs")
    def test_what_needs_a_device_says_so(self):
        has_device = os.path.isdir("/sys/class/infiniband") and os.listdir("/sys/class/infiniband")
        for name, *arguments in (("pinned_after_close",), ("fabric_answers_wider",), ("node_taken_twice", "monitor"),
                                 ("node_taken_twice", "registers")):
            program = self.compiled(name)
            if not has_device:
                self.assertEqual(self.said([program, *arguments]), (77, "no verbs device\n"))

    @unittest.skipUnless(os.path.exists("/usr/include/ucp/api/ucp.h"), "no headers of UCX")
    def test_ucx_answers_as_asked_without_its_cache(self):
        program = self.compiled("ucx_answers_wider")
        status, text = self.said([program], UCX_RCACHE_ENABLE="n", UCX_TLS="tcp,self")
        self.assertEqual(status, 0, text)
        self.assertIn("asked for pages 8 to 23: mapped are 8 to 23", text)
        status, text = self.said([program], UCX_TLS="tcp,self")
        if "UCX 1.13." in text:  # as its page says
            self.assertEqual(status, 1, text)
            self.assertIn("asked for pages 8 to 23: mapped are 0 to 23", text)
            self.assertIn("asked for pages 20 to 20: mapped are 0 to 23", text)

    @needs_mpi
    def test_open_mpi_4_hears_of_a_heap_that_shrinks(self):
        program = self.compiled("heap_unheard")
        if version_of_open_mpi() != 4:
            self.skipTest("not Open MPI 4")
        status, text = self.said(["mpirun", "-n", "1", "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca",
                                  "opal_common_ofi_provider_include", "tcp;ofi_rxm", program])
        self.assertEqual(status, 0, text)
        self.assertIn("the heap shrank 40 times; Open MPI heard of 40", text)

    @needs_mpi
    def test_without_a_fabric_the_bytes_are_right(self):
        program = self.compiled("heap_that_shrinks")
        status, text = self.said(["mpirun", "-n", "2", program, "20"])
        self.assertEqual(status, 0, text)
        self.assertIn("20 broadcasts, 0 wrong; the heap shrank", text)


if __name__ == "__main__":
    unittest.main()
