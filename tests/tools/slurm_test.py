#!/usr/bin/python3
"""rdmalloc run under a real Slurm: munge, a controller and two nodes on loopback, started here.

    slurm_test.py RDMALLOC LIBRDMALLOC_SO BCAST_WORKER BCAST_WORKER_MPICH

A worker is ./run's, or "none". Seen to fail: with
LD_PRELOAD left in srun's environment (test_own_preload), with settings left out
of a list (test_lists), without --export (the launcher is preloaded, and lists leave us out).
"""
import json
import os
import re
import sys
import time
import unittest

import launching
from launching import call, script
from slurm_cluster import Cluster, missing

TOOL, LIBRARY, *WORKERS = sys.argv[1:]
OURS = os.path.realpath(LIBRARY)
# Of a rank: whether it has us, whether its parent, slurmstepd, has.
LOOK = ("for who in self $PPID; do grep -q librdmalloc /proc/$who/maps && echo with || echo without;"
        " done | xargs echo $RDMALLOC_DECAY_MS")
# How srun gives each MPI of Debian's its ranks. PMIx of two nodes wants two machines.
PMI = (["--mpi=pmix", "-N", "1", "-n", "2"], ["--mpi=pmi2", "-N", "2", "-n", "2"])
BROADCASTS = ["--patterns", "fresh,reused", "--sizes", "4096,262144", "--scale", "0.05"]


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()

    def run_tool(self, *words, **more):
        done = call([TOOL, "run", "--library", OURS, *words], env=self.cluster.env(**more))
        self.assertNotIn("rdmalloc:", done.stderr)
        return done

    def test_ranks_of_both_nodes_have_us_and_the_launcher_has_not(self):
        done = self.run_tool("--set", "DECAY_MS=7", "--", "srun", "-N", "2", "-n", "2", "sh", "-c",
                             LOOK + "; echo $SLURM_NODEID")
        self.assertEqual(sorted(done.stdout.split("\n")), ["", "0", "1", *["7 with without"] * 2],
                         done)

    def test_own_preload(self):
        other = os.path.join(self.cluster.folder, "other.so")
        self.assertEqual(call(["cc", "-shared", "-x", "c", "-o", other, "/dev/null"]).returncode, 0)
        os.chmod(other, 0o755)
        look = ["-n", "1", "sh", "-c", "echo $LD_PRELOAD"]
        done = self.run_tool("--", "srun", *look, LD_PRELOAD=other)
        self.assertEqual(done.stdout, f"{OURS}:{other}\n", done)
        done = self.run_tool("--", "srun", f"--export=ALL,LD_PRELOAD={other}", *look)
        self.assertEqual(done.stdout, f"{OURS}:{other}\n", done)

    def test_lists(self):
        for words in (["--export=NONE"], ["--export", "HOME"]):
            done = self.run_tool("--set", "DECAY_MS=7", "--", "srun", *words, "-n", "1", "/bin/sh",
                                 "-c", f"PATH={os.environ['PATH']}; {LOOK}; echo $KEPT",
                                 KEPT="nothing")
            self.assertEqual(done.stdout, "7 with without\n\n", done)
        commas = self.run_tool("--set", "FAULT=decommit:1,commit:9000", "--", "srun", "-n", "1",
                               "printenv", "RDMALLOC_FAULT")
        self.assertEqual(commas.stdout, "decommit:1,commit:9000\n", commas)

    def test_components_of_a_heterogeneous_job(self):
        # Real components: one of either node.
        look = ["-n", "1", "sh", "-c", LOOK]
        for own in ([], ["--export=ALL,X=1"]):
            done = self.run_tool("--", "srun", *look, ":", *own, *look)
            self.assertEqual(sorted(done.stdout.split("\n")), ["", *["with without"] * 2], done)

    def test_batch_jobs(self):
        folder = self.cluster.folder
        job = script(folder + "/job",
                     f"#!/bin/sh\n#SBATCH -N 2 -n 2 -o {folder}/of-the-job\n"
                     f"'{os.path.abspath(TOOL)}' run --purge manual -- srun sh -c '{LOOK}'\n")
        done = call(["sbatch", "--wait", job], env=self.cluster.env())
        self.assertEqual(done.returncode, 0, done)
        with open(folder + "/of-the-job", encoding="utf-8") as output:
            self.assertEqual(re.findall("with.*", output.read()), ["with without"] * 2)
        # The other way round the script and its steps have us, slurmstepd still not.
        inner = script(folder + "/inner", f"#!/bin/sh\n#SBATCH -n 1 -o {folder}/of-inner\n{LOOK}\n"
                       f"srun sh -c '{LOOK}'\n")
        done = self.run_tool("--", "sbatch", "--wait", inner)
        self.assertEqual(done.returncode, 0, done)
        with open(folder + "/of-inner", encoding="utf-8") as output:
            self.assertEqual(re.findall("with.*", output.read()), ["with without"] * 2)

    def test_a_job_as_a_whole(self):
        place = self.cluster.folder + "/statistics"
        # Rank 2 has most, and rank 3 is killed, when the others have written.
        done = call([TOOL, "run", "--library", OURS, f"--stats={place}", "--", "srun", "--wait=0", "-N",
                     "2", "-n", "4", "/usr/bin/python3", "-c", f"""
import glob, os, signal, time
rank = os.environ["SLURM_PROCID"]
kept = [bytes(100000) for _ in range(3000 if rank == "2" else 10)]
written = lambda: sum(os.path.getsize(name) > 0 for name in glob.glob("{place}/*.json"))
while rank == "3":
    if written() == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
"""], env=self.cluster.env())
        self.assertEqual(done.returncode, 137, done)
        done = call([TOOL, "job", "--json", place])
        self.assertEqual(done.returncode, 1, done)
        seen = json.loads(done.stdout)
        self.assertEqual((seen["ranks"], seen["missing"]), (4, []))
        self.assertEqual((seen["rows"][0]["rank"], seen["rows"][0]["off_by"]), (2, "heap"))
        self.assertEqual(sorted(row["rank"] for row in seen["rows"]), [0, 1, 2])
        self.assertEqual({one["rank"] for one in seen["died"]}, {3})

    def check_broadcasts(self, text, served_by, errors=""):
        """What a worker said: every byte right, at every rank by this malloc."""
        lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        self.assertTrue(lines, f"the worker wrote {text!r} and {errors}")
        self.assertEqual(lines[0]["type"], "hello", text)
        self.assertEqual([served_by in one for one in lines[0]["malloc"]], [True] * 2, lines[0])
        rows = [line for line in lines if line["type"] == "row"]
        self.assertEqual(len(rows), 4)
        for row in rows:
            self.assertEqual(row["wrong_bytes"], 0)
            self.assertTrue(row["bcast_us"])
        self.assertEqual(lines[-1]["type"], "end")

    def workers(self):
        found = [(worker, pmi) for worker, pmi in zip(WORKERS, PMI) if worker != "none"]
        if not found:
            self.skipTest("SKIP: built without MPI: apt install libopenmpi-dev libmpich-dev")
        return found

    def test_the_comparison_by_srun(self):
        for worker, pmi in self.workers():
            words = ["srun", *pmi, worker, *BROADCASTS]
            for done, malloc in ((call(words, env=self.cluster.env()), "libc"),
                                 (self.run_tool("--", *words), "librdmalloc")):
                self.check_broadcasts(done.stdout, malloc, done.stderr)

    def test_the_comparison_by_sbatch(self):
        folder = self.cluster.folder
        for number, (worker, pmi) in enumerate(self.workers()):
            launch = " ".join(["srun", *pmi, worker, *BROADCASTS])
            place = f"{folder}/batch-{number}"
            job = script(place + ".sh", f"""#!/bin/bash
#SBATCH --nodes={pmi[2]} --ntasks=2 --output={place}.out
{launch} >{place}.glibc
'{os.path.abspath(TOOL)}' run --stats={place}.stats.$SLURM_JOB_ID -- {launch} >{place}.rdmalloc
'{os.path.abspath(TOOL)}' job {place}.stats.$SLURM_JOB_ID
""")
            done = call(["sbatch", "--wait", job], env=self.cluster.env())
            with open(place + ".out", encoding="utf-8") as output:
                said = output.read()
            self.assertEqual(done.returncode, 0, said)
            self.assertIn("2 of 2 ranks", said)
            for name, served_by in (("glibc", "libc"), ("rdmalloc", "librdmalloc")):
                with open(f"{place}.{name}", encoding="utf-8") as output:
                    self.check_broadcasts(output.read(), served_by)

    def test_status_and_errors_are_sruns(self):
        for command in ("exit 7", "kill -SEGV $$"):
            words = ["srun", "-n", "1", "sh", "-c", command]
            alone = call(words, env=self.cluster.env())
            self.assertEqual(self.run_tool("--", *words).returncode, alone.returncode)
            self.assertNotEqual(alone.returncode, 0)


if __name__ == "__main__":
    if missing():
        print("SKIP:", missing())
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "-v"])
