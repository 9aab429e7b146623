"""A Slurm of its own on loopback, for tests: munge, a controller and two nodes."""
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time

from launching import call, environment

DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
START_SECONDS = 90  # an idle machine needs 5

CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=n[1-2] Default=YES State=UP OverSubscribe=FORCE
"""


def free_ports(count):
    """Below those that the kernel gives to connections: one of them could have the port before the daemon does.
    Two processes begin to look at different places."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first = int(file.read().split()[0])
    least = min(10000, first // 2)
    ports = []
    for at in range(first - least):
        with socket.socket() as holder, contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", least + (os.getpid() * count + at) % (first - least)))
            ports.append(holder.getsockname()[1])
        if len(ports) == count:
            return ports
    raise AssertionError(f"no {count} free ports from {least} to {first}")


class Cluster:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="rdmalloc-slurm-")
        self.started = []
        os.chmod(self.folder, 0o755)
        os.mkdir(self.folder + "/state")
        # Everybody speaks to munge's socket; its key is its own.
        os.mkdir(self.folder + "/munge", mode=0o711)
        with open(self.folder + "/munge/key", "wb") as key:
            key.write(os.urandom(1024))
        os.chmod(self.folder + "/munge/key", 0o600)
        # PMIx's directories are named by job numbers, which each cluster counts from 1: in /tmp, one
        # left by a killed run lets no rank start.
        os.mkdir(self.folder + "/pmix", mode=0o755)
        with open(self.folder + "/mpi.conf", "w", encoding="utf-8") as file:
            file.write(f"PMIxCliTmpDirBase={self.folder}/pmix\n")
        with open(self.folder + "/slurm.conf", "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(folder=self.folder, ports=free_ports(3),
                                            host=socket.gethostname().split(".")[0],
                                            user=pwd.getpwuid(os.geteuid()).pw_name))

    def env(self, **more):
        return environment(PATH=PATH, SLURM_CONF=self.folder + "/slurm.conf", **more)

    def daemon(self, *words):
        log = open(f"{self.folder}/{len(self.started)}.out", "w", encoding="utf-8")
        self.started.append(subprocess.Popen(words, env=self.env(), stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log))
        log.close()

    def start(self):
        munge = self.folder + "/munge/"
        self.daemon("munged", "--foreground", "--num-threads=10",
                    *[f"--{what}={munge}{file}" for what, file in (
                        ("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"),
                        ("log-file", "log"), ("seed-file", "seed"))])
        self.wait_for("munge's socket", lambda: os.path.exists(munge + "socket"))
        self.daemon("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            self.daemon("slurmd", "-D", "-N", node)
        self.wait_for("two idle nodes", lambda: call(
            ["sinfo", "-h", "-N", "-o", "%T"], env=self.env()).stdout.split() == ["idle"] * 2)

    def wait_for(self, what, is_there):
        deadline = time.monotonic() + START_SECONDS
        while not is_there():
            if time.monotonic() > deadline or any(one.poll() is not None for one in self.started):
                raise AssertionError(f"waited for {what}:\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith((".log", ".out")):
                with open(os.path.join(self.folder, name), errors="replace", encoding="utf-8") as log:
                    text += f"--- {name}\n{log.read()[-3000:]}\n"
        return text

    def stop(self):
        for one in reversed(self.started):
            one.terminate()
            try:
                one.wait(timeout=20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def missing():
    """Why there can be none here; empty when there can."""
    absent = [name for name in (*DAEMONS, "srun") if not shutil.which(name, path=PATH)]
    if absent:
        return f"{', '.join(absent)}: apt install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "Slurm is started as root"
