#!/usr/bin/python3
"""Every command of README.md, docs/quick-start/ and docs/troubleshooting.md is run, every program compiled.

    quick_start_test.py BUILD SCRATCH

rdmalloc is installed to SCRATCH/prefix, which stands for the pages' /usr/local. Each page has an empty folder and
runs its blocks in order (pages.py says how they are marked), with what this machine needs of Open MPI in the
environment and nothing else. The program for verbs runs to "no device"; on one the lab runs it (lab.cache_*). Docker's commands are parsed by its client and their inner commands run in a root like a
container's (tests/tools/container.sh); of Kubernetes' file the command is run so and the fields are read
by kubectl, without a cluster. Of README.md's way to install the packages are only asked for, it is configured, and the
build is the one that is here (tools/bare-debian.sh has run it as a whole); ./run and ./test say their --help, which begins nothing. What is not installed here is SKIPped by name.

Seen to fail: with `rdmalloc jobs` for `job`, with "3 wrong bytes" to be shown, with a function misspelt in
ucx.md and the library in mpich.md, with `docker run --memlock`, with `mountpat:` and `"runn"` in pod.yaml, with a
page of 75 lines, with `tools/setup.sh built`, `BUILD_BENHC` and `--prefx` in README.md.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "tools"))

import launching  # noqa: E402
import pages  # noqa: E402
import slurm_cluster  # noqa: E402

BUILD, SCRATCH = map(os.path.abspath, sys.argv[1:3])
PREFIX = os.path.join(SCRATCH, "prefix")
PAGES = sorted(os.listdir(os.path.join(ROOT, "docs", "quick-start")))
SCREEN_LINES = 60  # what a page may have: a screen of an editor
BLOCK_SECONDS = 120


def page(name):
    with open(os.path.join(ROOT, "docs", name), encoding="utf-8") as file:
        return file.read()


def named_programs(folder, **programs):
    """A folder for the head of PATH in which a name means that program. Hydra looks beside itself for its
    proxy, so these are no links."""
    os.makedirs(folder)
    for name, path in programs.items():
        launching.script(os.path.join(folder, name), f'#!/bin/sh\nexec {path} "$@"\n')
    return folder


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        os.makedirs(SCRATCH)
        subprocess.run(["cmake", "--install", BUILD, "--prefix", PREFIX], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "DESTDIR": ""})
        # Debian's own Python, which has mpi4py, and MPICH where a page means that.
        cls.ours = named_programs(SCRATCH + "/bin-ours", python3="/usr/bin/python3")
        cls.mpich = {name: shutil.which(path) for name, path in (
            ("mpicc", "mpicc.mpich"), ("mpiexec", "mpiexec.hydra"))}
        cls.as_mpich = named_programs(SCRATCH + "/bin-mpich", **{
            name: path for name, path in cls.mpich.items() if path})

    def env(self, *first):
        path = ":".join([*first, self.ours, PREFIX + "/bin", os.environ["PATH"], "/usr/sbin"])
        return launching.open_mpi(PATH=path, PKG_CONFIG_PATH=PREFIX + "/lib/pkgconfig",
                                  LD_LIBRARY_PATH=PREFIX + "/lib", LC_ALL="C.UTF-8",
                                  PYTHONUNBUFFERED=None, PYTHONPATH=None)

    def run_block(self, block, folder, env):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.here(block.text)], cwd=folder, env=env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            timeout=BLOCK_SECONDS, errors="replace")
        self.assertIn(done.returncode, block.statuses, f"line {block.line}:\n{block.text}{done.stdout}")
        for line in block.shows:
            self.assertTrue(pages.is_shown(line, done.stdout),
                            f"line {block.line}: {line!r} is not shown:\n{done.stdout}")

    @staticmethod
    def here(text):
        return text.replace("/usr/local", PREFIX)

    def run_page(self, name):
        folder = os.path.join(SCRATCH, os.path.basename(name).removesuffix(".md"))
        os.makedirs(folder)
        os.symlink(os.path.join(ROOT, "examples"), folder + "/examples")
        blocks = pages.blocks_of(page(name))
        self.assertTrue([block for block in blocks if block.language == "sh"], "no command")
        for block in blocks:
            if block.language != "sh":
                launching.script(os.path.join(folder, block.file), self.here(block.text))
            else:
                with self.subTest(page=name, line=block.line):
                    getattr(self, "run_" + (block.need or "plain"))(block, folder)

    def run_plain(self, block, folder):
        if re.search(r"\bmpi(run|cc)\b", block.text) and not launching.is_open_mpi(
                shutil.which("mpirun", path=self.env()["PATH"])):
            self.skip("Open MPI is not installed: apt install openmpi-bin libopenmpi-dev")
        self.run_block(block, folder, self.env())

    def run_mpich(self, block, folder):
        if None in self.mpich.values():
            self.skip("MPICH is not installed: apt install mpich libmpich-dev")
        self.run_block(block, folder, self.env(self.as_mpich))

    def run_slurm(self, block, folder):
        missing = slurm_cluster.missing()
        if missing or not shutil.which("mpicc.mpich"):
            self.skip(missing or "MPICH is not installed: apt install libmpich-dev")
        if not hasattr(self, "cluster"):
            type(self).cluster = slurm_cluster.Cluster()
            self.addClassCleanup(self.cluster.stop)
            self.cluster.start()
        self.run_block(block, folder, {**self.env(), "SLURM_CONF": self.cluster.env()["SLURM_CONF"]})

    def run_docker(self, block, folder):
        client = shutil.which("docker")
        if not client:
            self.skip("Docker's client is not installed: its options are not looked at")
        # Everything is parsed before the daemon is spoken to: here there is to be none.
        for command in re.split(r"\n(?=docker )", block.text):
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, text=True, stdin=subprocess.DEVNULL, check=False,
                env={**self.env(), "DOCKER_HOST": "unix:///nowhere/docker.sock", "DOCKER_BUILDKIT": "0"},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=BLOCK_SECONDS)
            self.assertRegex(done.stdout, r"(?i)cannot connect|unknown server OS: \n", command)

    def run_kubernetes(self, block, folder):
        self.assertIn("apply -f pod.yaml", block.text)
        if not shutil.which("kubectl"):
            self.skip("kubectl is not installed: the fields of pod.yaml are not looked at")
        done = subprocess.run(["kubectl", "set", "env", "--local", "-f", "pod.yaml", "TRIED=1", "-o", "json"],
                              cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False, timeout=BLOCK_SECONDS)
        self.assertEqual(done.returncode, 0, done.stdout)
        pod = json.loads(done.stdout)
        [one] = pod["spec"]["containers"]
        # What a field of another name would have lost.
        self.assertEqual(one["resources"]["limits"], {"memory": "4Gi", "rdma/hca": "1"})
        self.assertEqual(one["securityContext"]["capabilities"]["add"], ["IPC_LOCK"])
        self.assertEqual(one["volumeMounts"][0]["mountPath"], "/dev/shm")
        self.assertEqual(pod["spec"]["volumes"][0]["emptyDir"], {"medium": "Memory", "sizeLimit": "1Gi"})
        self.assertEqual(len(one["env"]), 4)

    def in_root(self, *words):
        done = subprocess.run(words, cwd=ROOT, env=self.env(), text=True, stdin=subprocess.DEVNULL, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=BLOCK_SECONDS)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}")
        return done.stdout

    def run_install(self, block, _):
        setup, configure, rest = block.text.strip().split("\n")
        build, install, ldconfig = rest.split(" && ")
        name, *purposes = setup.split()
        self.in_root(name, "--print", *purposes)
        # Word by word: the folder of one may lie in that of the other.
        words = [{"build/install": SCRATCH + "/install"}.get(word, word) for word in configure.split()]
        self.assertNotIn("were not used", self.in_root(*words, "--log-level=WARNING"))
        self.assertEqual(build, "cmake --build build/install")
        self.in_root(*[{"build/install": BUILD, "/usr/local": PREFIX}.get(word, word) for word in install.split()])
        self.assertEqual(ldconfig, "ldconfig")

    def run_package(self, block, _):
        """Not run here but by the test `package`; that it is the same, and that there are such packages."""
        build, install = block.text.strip().split("\n")
        with open(ROOT + "/tests/package/package_test.py", encoding="utf-8") as file:
            self.assertIn(", ".join(f'"{word}"' for word in build.split()), file.read())
        with open(ROOT + "/debian/control", encoding="utf-8") as file:
            packages = re.findall(r"^Package: (.*)$", file.read(), flags=re.M)
        self.assertLessEqual(set(re.findall(r"\.\./([\w-]+)_\*\.deb", install)), set(packages))

    def run_repository(self, block, _):
        for command in block.text.split():
            self.assertIn(command, self.in_root(command, "--help"))

    @staticmethod
    def skip(why):
        print("SKIP:", why)
        raise unittest.SkipTest(why)

    def test_pages_fit_a_screen(self):
        self.assertEqual([(name, lines) for name in PAGES
                          if (lines := len(page("quick-start/" + name).splitlines())) > SCREEN_LINES], [])

    def test_readme(self):
        self.run_page("../README.md")

    def test_troubleshooting(self):
        self.run_page("troubleshooting.md")

    def test_in_a_root_like_a_containers(self):
        """What containers.md runs inside, by docker and by Kubernetes, with a /dev/shm as it says."""
        text = page("quick-start/containers.md")
        inner = re.search(r"job sh -c '\n(.*?)'", text, flags=re.S)[1]
        command = json.loads(re.search(r"command: (\[.*\])", text)[1])
        exports = " ".join(map("=".join, re.findall(r'name: (\w+), value: "?(\w+)"?', text)))
        self.assertEqual(re.search(r"export (.*)", inner)[1], exports)
        tools = os.path.join(SCRATCH, "containers-root")
        os.makedirs(tools)
        shutil.copytree(PREFIX, tools + "/prefix", symlinks=True)
        done = subprocess.run(["mpicc", "-O2", ROOT + "/examples/mpi_broadcast.c", "-o",
                               tools + "/prefix/bin/broadcast"], check=False, env=self.env(),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) \
            if shutil.which("mpicc") else None
        if done is None or not launching.is_open_mpi(shutil.which("mpirun")):
            self.skip("Open MPI is not installed: apt install openmpi-bin libopenmpi-dev")
        self.assertEqual(done.returncode, 0, done.stdout)
        launching.script(tools + "/inside", "export PATH=/mine/prefix/bin:$PATH\n" + inner)
        launching.script(tools + "/pod", f"export PATH=/mine/prefix/bin:$PATH {exports}\n"
                         f"exec {' '.join(command)}\n")
        for inside in ("inside", "pod"):
            done = subprocess.run(
                ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
                 ROOT + "/tests/tools/container.sh", "/", tools, "1g", "root",
                 "OMPI_MCA_rmaps_base_oversubscribe=1", "bash", "/mine/" + inside],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                stdin=subprocess.DEVNULL, timeout=BLOCK_SECONDS)
            if re.search(r"(?m)^(unshare|mount):", done.stdout):
                self.skip("roots can't be mounted here: " + done.stdout.strip())
            self.assertEqual(done.returncode, 0, done.stdout)
            for rank in (0, 1):
                self.assertIn(f"rank {rank}: 0 wrong bytes", done.stdout)


def add(name):
    def test(self):
        self.run_page("quick-start/" + name)
    setattr(Pages, "test_" + re.sub(r"\W", "_", name.removesuffix(".md")), test)


for NAME in PAGES:
    add(NAME)

if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[3:]])
