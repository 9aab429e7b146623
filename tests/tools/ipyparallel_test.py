#!/usr/bin/python3
"""IPython Parallel's engines through MPI with the preload: as root, without ssh, once doctor's lines
were obeyed; before, its engines never come and nothing says why.

    ipyparallel_test.py RDMALLOC LIBRDMALLOC_SO MODULE_FOLDER

All its processes are in a namespace that ends with the first of them. Seen to fail: with mpirun in
place of rdmalloc run, with doctor's lines not obeyed (no engines).
"""
import glob
import os
import shutil
import sys
import tempfile
import unittest

import launching
from launching import call, environment, script

TOOL, LIBRARY, MODULE = (os.path.abspath(path) for path in sys.argv[1:])
PYTHON = "/usr/bin/python3"
MPIRUN = shutil.which("mpirun.openmpi") or shutil.which("mpirun")

# What a user writes, but for the limits.
SESSION = """
import sys
import ipyparallel
from traitlets.config import Config

tool, mpirun, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])
config = Config()
config.MPILauncher.mpi_cmd = [tool, "run", "--", mpirun]

def broadcast():
    from mpi4py import MPI
    import rdmalloc
    world = MPI.COMM_WORLD
    right = 0
    for size in (100, 4096, 258048, 1 << 20, 4 << 20):
        expected = bytes(range(256)) * (size // 256 + 1)
        for root in range(world.size):
            buffer = bytearray(expected) if world.rank == root else bytearray(len(expected))
            world.Bcast(buffer, root=root)
            right += buffer == expected
    seen = rdmalloc.stats()
    return [world.rank, world.size, right, seen["rank"], seen["ranks"], seen["mapped_bytes"] > 4 << 20]

cluster = ipyparallel.Cluster(engine_launcher_class="mpi", n=2, config=config,
                              engine_timeout=seconds)
engines = cluster.start_and_connect_sync()
for one in sorted(engines[:].apply_sync(broadcast)):
    print(*one)
cluster.stop_cluster_sync()
"""

# As doctor_job_test.py takes ssh away: by a layer over the folder that has it.
WITHOUT_SSH = """
mount -t tmpfs tmpfs /mnt && mkdir /mnt/over /mnt/work
mount -t overlay overlay -o lowerdir=/usr/bin,upperdir=/mnt/over,workdir=/mnt/work /usr/bin
rm -f /usr/bin/ssh /usr/bin/rsh
if $python session.py $tool $mpirun 5; then echo "it starts anyway"; exit 1; fi
"""
SCRIPT = """
set -eu
tool=$1 mpirun=$2 python=$3
{before}
$tool doctor -- $mpirun -n 2 $python -m ipyparallel.engine > found.txt && status=0 || status=$?
sed -n 's/^ *fix: \\(export OMPI.*\\)/\\1/p' found.txt > mend.sh
cat mend.sh
. ./mend.sh
$python session.py $tool $mpirun 120
"""


class Engines(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="rdmalloc-ipyparallel-", ignore_cleanup_errors=True)
        self.addCleanup(holder.cleanup)
        self.folder = holder.name
        script(self.folder + "/session.py", SESSION)

    def run_script(self, before, *around, tool=TOOL, module=MODULE, **more):
        # Ranks that wait give the processor away: there are more of them than cores.
        env = environment(HOME=self.folder, IPYTHONDIR=self.folder + "/ipython", PYTHONPATH=module,
                          PYTHONDONTWRITEBYTECODE="1",
                          JUPYTER_RUNTIME_DIR=self.folder + "/jupyter",
                          OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                          **more)
        return call([*around, "sh", "-c", SCRIPT.format(before=before), "sh", tool, MPIRUN, PYTHON],
                    env=env, cwd=self.folder)

    def check(self, done):
        self.assertEqual(done.returncode, 0, done)
        # Rank, ranks, broadcasts that were right, and the same by rdmalloc.
        self.assertEqual(done.stdout.splitlines()[-2:], ["0 2 10 0 2 True", "1 2 10 1 2 True"], done)

    @unittest.skipUnless(os.geteuid() == 0, "SKIP: takes ssh away from root")
    def test_as_root_without_ssh(self):
        done = self.run_script(WITHOUT_SSH, "unshare", "--mount", "--pid", "--fork", "--mount-proc",
                               "--kill-child")
        if "mount:" in done.stderr or "unshare:" in done.stderr:
            self.skipTest("SKIP: nothing can be mounted here: " + done.stderr)
        self.check(done)
        for line in ("export OMPI_ALLOW_RUN_AS_ROOT=1", "export OMPI_MCA_plm=isolated"):
            self.assertIn(line, done.stdout)

    def test_as_a_user(self):
        if os.geteuid() != 0:
            return self.check(self.run_script(""))
        # The build may lie where no other user comes.
        mine = self.folder + "/mine"
        shutil.copytree(MODULE, mine)
        tool = launching.copy_of_tool(TOOL, mine)
        for name in [self.folder, *glob.glob(self.folder + "/**", recursive=True)]:
            os.chown(name, launching.NOBODY, launching.NOBODY)
        done = self.run_script("", "setpriv", f"--reuid={launching.NOBODY}", f"--regid={launching.NOBODY}",
                               "--clear-groups", tool=tool, module=mine, LD_LIBRARY_PATH=mine)
        self.check(done)
        self.assertNotIn("OMPI_ALLOW_RUN_AS_ROOT", done.stdout)


if __name__ == "__main__":
    missing = [name for name in ("ipyparallel", "mpi4py")
               if call([PYTHON, "-c", "import " + name]).returncode != 0]
    if missing or not launching.is_open_mpi(MPIRUN):
        print("SKIP: needs Open MPI, python3-ipyparallel and python3-mpi4py: tools/setup.sh test bench")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "-v"])
