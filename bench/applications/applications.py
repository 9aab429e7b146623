#!/usr/bin/env python3
"""Whole applications, one run of one of them under one allocator: bench_applications starts it for each run.

    applications.py --list [--bin DIR]                     # a JSON object a line; what is not installed says so
    applications.py NAME --bin DIR --work DIR [--preload LIBRARY] [--scale X]

A run prints a JSON object: who serves malloc in the measured program, its wall and processor time, the peak of resident
memory and page faults, as bench_launch tells of it and of the processes that it waited for. Clients, and what is made once
in the work folder (a database, a system of molecules, compiled programs), run without the preload and are not measured.
"""
import argparse
import contextlib
import functools
import glob
import json
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SOURCES = pathlib.Path(__file__).resolve().parent / "sources"
TREE = SOURCES.parents[2]
POSTGRES = next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)), "/usr/lib/postgresql")
PYTHON = "/usr/bin/python3"  # Debian's own, where a version manager's shim would come first
MPIRUN = ["mpirun", "-n", "2", "--oversubscribe", "--mca", "pml", "ob1", "--mca", "btl", "vader,self",
          "--mca", "mpi_yield_when_idle", "1"]
START_LIMIT_S = 20
PARALLEL_THREADS = 16


def found(program):
    """Its path; None where it is not installed."""
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/games")


def done(command, **options):
    """Runs a command that is not measured, and ends the run with what it said if it fails."""
    ended = subprocess.run([str(word) for word in command], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, **options)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {ended.returncode}\n{ended.stdout[-2000:]}")
    return ended.stdout


class Run:
    def __init__(self, options):
        self.bin = pathlib.Path(options.bin).resolve()
        self.work = pathlib.Path(options.work).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.scale = options.scale
        self.preload = options.preload
        self.server_of_malloc = "unknown"

    def times(self, count, least=1):
        return max(least, round(count * self.scale))

    def made(self, name, make):
        """A file or folder of the work folder, which make(path) makes at the first use."""
        path = self.work / name
        if not path.exists():
            make(path)
        return path

    # ---- the measured program

    def malloc_of(self, program, preload):
        """The object that serves malloc in a program, from the dynamic linker's own account: it binds the symbols and
        does not start the program."""
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, LD_TRACE_LOADED_OBJECTS="1", LD_WARN="yes", LD_BIND_NOW="yes",
                               LD_DEBUG="bindings", LD_DEBUG_OUTPUT=f"{folder}/said", LD_PRELOAD=preload)
            subprocess.run([program], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            said = "".join(path.read_text(errors="replace") for path in pathlib.Path(folder).iterdir())
        servers = set(re.findall(r" to (\S+) \[0\]: normal symbol `malloc'", said))
        if len(servers) > 1:
            servers.discard(program)  # a stub, since it takes malloc's address
        return servers.pop() if len(servers) == 1 else " and ".join(sorted(servers)) or "unknown"

    def environment_for(self, program):
        """With the preload. Where none is asked for and the program brings a malloc of its own, libc is preloaded."""
        preload = self.preload
        if not preload and "libc.so" not in self.malloc_of(program, ""):
            preload = next(iter(glob.glob("/lib/*/libc.so.6")), "")
        self.server_of_malloc = self.malloc_of(program, preload)
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return dict(environment, LD_PRELOAD=preload) if preload else environment

    @contextlib.contextmanager
    def launched(self, command, program=None, more_environment=None):
        """The process of bench_launch, and afterwards what it told of the program: {} is filled at the end."""
        command = [str(word) for word in command]
        program = str(program or found(command[0]))
        environment = dict(self.environment_for(program), **(more_environment or {}))
        report_end, write_end = os.pipe()
        told = {}
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen([self.bin / "bench_launch", str(write_end), "none", *command], cwd=self.work,
                                       env=environment, pass_fds=[write_end], stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT)
            os.close(write_end)
            try:
                yield process, told
                process.wait()
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            told.update(json.loads(os.fdopen(report_end).read() or "{}"))
            output.seek(0)
            told["output"] = output.read().decode(errors="replace")

    def measure(self, command, program=None, more_environment=None):
        """A command from its start to its end."""
        with self.launched(command, program, more_environment) as (_, told):
            pass
        self.tell(command, told, told.get("wall_s", 0))

    def measure_server(self, command, address, client, stop=signal.SIGTERM, program=None):
        """A server, while client() runs; the wall time is the client's."""
        with self.launched(command, program) as (process, told):
            wait_for(address, process)
            started = time.monotonic()
            client()
            wall_s = time.monotonic() - started
            process.send_signal(stop)
        self.tell(command, told, wall_s, ends_by=stop)

    def tell(self, command, told, wall_s, ends_by=None):
        status = told.get("status", 1)
        if status != 0 and status != ends_by:
            sys.exit(f"{command[0]}: {how_it_ended(status)}\n{told.get('output', '')[-2000:]}")
        print(json.dumps({"malloc": self.server_of_malloc, "wall_s": wall_s, "cpu_s": told["cpu_s"],
                          "peak_mib": told["peak_rss_kib"] / 1024, "page_faults": told["page_faults"]}))


def how_it_ended(status):
    return f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {status >> 8}"


def wait_for(address, process):
    """Until a server takes connections: a path, or a port."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    for _ in range(START_LIMIT_S * 50):
        if process.poll() is not None:
            return  # it has ended: its status says why
        with socket.socket(family) as probe:
            if probe.connect_ex(address if isinstance(address, str) else ("127.0.0.1", address)) == 0:
                return
        time.sleep(0.02)
    sys.exit(f"the server took no connection within {START_LIMIT_S} s")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ---------------------------------------------------------------- programs with many threads

def redis(run, io_threads, requests):
    path = str(run.work / "redis.sock")
    pathlib.Path(path).unlink(missing_ok=True)
    run.measure_server(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no",
                        "--io-threads", io_threads, "--io-threads-do-reads", "yes", "--dir", run.work], path,
                       lambda: done(["redis-benchmark", "-s", path, "-q", "-n", run.times(requests), "-r", "100000", "-d",
                                     "200", "-c", "50", "-P", "8", "-t", "set,get,incr,lpush,lpop,sadd,hset,zadd"]))


def redis_io_threads(run):
    redis(run, io_threads=4, requests=1_500)


def redis_alone(run):
    redis(run, io_threads=1, requests=40_000)


def memcached(run):
    port = free_port()
    run.measure_server(["memcached", "-u", pwd.getpwuid(os.getuid()).pw_name, "-l", "127.0.0.1", "-p", port, "-t",
                        PARALLEL_THREADS, "-m", "256"], port,
                       lambda: done([found("memcaslap") or "memaslap", "-s", f"127.0.0.1:{port}", "-T", "2", "-c", "64",
                                     "-x", run.times(150_000), "-X", "1024"]))


def nginx(run):
    port = free_port()
    folder = run.work / "nginx"
    folder.mkdir(exist_ok=True)
    (folder / "page.html").write_text("<p>a page of some length</p>\n" * 400)
    configuration = folder / "nginx.conf"
    configuration.write_text(f"""daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/errors;
user {pwd.getpwuid(os.getuid()).pw_name};
events {{ worker_connections 512; }}
http {{ access_log off; gzip on; gzip_min_length 100; gzip_types text/html; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi; server {{ listen 127.0.0.1:{port}; root {folder}; }} }}
""")
    run.measure_server([found("nginx"), "-c", configuration, "-e", folder / "errors"], port,
                       lambda: done(["ab", "-q", "-n", run.times(20_000), "-c", "50", "-H", "Accept-Encoding: gzip",
                                     f"http://127.0.0.1:{port}/page.html"]))


def as_database_user():
    """PostgreSQL refuses root."""
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.getuid() == 0 else []


def make_database(folder):
    making = pathlib.Path(f"{folder}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o755)
    if os.getuid() == 0:
        shutil.chown(making, "postgres", "postgres")
    data = making / "data"
    done([*as_database_user(), f"{POSTGRES}/initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"], cwd="/")
    with open(data / "postgresql.conf", "a", encoding="utf-8") as settings:
        settings.write("listen_addresses = ''\nmax_connections = 80\nshared_buffers = '32MB'\nfsync = off\n"
                       "synchronous_commit = off\nautovacuum = off\nlogging_collector = off\n")
    control = [*as_database_user(), f"{POSTGRES}/pg_ctl", "-D", data, "-o", f"-k {making}", "-w"]
    done([*control, "-l", making / "log", "start"], cwd="/")
    done([*as_database_user(), f"{POSTGRES}/pgbench", "-h", making, "-U", "postgres", "-i", "-q", "-s", "2", "postgres"],
         cwd="/")
    done([*control, "-m", "fast", "stop"], cwd="/")
    making.rename(folder)


def postgresql(run):
    folder = run.made("postgresql", make_database)
    wait_at = str(folder / ".s.PGSQL.5432")

    def client():
        while subprocess.run([f"{POSTGRES}/pg_isready", "-q", "-h", folder], check=False, cwd="/").returncode == 1:
            time.sleep(0.05)  # it starts up, and refuses
        done([f"{POSTGRES}/pgbench", "-h", folder, "-U", "postgres", "-n", "-c", "64", "-j", "2", "-t", run.times(60),
              "postgres"], cwd="/")
    run.measure_server([*as_database_user(), f"{POSTGRES}/postgres", "-D", folder / "data", "-k", folder], wait_at, client,
                       stop=signal.SIGINT, program=f"{POSTGRES}/postgres")


def java(run):
    classes = run.made("java", lambda path: done(["javac", "-d", path, SOURCES / "NativeThreads.java"]))
    run.measure(["java", "-Xmx256m", "-XX:+UseParallelGC", "-cp", classes, "NativeThreads", PARALLEL_THREADS,
                 run.times(240)])


def openmp(run):
    run.measure([run.bin / "application_openmp", PARALLEL_THREADS, run.times(160)],
                more_environment={"OMP_WAIT_POLICY": "passive"})


def futures(run):
    run.measure([run.bin / "application_futures", PARALLEL_THREADS, run.times(120_000)])


def rust(run):
    program = run.made("rust_server", lambda path: done(["rustc", "-O", "-C", "prefer-dynamic=no", "-o", path,
                                                         SOURCES / "server.rs"]))
    run.measure([program, PARALLEL_THREADS, run.times(120_000)], program=program)


def go(run):
    def build(path):
        folder = run.work / "go"
        folder.mkdir(exist_ok=True)
        shutil.copy(SOURCES / "cgo_server.go", folder / "main.go")
        done(["go", "build", "-o", path, "main.go"], cwd=folder,
             env=dict(os.environ, CGO_ENABLED="1", GO111MODULE="off", GOFLAGS="", GOCACHE=str(run.work / "go/cache")))
    program = run.made("go_server", build)
    run.measure([program, PARALLEL_THREADS, run.times(500_000)], program=program)


def mpi_threads(run):
    program = run.bin / "application_mpi_threads"
    run.measure([*MPIRUN, program, PARALLEL_THREADS, run.times(150)], program=program)


def pytorch(run):
    run.measure([PYTHON, SOURCES / "train.py", run.times(60)])


def cuda(run):
    program = run.made("host_memory", lambda path: done(["nvcc", "-O2", "-o", path, SOURCES / "host_memory.cu"]))
    run.measure([program, 8, run.times(200)], program=program)


# ---------------------------------------------------------------- whole applications

def lammps(run):
    variables = ["-var", "cells", 16, "-var", "steps", run.times(150), "-var", "every", 50]
    run.measure([*MPIRUN, "lmp", "-in", SOURCES / "melt.lammps", *variables, "-log", "none"], program=found("lmp"))


def make_water(folder):
    making = pathlib.Path(f"{folder}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    (making / "topol.top").write_text('#include "oplsaa.ff/forcefield.itp"\n#include "oplsaa.ff/spce.itp"\n'
                                      "[ system ]\nwater\n[ molecules ]\n")
    (making / "settle.mdp").write_text("integrator = steep\nnsteps = 300\ncoulombtype = PME\n")
    (making / "water.mdp").write_text("integrator = md\ndt = 0.002\nnsteps = 1000000\nnstlist = 10\ncoulombtype = PME\n"
                                      "constraints = all-bonds\ntcoupl = v-rescale\ntc-grps = System\ntau-t = 0.5\n"
                                      "ref-t = 300\ngen-vel = yes\n")

    def prepared(name, start):
        done(["gmx", "grompp", "-f", f"{name}.mdp", "-c", start, "-p", "topol.top", "-o", f"{name}.tpr", "-maxwarn", "5"],
             cwd=making)

    done(["gmx", "solvate", "-cs", "spc216.gro", "-box", "3", "3", "3", "-o", "start.gro", "-p", "topol.top"], cwd=making)
    prepared("settle", "start.gro")
    done(["gmx", "mdrun", "-deffnm", "settle", "-ntmpi", "1", "-ntomp", "2", "-pin", "off"], cwd=making)
    prepared("water", "settle.gro")
    making.rename(folder)


def gromacs(run):
    folder = run.made("gromacs", make_water)
    run.measure(["gmx", "mdrun", "-s", folder / "water.tpr", "-deffnm", folder / "out", "-nsteps", run.times(400),
                 "-ntmpi", "1", "-ntomp", "2", "-pin", "off", "-nobackup"])


def hpcc(run):
    (run.work / "hpccinf.txt").write_text(f"""HPLinpack benchmark input file
-
HPL.out
6
1
{run.times(1000, least=100)} Ns
1
64 NBs
0
1
1 Ps
2 Qs
16.0
1
2
1
4
1
2
1
1
1
0
1
1
1
1
2
64
0
0
1
8
0
0
0
0
0
""")
    run.measure([*MPIRUN, "hpcc"], program=found("hpcc"))


def imb(run):
    program = found("IMB-MPI1")
    run.measure([*MPIRUN, program, "Bcast", "Allreduce", "Exchange", "-npmin", "2", "-iter", run.times(600), "-msglog", "22"],
                program=program)


def mpi_windows(run):
    program = run.bin / "application_mpi_windows"
    run.measure([*MPIRUN, program, run.times(20)], program=program)


def mpi4py(run):
    run.measure([*MPIRUN, PYTHON, SOURCES / "mpi_arrays.py", run.times(60)], program=PYTHON)


def compile_cxx(run):
    files = sorted(glob.glob(str(TREE / "alloc/*/*.cc")))[:run.times(10)]
    run.measure(["sh", "-c", 'tree=$1; shift; for file; do g++ -std=c++20 -O1 -I "$tree" -I "$tree/include" -c "$file" '
                 '-o /dev/null || exit 1; done', "compile", TREE, *files],
                program=done(["g++", "-print-prog-name=cc1plus"]).strip())


def text_job(run):
    run.measure([PYTHON, SOURCES / "text_job.py", run.times(20)])


class Application:
    """A row: what it is, and the programs that it needs with the packages they come from."""

    def __init__(self, name, group, what, work, needs, modules=()):
        self.name, self.group, self.what, self.work, self.needs = name, group, what, work, needs
        self.modules = modules  # of Python, with the packages they come from

    def left_out(self, folder):
        """Why it can't run here; empty where it can."""
        for program, package in self.needs:
            if not (found(program) or (folder and (pathlib.Path(folder) / program).exists())):
                return f"{program} is not installed: {package}"
        for module, package in self.modules:
            if not has_module(module):
                return f"{module} is not installed: {package}"
        return ""


@functools.lru_cache
def has_module(name):
    return subprocess.run([PYTHON, "-c", f"import {name}"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def apt(package):
    return f"apt-get install {package}"


MPI = ("mpirun", apt("openmpi-bin"))
REDIS = [("redis-server", apt("redis-server")), ("redis-benchmark", apt("redis-tools"))]
OURS = "build the target bench_applications"
APPLICATIONS = [
    Application("redis io-threads", "threads", "redis-server with 4 io-threads under redis-benchmark", redis_io_threads,
                REDIS),
    Application("memcached", "threads", "memcached, 16 threads, 64 connections of memaslap", memcached,
                [("memcached", apt("memcached")), ("memcaslap", apt("libmemcached-tools"))]),
    Application("nginx", "threads", "nginx, 2 workers, gzip, a connection for each request of ab", nginx,
                [("nginx", apt("nginx-light")), ("ab", apt("apache2-utils"))]),
    Application("postgresql", "threads", "PostgreSQL, 64 clients of pgbench", postgresql,
                [(f"{POSTGRES}/postgres", apt("postgresql")), (f"{POSTGRES}/pgbench", apt("postgresql"))]),
    Application("java", "threads", "a JVM, 16 threads: deflate, direct buffers, just-in-time compilation", java,
                [("java", apt("openjdk-17-jre-headless")), ("javac", apt("openjdk-17-jdk-headless"))]),
    Application("openmp", "threads", "16 OpenMP threads assemble a sparse matrix in lists (own program)", openmp,
                [("application_openmp", OURS)]),
    Application("futures", "threads", "a pool of 16 C++ threads with futures (own program)", futures,
                [("application_futures", OURS)]),
    Application("rust", "threads", "a server of 16 Rust threads with the system allocator (own program)", rust,
                [("rustc", apt("rustc"))]),
    Application("go", "threads", "goroutines over the C heap by cgo (own program)", go,
                [("go", apt("golang-go")), ("gcc", apt("gcc"))]),
    Application("mpi threads", "threads", "MPI_THREAD_MULTIPLE, 2 ranks of 16 threads, fresh buffers, in the manner of "
                "osu_latency_mt (own program)", mpi_threads, [MPI, ("application_mpi_threads", OURS)]),
    Application("pytorch", "threads", "PyTorch: a network trained from 8 loader processes, tensors; on a GPU if there is one",
                pytorch, [(PYTHON, apt("python3"))], [("torch", apt("python3-torch")), ("numpy", apt("python3-numpy"))]),
    Application("cuda", "threads", "8 threads register, copy and free blocks for a GPU, each byte checked (own program)",
                cuda, [("nvcc", apt("nvidia-cuda-toolkit")), ("nvidia-smi", "NVIDIA's driver")]),
    Application("redis", "whole", "redis-server with one thread under redis-benchmark", redis_alone, REDIS),
    Application("lammps", "whole", "LAMMPS, melt of 16,384 atoms, 2 ranks", lammps, [MPI, ("lmp", apt("lammps"))]),
    Application("gromacs", "whole", "GROMACS, water, 2 OpenMP threads", gromacs, [("gmx", apt("gromacs"))]),
    Application("hpcc", "whole", "HPC Challenge, 2 ranks", hpcc, [MPI, ("hpcc", apt("hpcc"))]),
    Application("imb", "whole", "Intel MPI Benchmarks: Bcast, Allreduce, Exchange up to 4 MiB, 2 ranks", imb,
                [MPI, ("IMB-MPI1", "not in Debian; build github.com/intel/mpi-benchmarks and put IMB-MPI1 into PATH")]),
    Application("mpi windows", "whole", "a stream of windows of fresh buffers up to 4 MiB, in the manner of osu_bw (own "
                "program), 2 ranks", mpi_windows, [MPI, ("application_mpi_windows", OURS)]),
    Application("mpi4py numpy", "whole", "mpi4py: fresh arrays and pickled objects, 2 ranks", mpi4py,
                [MPI, (PYTHON, apt("python3"))],
                [("mpi4py", apt("python3-mpi4py")), ("numpy", apt("python3-numpy"))]),
    Application("compile", "whole", "g++ -O1 over ten files of alloc/", compile_cxx, [("g++", apt("g++"))]),
    Application("text job", "whole", "python3: JSON and regular expressions", text_job, [(PYTHON, apt("python3"))]),
]


def main():
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("name", nargs="?", choices=[application.name for application in APPLICATIONS])
    line.add_argument("--list", action="store_true")
    line.add_argument("--bin", default="", help="the folder of bench_launch and our own programs")
    line.add_argument("--work", help="a folder for what is made once")
    line.add_argument("--preload", default="")
    line.add_argument("--scale", type=float, default=1)
    options = line.parse_args()
    if options.list:
        for application in APPLICATIONS:
            print(json.dumps({"name": application.name, "group": application.group, "what": application.what,
                              "left_out": application.left_out(options.bin)}))
        return
    if not (options.name and options.bin and options.work):
        line.error("NAME, --bin and --work, or --list")
    next(application for application in APPLICATIONS if application.name == options.name).work(Run(options))


if __name__ == "__main__":
    main()
