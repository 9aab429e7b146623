#!/usr/bin/python3
"""rdmalloc doctor: every check finds what it is for, and nothing where there is nothing.

    doctor_test.py RDMALLOC MPI_PROGRAM

Seen to fail, besides: with an empty list of missing programs, with the mpi check always good, without the
look at pml, with page cache counted,
with the smallest limit in place of that of which least is left, with slots of an allocation
uncounted, -N unread, files of parameters unread, with any value of OMPI_ALLOW_RUN_AS_ROOT taken for 1 (mpirun refuses), with a section out of docs/doctor.md.

The kernel's files are made up below a folder (--root); limits, rights, mounts, filters and launchers
are real ones. Each check was seen to fail this test when it found always the one, and always the other.
"""
import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
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


class Answers(Case):
    THP = "/sys/kernel/mm/transparent_hugepage/enabled"
    GOOD = {"/dev/shm": None, THP: "always [madvise] never"}

    def test_exit_status_and_text(self):
        def doctor(files):
            return call([TOOL, "doctor", "--root", self.root(files)], env=launching.open_mpi())
        done = doctor(self.GOOD)
        self.assertEqual((done.returncode, done.stdout.split("\n")[-2]), (0, "0 bad, 0 warnings"), done)
        self.assertRegex(done.stdout, r"(?m)^good     thp            transparent huge pages: madvise$")
        done = doctor({**self.GOOD, self.THP: "always madvise [never]"})
        self.assertEqual((done.returncode, done.stdout.split("\n")[-2]), (1, "0 bad, 1 warnings"), done)
        self.assertRegex(done.stdout, r"(?m)^warning  thp .*\n +why: .*\n +fix: echo madvise")
        done = doctor({"/dev/shm": None})  # a note: nothing is wrong, so that nothing is called a fix
        self.assertEqual((done.returncode, "fix:" in done.stdout), (0, False), done)
        self.assertRegex(done.stdout, r"(?m)^note     thp .*\n +why: .*\n +if needed: mount -t sysfs")
        done = doctor({self.THP: "always madvise [never]"})
        self.assertEqual((done.returncode, done.stdout.split("\n")[-2]), (2, "1 bad, 1 warnings"), done)
        self.assertRegex(done.stdout, r"(?m)^bad      shm ")

    def test_every_finding_has_a_section_in_the_docs(self):
        done = call([TOOL, "doctor", "--root", self.root({})], env=launching.open_mpi())
        self.assertIn("docs/doctor.md has a section", done.stdout)
        with open(PAGE, encoding="utf-8") as page:
            sections = re.findall(r"^## (\S+)$", page.read(), flags=re.M)
        found = [one["id"] for one in self.look(files=self.GOOD).values()]
        self.assertEqual(sections, found)

    def test_could_not_look(self):
        self.assertEqual(call([TOOL, "doctor", "--nonsense"]).returncode, 3)
        done = call([TOOL, "doctor", "--root", self.folder + "/nowhere"])
        self.assertEqual((done.returncode, "no such folder" in done.stderr), (3, True), done)
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([TOOL, "doctor"], stdout=full, stderr=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 3, done)


class Limits(Case):
    def test_memlock(self):
        def limits(soft, hard, **more):
            return {"/proc/self/limits": f"Max cpu time  1  1  s\nMax locked memory  {soft}  {hard} "
                                         "bytes\nMax address space  2  2  bytes\n", **more}
        self.check("memlock", "good", ["not limited"], files=limits("unlimited", "unlimited"))
        self.check("memlock", "good", ["2097152 KiB"], files=limits(2 << 30, 2 << 30))
        self.check("memlock", "warning", ["64 KiB", "limits.d"], files=limits(65536, 65536))
        self.check("memlock", "warning", ["ulimit -l unlimited"], files=limits(65536, "unlimited"))
        # With a device it is no question of time.
        device = {"/sys/class/infiniband/mlx5_0/x": ""}
        self.check("memlock", "bad", ["ENOMEM"], files=limits(65536, 65536, **device))
        self.check("memlock", "bad", ["--ulimit memlock=-1"],
                   files=limits(65536, 65536, **device, **{"/.dockerenv": ""}))
        # CAP_IPC_LOCK is bit 14.
        for mask, severity in (("0000000000004000", "good"), ("0000000000003fff", "warning")):
            self.check("memlock", severity, [], files=limits(
                65536, 65536, **{"/proc/self/status": f"Name: x\nCapEff:\t{mask}\n"}))

    @needs_root
    def test_memlock_of_real_processes(self):
        small = ["prlimit", "--memlock=65536:65536"]
        self.check("memlock", "good", ["64 KiB", "CAP_IPC_LOCK"], before=small)
        with_library, self.tool = self.copied_tool()
        self.check("memlock", "warning", ["64 KiB"], before=[*small, *AS_NOBODY, *with_library])
        self.check("memlock", "warning", ["64 KiB"],
                   before=[*small, "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"])

    def test_memory_of_cgroups(self):
        top, job = "/sys/fs/cgroup", "/sys/fs/cgroup/job"
        two = {"/proc/self/cgroup": "0::/job/step\n", job + "/step/memory.max": "max\n"}
        self.check("cgroup.memory", "good", ["no cgroup"], files=two)
        self.check("cgroup.memory", "good", ["100 MiB"], files={
            **two, job + "/memory.max": str(100 << 20), job + "/memory.current": str(80 << 20)})
        full = {**two, job + "/memory.max": str(100 << 20), job + "/memory.current": str(90 << 20)}
        self.check("cgroup.memory", "warning", [job + "/memory.max", "100 MiB, 90 MiB"], files=full)
        self.check("cgroup.memory", "warning", ["docker run --memory"],
                   files={**full, "/.dockerenv": ""})
        # Page cache is no use of it that counts.
        stat = f"file {85 << 20}\nanon {5 << 20}\n"
        self.check("cgroup.memory", "good", ["100 MiB, 5 MiB"], files={**full, job + "/memory.stat": stat})
        # Of the limits on the way up that of which least is left.
        step = {"/proc/self/cgroup": "0::/job/step\n", job + "/step/memory.max": str(100 << 20),
                job + "/step/memory.stat": f"anon {50 << 20}\n", job + "/memory.max": str(200 << 20)}
        for anon, severity, name in ((190, "warning", job + "/memory.max"), (120, "good", job + "/step/memory.max")):
            self.check("cgroup.memory", severity, [name], files={**step, job + "/memory.stat": f"anon {anon << 20}\n"})
        # Version 1; without a namespace the path is the host's, and the mount is ours.
        one = {"/proc/self/cgroup": "4:memory,hugetlb:/docker/0123\n0::/\n",
               top + "/memory/memory.limit_in_bytes": str(64 << 20)}
        used = top + "/memory/memory.usage_in_bytes"
        self.check("cgroup.memory", "good", ["64 MiB"], files={**one, used: "0"})
        self.check("cgroup.memory", "warning", ["memory.limit_in_bytes"],
                   files={**one, used: str(63 << 20)})
        self.check("cgroup.memory", "good", ["64 MiB, 1 MiB"], files={
            **one, used: str(63 << 20), top + "/memory/memory.stat": f"rss 0\ntotal_rss {1 << 20}\n"})
        self.check("cgroup.memory", "good", ["no cgroup"], files={
            **one, top + "/memory/memory.limit_in_bytes": "9223372036854771712", used: "0"})

    def test_groups_without_proc(self):
        for files, severity in (({}, "note"), ({"/proc/self/status": ""}, "good")):
            for name in ("cgroup.memory", "cgroup.cpu", "cgroup.pids"):
                self.check(name, severity, ["/proc is not mounted"] if severity == "note" else ["no cgroup"], files=files)

    def test_processors_of_cgroups(self):
        two = {"/proc/self/cgroup": "0::/job\n"}
        pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
        for text, severity in (("max 100000", "good"), ("100000 100000", "good"),
                               ("50000 100000", "warning")):
            self.check("cgroup.cpu", severity, [], before=pinned,
                       files={**two, "/sys/fs/cgroup/job/cpu.max": text})
        for value, severity in (("-1", "good"), ("100000", "good"), ("50000", "warning")):
            self.check("cgroup.cpu", severity, [], before=pinned, files={
                "/proc/self/cgroup": "1:cpu,cpuacct:/\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": value})

    def test_threads_of_cgroups(self):
        at = "/sys/fs/cgroup/pids."
        for most, severity in (("max", "good"), ("200", "good"), ("163", "warning")):
            self.check("cgroup.pids", severity, [] if most == "max" else [most, "100 exist"],
                       files={"/proc/self/cgroup": "0::/\n", at + "max": most, at + "current": "100"})

    def test_mappings(self):
        for value, severity in (("65530", "good"), ("1048576", "good"), ("65529", "warning")):
            self.check("max_map_count", severity, [value],
                       files={"/proc/sys/vm/max_map_count": value})


class Memory(Case):
    def test_transparent_huge_pages(self):
        def files(text):
            return {"/sys/kernel/mm/transparent_hugepage/enabled": text}
        for text, severity in (("always [madvise] never", "good"), ("[always] madvise never", "good"),
                               ("always madvise [never]", "warning")):
            self.check("thp", severity, [], files=files(text))
        self.check("thp", "note", ["not there"], files={})
        self.check("thp", "good", ["RDMALLOC_HUGE"], files=files("always madvise [never]"),
                   env=environment(RDMALLOC_HUGE="never"))
        four = self.launcher("mpirun", "mpirun (Open MPI) 4.1.4")
        self.check("thp", "good", ["RDMALLOC_HUGE"], four, "-x", "RDMALLOC_HUGE=never", "true",
                   files=files("always madvise [never]"))
        self.check("huge_pages", "warning", ["no pool"], four, "-x", "RDMALLOC_HUGE=2M", "true", files={})

    def test_reserved_huge_pages(self):
        def files(total, free):
            return {"/proc/meminfo": f"MemTotal: 1 kB\nHugePages_Total: {total}\n"
                                     f"HugePages_Free: {free}\nHugepagesize: 2048 kB\n"}
        self.check("huge_pages", "good", ["no huge pages"], files=files(0, 0))
        self.check("huge_pages", "good", ["1000 huge", "8 are free"], files=files(1000, 8))
        self.check("huge_pages", "warning", ["echo 488 |"], files=files(1000, 512))
        for size, kib in (("2M", 2048), ("1G", 1048576)):
            pool = f"/sys/kernel/mm/hugepages/hugepages-{kib}kB/"
            wanted = environment(RDMALLOC_HUGE=size)
            self.check("huge_pages", "good", ["512 huge", size], env=wanted,
                       files={**files(1000, 512), pool + "free_hugepages": "512\n"})
            self.check("huge_pages", "warning", [pool + "nr_hugepages", "ordinary pages"],
                       env=wanted, files={pool + "free_hugepages": "0\n"})
            self.check("huge_pages", "warning", ["no pool"], env=wanted, files={})

    @needs_mounts
    def test_shared_memory(self):
        for size, severity in (("8m", "bad"), ("64m", "warning"), ("256m", "good")):
            root = self.root({"/dev/shm": None})
            words = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={size} shm '
                     f'{root}/dev/shm && "$0" doctor --json --root {root}', TOOL]
            report = json.loads(call(words).stdout)
            seen = [one for one in report["findings"] if one["id"] == "shm"]
            self.assertEqual(seen[0]["severity"], severity, seen)
        self.check("shm", "bad", ["mkdir -p /dev/shm"], files={})
        self.check("shm", "good", [], files={"/dev/shm": None})
        with_library, self.tool = self.copied_tool()
        self.check("shm", "bad", ["chmod 1777"], files={"/dev/shm": None},
                   before=[*AS_NOBODY, *with_library])


class Devices(Case):
    DEVICE = {"/sys/class/infiniband/mlx5_0/x": ""}
    NODE = {**DEVICE, "/dev/infiniband/uverbs0": ""}

    def test_infiniband(self):
        self.check("infiniband", "good", ["no RDMA device"], files={})
        self.check("infiniband", "bad", ["modprobe"], files=self.DEVICE)
        self.check("infiniband", "bad", ["--device=/dev/infiniband"],
                   files={**self.DEVICE, "/run/.containerenv": ""})
        self.check("infiniband", "bad", ["no uverbs"],
                   files={**self.DEVICE, "/dev/infiniband/rdma_cm": ""})
        self.check("infiniband", "good", ["mlx5_0", "uverbs0"], files=self.NODE)

    @needs_root
    def test_infiniband_of_others(self):
        with_library, self.tool = self.copied_tool()
        self.check("infiniband", "bad", ["chmod 666 /dev/infiniband/uverbs0", "Permission denied"],
                   files=self.NODE, before=[*AS_NOBODY, *with_library])


def forbid(numbers):
    """A seccomp filter by which these system calls fail with EPERM; all others are as before."""
    pr_set_no_new_privs, pr_set_seccomp, mode_filter = 38, 22, 2
    load, equal, give = 0x20, 0x15, 0x06
    allow, refuse = 0x7fff0000, 0x00050000 | 1
    lines = [struct.pack("HBBI", load, 0, 0, 0)]
    for number in numbers:
        lines += [struct.pack("HBBI", equal, 0, 1, number), struct.pack("HBBI", give, 0, 0, refuse)]
    lines.append(struct.pack("HBBI", give, 0, 0, allow))
    text = ctypes.create_string_buffer(b"".join(lines))
    program = ctypes.create_string_buffer(struct.pack("HP", len(lines), ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(pr_set_no_new_privs, 1, 0, 0, 0) or \
            libc.prctl(pr_set_seccomp, mode_filter, program, 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


class SystemCalls(Case):
    IO_URING_SETUP = 425
    USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]

    def test_under_a_filter(self):
        for name, number in (("io_uring", self.IO_URING_SETUP), ("userfaultfd", self.USERFAULTFD)):
            self.check(name, "note", ["not permitted", "seccomp"],
                       preexec_fn=lambda number=number: forbid([number]))
        self.check("userfaultfd", "warning", ["can't watch", "seccomp"],
                   env=environment(RDMALLOC_FOREIGN="watch", RDMALLOC_LOG="quiet"),
                   preexec_fn=lambda: forbid([self.USERFAULTFD]))
        self.check("userfaultfd", "warning", ["can't watch"], self.launcher("mpirun", "mpirun (Open MPI) 4.1.4"),
                   "-x", "RDMALLOC_FOREIGN=watch", "true", preexec_fn=lambda: forbid([self.USERFAULTFD]))

    def test_without_one(self):
        seen = self.look(preexec_fn=lambda: forbid([]))
        alone = self.look()
        for name in ("io_uring", "userfaultfd"):
            # What the kernel allows, an empty filter does.
            self.assertEqual(seen[name]["severity"], alone[name]["severity"])
        if IS_ROOT:
            self.assertEqual(alone["userfaultfd"]["severity"], "good", alone["userfaultfd"])
            # It needs no privilege.
            with_library, self.tool = self.copied_tool()
            self.check("userfaultfd", "good", [], before=[*AS_NOBODY, *with_library])


class Launchers(Case):
    def setUp(self):
        super().setUp()
        self.four = self.launcher("mpirun", "mpirun (Open MPI) 4.1.4")
        self.five = self.launcher("mpiexec", "mpiexec (Open MPI) 5.0.7")
        self.prrte = self.launcher("prterun", "prterun (PRRTE) 3.0.8")
        self.hydra = self.launcher("mpiexec.hydra", "HYDRA build details:")

    @needs_root
    def test_root(self):
        ours = {"OMPI_ALLOW_RUN_AS_ROOT": "1"}
        theirs = {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        for launcher in (self.four, self.five):
            self.check("root", "bad", ["export OMPI_ALLOW_RUN_AS_ROOT=1"], launcher, "a")
            self.check("root", "bad", ["only one of"], launcher, "a", env=environment(**ours))
            self.check("root", "bad", ["PRTE_", "does not read"], launcher, "a",
                       env=environment(**theirs))
            self.check("root", "good", [], launcher, "a",
                       env=environment(**ours, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))
            for value in ("yes", "0", "11"):
                self.check("root", "bad", [f"CONFIRM is {value}, and counts only as 1"], launcher, "a",
                           env=environment(**ours, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=value))
            self.check("root", "good", [], launcher, "--allow-run-as-root", "a")
            self.check("root", "bad", [], launcher, "a", "--allow-run-as-root")
        self.check("root", "bad", ["export PRTE_ALLOW"], self.prrte, "a", env=environment(**ours))
        self.check("root", "good", [], self.prrte, "a", env=environment(**theirs))
        self.check("root", "good", [], self.hydra, "a")
        # Without a command it is the mpirun in PATH.
        first = f"{os.path.dirname(self.four)}:{os.environ['PATH']}"
        self.check("root", "bad", ["4.1.4"], env=environment(PATH=first))
        with_library, self.tool = self.copied_tool()
        self.check("root", "good", ["not root"], self.four, "a", before=[*AS_NOBODY, *with_library])

    def test_remote_shell(self):
        lonely = os.path.join(self.folder, "lonely")
        os.mkdir(lonely)
        os.symlink("/bin/sh", lonely + "/sh")
        without = {"PATH": lonely}
        self.check("remote_shell", "bad", ["export OMPI_MCA_plm=isolated"], self.four, "a",
                   env=environment(**without))
        self.check("remote_shell", "good", [], self.five, "a", env=environment(**without))
        self.check("remote_shell", "good", [], self.hydra, "a", env=environment(**without))
        self.check("remote_shell", "good", ["isolated"], self.four, "a",
                   env=environment(**without, OMPI_MCA_plm="isolated"))
        self.check("remote_shell", "good", ["isolated"], self.four, "--mca", "plm", "isolated", "a",
                   env=environment(**without))
        self.check("remote_shell", "bad", [], self.four, "a",
                   env=environment(**without, SLURM_JOB_ID="1"))
        script(lonely + "/srun", "")
        self.check("remote_shell", "good", ["Slurm"], self.four, "a",
                   env=environment(**without, SLURM_JOB_ID="1"))
        script(lonely + "/rsh", "")
        self.check("remote_shell", "good", ["rsh"], self.four, "a", env=environment(**without))
        self.check("remote_shell", "bad", [], self.four, "--mca", "plm_rsh_agent", "ssh", "a",
                   env=environment(**without))

    def test_slots(self):
        def cores(*names):
            at = "/sys/devices/system/cpu/cpu{}/topology/"
            return {at.format(number) + file: text for number, name in enumerate(names)
                    for file, text in (("core_id", name[1:]), ("physical_package_id", name[:1]))}
        topology = cores("00", "00")
        ways = ((self.four, "OMPI_MCA_rmaps_base_oversubscribe=1"),
                (self.five, "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"))
        for launcher, variable in ways:
            # Two threads of one core are one slot.
            self.check("slots", "good", [], launcher, "-n", "1", "a", files=topology)
            self.check("slots", "good", ["no number of ranks", "each of 1 slot (cores)"], launcher, "a",
                       files=topology)
            self.check("slots", "bad", ["2 ranks", "export " + variable], launcher, "-np", "2", "a",
                       files=topology)
            self.check("slots", "bad", ["2 ranks"], launcher, "-n", "1", "a", ":", "-n", "1", "b",
                       files=topology)
            self.check("slots", "good", ["oversubscribing"], launcher, "-n", "2", "a",
                       files=topology, env=environment(**dict([variable.split("=")])))
            self.check("slots", "good", ["oversubscribing"], launcher, "-n", "2", "--map-by",
                       ":OVERSUBSCRIBE", "a", files=topology)
            self.check("slots", "good", ["other hosts"], launcher, "-n", "2", "--host", "b:8", "a",
                       files=topology)
            self.check("slots", "bad", [], launcher, "-n", "2", "a", "--oversubscribe",
                       files=topology)
        self.check("slots", "good", [], self.hydra, "-n", "2", "a", files=topology)
        self.check("slots", "good", [], self.four, "-n", "3", "a", files=cores("00", "01", "10"))
        self.check("slots", "bad", [], self.four, "-n", "4", "a", files=cores("00", "01", "10"))
        # Of an allocation, and not of this machine.
        nodes = script(os.path.join(self.folder, "nodes"), "a\na\nb\nb\n")
        for given in ({"SLURM_TASKS_PER_NODE": "1(x2),2", "SLURM_JOB_ID": "7"}, {"PBS_NODEFILE": nodes},
                      {"LSB_MCPU_HOSTS": "a 1 b 3"}):
            name = list(given)[0]
            self.check("slots", "good", ["4 slots", name], self.four, "-n", "4", "a", files=topology,
                       env=environment(**given))
            self.check("slots", "bad", ["5 ranks", name], self.four, "-n", "5", "a", files=topology,
                       env=environment(**given))
        self.check("slots", "bad", ["6 ranks"], self.four, "-N", "2", "a", files=topology,
                   env=environment(SLURM_TASKS_PER_NODE="1(x2),2", SLURM_JOB_ID="7"))
        for words in (["-N", "4"], ["-npernode", "4"], ["-N", "4", "-n", "2"]):
            self.check("slots", "bad", [], self.four, *words, "a", files=topology)
        self.check("slots", "good", [], self.four, "-pernode", "a", files=topology)
        self.check("slots", "bad", ["-3 ranks", "negative"], self.four, "-n", "-3", "a", files=topology)
        # Allowed by a file.
        home = os.path.join(self.folder, "home")
        os.makedirs(home + "/.openmpi")
        script(home + "/.openmpi/mca-params.conf", "rmaps_base_oversubscribe = 1\n")
        self.check("slots", "good", ["oversubscribing"], self.four, "-n", "2", "a", files=topology,
                   env=environment(HOME=home))
        # A cpuset takes cores away, an affinity does not.
        for controllers, file in (("0:", "cpuset.cpus.effective"),
                                  ("3:cpuset", "cpuset/cpuset.effective_cpus")):
            for allowed, severity in (("0-1", "good"), ("0,2", "good"), ("2", "bad")):
                self.check("slots", severity, [], self.four, "-n", "2", "a", files={
                    **cores("00", "01", "10"), "/proc/self/cgroup": controllers + ":/\n",
                    "/sys/fs/cgroup/" + file: allowed})
        self.check("slots", "good", [], self.four, "-n", "3", "a", files=cores("00", "01", "10"),
                   before=["taskset", "-c", str(min(os.sched_getaffinity(0)))])
        # Without the files each processor that is online is a core, whatever we may run on.
        count = os.sysconf("SC_NPROCESSORS_ONLN")
        self.check("slots", "good", [], self.four, "-n", str(count), "a", files={})
        self.check("slots", "bad", [], self.four, "-n", str(count + 1), "a", files={})


@needs_open_mpi
@needs_mounts
class Mends(Case):
    """What the real mpirun refuses, and that it starts once doctor's lines were obeyed."""

    # Without ssh and rsh, by a layer over the folder that has them.
    SCRIPT = r"""
set -eu
mount -t tmpfs tmpfs /mnt && mkdir /mnt/over /mnt/work
mount -t overlay overlay -o lowerdir=/usr/bin,upperdir=/mnt/over,workdir=/mnt/work /usr/bin
rm -f /usr/bin/ssh /usr/bin/rsh
mpirun=$1 tool=$2 ranks=$3
if $mpirun -n $ranks true > /dev/null 2>&1; then echo "it starts anyway"; exit 1; fi
$tool doctor -- $mpirun -n $ranks true > found.txt && status=0 || status=$?
echo "doctor $status"
sed -n 's/^ *fix: \(export .*\)/\1/p' found.txt > mend.sh
cat mend.sh
. ./mend.sh
$mpirun -n $ranks true && echo "starts"
$tool doctor -- $mpirun -n $ranks true > found.txt && status=0 || status=$?
! grep -A 2 -e '^bad *root' -e '^bad *remote' -e '^bad *slots' found.txt
"""

    def test_root_without_ssh_and_with_few_slots(self):
        ranks = str(os.sysconf("SC_NPROCESSORS_ONLN") + 1)
        done = call(["unshare", "--mount", "sh", "-c", self.SCRIPT, "sh", OPEN_MPI,
                     os.path.abspath(TOOL), ranks], cwd=self.folder)
        if "overlay" in done.stderr and "mount" in done.stderr:
            self.skipTest("no overlay can be mounted here: " + done.stderr)
        self.assertEqual(done.returncode, 0, done)
        for line in ("doctor 2", "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                     "export OMPI_MCA_plm=isolated", "export OMPI_MCA_rmaps_base_oversubscribe=1",
                     "starts"):
            self.assertIn(line, done.stdout)


class Programs(Case):
    def test_preload(self):
        four = self.launcher("mpirun", "mpirun (Open MPI) 4.1.4")
        ours = call(["sh", "-c", f"ldd {TOOL} | awk '/librdmalloc/{{print $3}}'"]).stdout.strip()
        other = self.compiled("libother.so", "void* malloc(unsigned long n) { return 0; }",
                              "-shared", "-fno-builtin")
        plain = self.compiled("libplain.so", "int nothing;", "-shared")
        for value, severity, words in (
                ("", "good", []), (plain, "good", []), (f"{plain}:{ours}", "good", []),
                (f"{plain} {other}", "warning", [other, "another malloc", "unset"]),
                (f"{ours}:{other}", "good", []), (f"{other}:{ours}", "warning", [other]),
                ("/nowhere/lib.so", "warning", ["not there"])):
            self.check("preload", severity, words, four, "-x", "LD_PRELOAD=" + value, "a")
        self.check("preload", "good", [], "true")
        self.check("preload", "good", [], four, "-x", "LD_PRELOAD=libplain.so", "a",
                   env=environment(LD_LIBRARY_PATH=f"/nowhere:{self.folder}"))
        self.check("preload", "warning", ["libplain.so"], four, "-x", "LD_PRELOAD=libplain.so", "a")
        self.check("preload", "warning", ["nowhere"], "true",
                   env=environment(LD_PRELOAD="/nowhere/lib.so"))

    def test_program(self):
        four = self.launcher("mpirun", "mpirun (Open MPI) 4.1.4")
        fixed = self.compiled("fixed", "int main(void) { return 0; }", "-static", "-no-pie")
        self.check("program", "bad", ["statically", "librdmalloc.a"], fixed)
        self.check("program", "bad", ["statically"], four, "-n", "1", "true", ":", fixed)
        self.check("program", "good", ["will load"], four, "-n", "1", "true")
        self.check("program", "good", ["no command"])

    def test_programs_that_are_not_there(self):
        four = self.launcher("mpirun", "mpirun (Open MPI) 4.1.4")
        for command in ([four, "-n", "2", "./nosuch"], [four, "-n", "1", "true", ":", "-n", "1", "./nosuch"]):
            self.check("program", "bad", ["./nosuch: No such file", "launcher ends", "ls -l ./nosuch"], *command)
        self.check("program", "bad", ["nosuch: not found in PATH", "command ends"], "nosuch")
        done = call([TOOL, "doctor", "--", four, "-n", "2", "./nosuch"], env=launching.open_mpi())
        self.assertEqual(done.returncode, 2, done)
        self.assertNotIn("0 bad", done.stdout)
        # In the folder that the ranks start in.
        for command in ([four, "--wdir", "/bin"], [self.launcher("srun", ""), "-D", "/bin"]):
            self.check("program", "good", ["will load"], *command, "-n", "1", "./true")
        # Other machines may have it.
        for command in ([four, "--hostfile", "file", "./nosuch"], [four, "-H", "b:8", "./nosuch"],
                        [self.launcher("srun", ""), "./nosuch"]):
            self.check("program", "note", ["on this machine", "./nosuch"], *command)
        self.check("program", "note", ["ls -l './no such'"], self.launcher("srun", ""), "./no such")

    def test_the_mpi_of_another_launcher(self):
        four = self.launcher("mpirun", "mpirun (Open MPI) 4.1.4")
        hydra = self.launcher("mpiexec.hydra", "HYDRA build details:\n    Version:  4.0.2")
        os.mkdir(self.folder + "/lib")

        for soname, is_open_mpi in (("libopen-pal.so.40", True), ("libmpich.so.12", False),
                                    ("libmpi.so.12", False), ("libother.so.1", None)):
            library = self.compiled("lib/" + soname, "int begin(void) { return 0; }", "-shared",
                                    "-Wl,-soname," + soname)
            program = self.compiled("with-" + soname, "int begin(void); int main(void) { return begin(); }",
                                    "-x", "none", library, "-Wl,-rpath," + self.folder + "/lib")
            for launcher, starts_open_mpi in ((four, True), (hydra, False)):
                is_wrong = is_open_mpi is not None and is_open_mpi != starts_open_mpi
                self.check("mpi", "bad" if is_wrong else "good", [soname, "MPI_Init"] if is_wrong else [],
                           launcher, "-n", "2", program)
        self.check("mpi", "good", ["no launcher"], program)

    @needs_mpi_program
    def test_a_real_program_under_the_wrong_launcher(self):
        hydra = self.launcher("mpiexec.hydra", "HYDRA build details:\n    Version:  4.0.2")
        self.check("mpi", "bad", ["Open MPI's libopen-pal", "MPICH 4.0.2", "mpirun.openmpi"], hydra, "-n", "2",
                   MPI_PROGRAM)
        four = self.launcher("mpirun", "mpirun (Open MPI) 4.1.4")
        self.check("mpi", "good", ["libopen-pal"], four, "-n", "2", MPI_PROGRAM)

    @needs_mpi_program
    def test_hooks(self):
        self.check("hooks", "good", ["nothing that caches"], "true")
        self.check("hooks", "good", ["libopen-pal", "RDMALLOC_NOTIFY=auto"], MPI_PROGRAM)
        self.check("hooks", "bad", ["unset RDMALLOC_NOTIFY"], MPI_PROGRAM,
                   env=environment(RDMALLOC_NOTIFY="off"))
        turned_off = {"OMPI_MCA_memory": "^patcher"}
        self.check("hooks", "warning", ["export RDMALLOC_NOTIFY=explicit"], MPI_PROGRAM,
                   env=environment(**turned_off))
        self.check("hooks", "good", [], MPI_PROGRAM,
                   env=environment(**turned_off, RDMALLOC_NOTIFY="explicit"))
        four = self.launcher("mpirun", "mpirun (Open MPI) 4.1.4")
        self.check("hooks", "warning", [], four, "--mca", "memory", "^patcher", MPI_PROGRAM)
        self.check("hooks", "bad", [], four, "-x", "RDMALLOC_NOTIFY=off", MPI_PROGRAM)
        # Every way in which a launcher passes it.
        srun, off = self.launcher("srun", ""), "RDMALLOC_NOTIFY=off"
        for words in ([four, "--x", off], [four, "--mca", "mca_base_env_list", "A=1;" + off],
                      [self.launcher("mpiexec", "mpiexec (Open MPI) 5.0.7"), "--x=" + off],
                      [self.launcher("mpiexec.hydra", "HYDRA build details:"), "-genv", *off.split("=")],
                      [srun, "--export=ALL," + off], [srun, "-n1", "--export", off], [srun, "true", ":", "--export=" + off]):
            self.check("hooks", "bad", ["unset RDMALLOC_NOTIFY"], *words, MPI_PROGRAM)
        self.check("hooks", "bad", [], four, MPI_PROGRAM, env=environment(OMPI_MCA_mca_base_env_list=off))
        if "libucm" in self.look(MPI_PROGRAM)["hooks"]["seen"]:
            self.check("hooks", "warning", ["UCX_MEM"], MPI_PROGRAM,
                       env=environment(UCX_MEM_MMAP_HOOK_MODE="none"))

    def test_open_mpi_with_components_of_their_own(self):
        self.check("open_mpi", "good", ["no Open MPI 5.0"], "true")
        os.makedirs(self.folder + "/lib/openmpi")
        self.compiled("lib/libopen-pal.so.80", "int pal(void) { return 0; }", "-shared",
                      "-Wl,-soname,libopen-pal.so.80")
        program = self.compiled("uses", "int pal(void); int main(void) { return pal(); }", "-x", "none",
                                self.folder + "/lib/libopen-pal.so.80", "-Wl,-rpath," + self.folder + "/lib")

        def with_release(release):
            return self.launcher("mpirun", f"mpirun (Open MPI) {release}")
        self.check("open_mpi", "good", ["5.0.6, without"], with_release("5.0.6"), program)
        script(self.folder + "/lib/openmpi/mca_btl_ofi.so", "")
        for release, severity in (("4.1.4", "good"), ("5.0.0", "note"), ("5.0.6", "note"),
                                  ("5.0.7", "good"), ("5.0.10", "good"), ("5.1.0", "good")):
            self.check("open_mpi", severity, ["13021", "5.0.7 or later"] if severity == "note" else [],
                       with_release(release), program)
        self.check("open_mpi", "good", [], with_release("5.0.6"), "true")

    def test_libfabric(self):
        self.check("libfabric", "good", ["no libfabric"], "true")
        folder = os.path.join(self.folder, "lib")
        os.mkdir(folder)

        def program(major, minor):
            self.compiled("lib/libfabric.so.1",
                          f"unsigned fi_version(void) {{ return {major} << 16 | {minor}; }}",
                          "-shared", "-Wl,-soname,libfabric.so.1")
            return self.compiled("uses", "unsigned fi_version(void); int main(void) "
                                 "{ return fi_version() == 0; }", "-x", "none", folder + "/libfabric.so.1",
                                 "-Wl,-rpath," + folder)
        for release, severity, words in (
                ((1, 13), "good", []), ((1, 14), "note", ["13149", "before its start()"]),
                ((1, 17), "note", ["before its start()"]), ((1, 18), "note", ["13149"]),
                ((2, 5), "note", []), ((2, 6), "bad", ["export RDMALLOC_PURGE=off"]),
                ((2, 7), "good", [])):
            one = self.check("libfabric", severity, [f"libfabric {release[0]}.{release[1]} ", *words],
                             program(*release))
            self.assertEqual("start()" in one["why"], (1, 14) <= release <= (1, 17), one)
        racing = program(2, 6)
        for name, value in (("RDMALLOC_PURGE", "off"), ("RDMALLOC_PURGE", "manual"),
                            ("FI_MR_CACHE_MAX_COUNT", "0")):
            self.check("libfabric", "good", [], racing, env=environment(**{name: value}))
        hanging = program(2, 5)
        other = self.compiled("libother.so", "void* malloc(unsigned long n) { return 0; }",
                              "-shared", "-fno-builtin")
        four = self.launcher("mpirun", "mpirun (Open MPI) 4.1.4")
        self.check("libfabric", "bad", [other, "rdmalloc run"], four, "-x", "LD_PRELOAD=" + other,
                   hanging)
        self.check("libfabric", "note", [], four, hanging)
        # Where all goes over UCX there is nothing to note.
        self.check("libfabric", "good", ["pml=ucx"], four, "--mca", "pml", "ucx", hanging)
        self.check("libfabric", "good", ["pml=ucx"], four, hanging, env=environment(OMPI_MCA_pml="ucx"))
        self.check("libfabric", "note", [], four, "--mca", "pml", "cm", hanging)

    def test_heap_that_no_cache_hears_of(self):
        """docs/reports/heap-that-shrinks.md. Seen to fail: with each of the conditions taken out."""
        def program(*names):
            files = [self.compiled(f"{name}.so.1", f"int {name}(void) {{ return 1; }}", "-shared",
                                   f"-Wl,-soname,{name}.so.1") for name in names]
            calls = "; ".join(f"{name}()" for name in names)
            return self.compiled("uses", f"int libucm(), libfabric(); int main(void) {{ {calls}; }}", "-x", "none",
                                 *files, "-Wl,-rpath," + self.folder)
        for release, names, severity in (("4.1.4", ["libucm", "libfabric"], "good"), ("5.0.7", ["libucm"], "good"),
                                         ("5.0.7", ["libfabric"], "good"), ("5.0.7", ["libucm", "libfabric"], "note")):
            launcher, linked = self.launcher("mpirun", f"mpirun (Open MPI) {release}"), program(*names)
            self.check("heap", severity, ["UCX_MEM_MMAP_HOOK_MODE"] if severity == "note" else [], launcher, linked)
        for name, value in (("FI_MR_CACHE_MAX_COUNT", "0"), ("UCX_MEM_MMAP_HOOK_MODE", "none"), ("OMPI_MCA_pml", "ucx")):
            self.check("heap", "good", [value], launcher, linked, env=environment(**{name: value}))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
