#!/usr/bin/python3
"""Inside the guest: an MPI job for each transport, dumped and restored whole by CRIU, its ranks quiesced.

    mpi_checkpoints.py FOLDER_OF_PROGRAMS FOLDER_OF_MODULES TRANSPORT...

Prints for each: "NAME: restored, rounds A then B, wrong 0", or what refused, and CRIU's reason.
"""
import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
import typing

PROGRAMS, MODULES = sys.argv[1:3]
WORK = "/var/tmp/mpi_checkpoints"
PATIENCE_S = 90
# What CRIU asks the kernel for, in the order in which one needs the other.
NEEDED = ("net/ipv4/inet_diag", "net/ipv4/tcp_diag", "net/ipv4/udp_diag", "net/unix/unix_diag",
          "net/packet/af_packet_diag", "net/netlink/netlink_diag", "net/netfilter/nfnetlink",
          "drivers/net/tun")
OB1 = ["--mca", "pml", "ob1", "--mca", "btl"]
# Without "any" Open MPI takes UCX for InfiniBand's cards only.
UCX = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any"]
# Else UCX opens /dev/infiniband/rdma_cm to make connections that no rank asks for.
NO_RDMACM = {"UCX_SOCKADDR_TLS_PRIORITY": "tcp"}
OFI = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "opal_common_ofi_verbose", "1",
       "--mca", "opal_common_ofi_provider_include"]


class Transport(typing.NamedTuple):
    mpirun: list  # its words
    ranks: dict  # their settings
    launcher: tuple = ()  # what starts mpirun
    criu: tuple = ()  # words for CRIU


TRANSPORTS = {
    "btl sm": Transport([*OB1, "sm,self"], {}),
    "btl tcp": Transport([*OB1, "tcp,self"], {}),
    "UCX posix": Transport(UCX, {"UCX_TLS": "posix,self", **NO_RDMACM}, criu=("--ghost-limit", "64M")),
    "UCX posix, default limit": Transport(UCX, {"UCX_TLS": "posix,self", **NO_RDMACM}),
    "UCX sysv": Transport(UCX, {"UCX_TLS": "sysv,self", **NO_RDMACM}, launcher=("unshare", "--ipc")),
    "UCX sysv, IPC of all": Transport(UCX, {"UCX_TLS": "sysv,self", **NO_RDMACM}),
    "UCX tcp": Transport(UCX, {"UCX_TLS": "tcp,self", **NO_RDMACM}),
    "UCX tcp, rdmacm": Transport(UCX, {"UCX_TLS": "tcp,self"}),
    "UCX rc": Transport(UCX, {"UCX_TLS": "rc,self", "UCX_NET_DEVICES": "rxe0:1", "UCX_IB_GID_INDEX": "0",
                              **NO_RDMACM}),
    "mtl ofi tcp": Transport([*OFI, "tcp"], {"FI_PROVIDER": "tcp"}),
    "mtl ofi tcp, all providers": Transport([*OFI, "tcp"], {}),
    "mtl ofi shm": Transport([*OFI, "shm"], {"FI_PROVIDER": "shm"}),
}
# The job's connections have both ends in it, so no other process has to be kept from them meanwhile.
CRIU_WORDS = ("--tcp-established", "--network-lock", "skip", "--shell-job", "--ext-unix-sk",
              "--file-locks", "--action-script", f"{PROGRAMS}/rdmalloc")


def load_modules():
    call = ctypes.CDLL(None, use_errno=True).syscall
    for name in NEEDED:
        with open(f"{MODULES}/{name}.ko", "rb") as file:
            call(313, file.fileno(), b"", 0)  # finit_module
    if not os.path.exists("/dev/net/tun"):
        os.makedirs("/dev/net", exist_ok=True)
        os.mknod("/dev/net/tun", 0o20600, os.makedev(10, 200))


def rounds(folder):
    """Of the rank that is behind; -1 before all have said something. Wrong bytes end it all."""
    seen = []
    for rank in (0, 1):
        try:
            with open(f"{folder}/rank.{rank}", encoding="ascii") as file:
                found = re.fullmatch(r"rounds (\d+) wrong (\d+)\n", file.read())
        except FileNotFoundError:
            return -1
        if found[2] != "0":
            raise RuntimeError(f"rank {rank}: {found[0]}")
        seen.append(int(found[1]))
    return min(seen)


def comes(is_so):
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def criu(action, folder, *words):
    """Nothing when it went well, or why it did not: CRIU's first words of it."""
    done = subprocess.run(["criu", action, "-D", folder + "/images", "-o", action, "-v2", *CRIU_WORDS, *words],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False)
    if done.returncode == 0:
        return None
    log = text_of(f"{folder}/images/{action}")
    reasons = [line.split("): ", 1)[-1].strip() for line in log.splitlines() if "Error" in line]
    return reasons[0] if reasons else done.stdout[-500:]


def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def why_not_started(folder):
    said = text_of(folder + "/out")
    return (re.findall(r"fi_getinfo\(\): .*", said) or said.splitlines() or [""])[-1]


def after_refusal(folder, process, reason):
    """A rank that could not be quiesced says which files are open, and CRIU has only that the script failed. What
    CRIU refuses itself is left quiesced."""
    found = re.search(r"with \d+ files open \(.*?\(\)\): (.*)", text_of(folder + "/out"))
    if found:
        return f"a rank is not quiesced: {found[1]}; {'goes on' if goes_on(folder) else 'stands still'}"
    done = subprocess.run([f"{PROGRAMS}/rdmalloc", "checkpoint", "resume", str(process)], check=False)
    how = "resumed by hand, goes on" if done.returncode == 0 and goes_on(folder) else "does not resume"
    return f"refused at the dump: {reason}; {how}"


def start(folder, transport):
    # Before Linux 6.7 CRIU reads 8 bytes for each page of addresses, also of those only reserved: a terabyte took a
    # minute and more for each rank.
    settings = {**transport.ranks, "RDMALLOC_ARENA": "8G", "LD_LIBRARY_PATH": PROGRAMS, "RDMALLOC_CHECKPOINT": "on",
                "LD_PRELOAD": f"{PROGRAMS}/librdmalloc.so.0"}
    exports = [word for key, value in settings.items() for word in ("-x", f"{key}={value}")]
    with open(folder + "/out", "w", encoding="utf-8") as out:
        return subprocess.Popen([*transport.launcher, "mpirun.openmpi", "-n", "2", *transport.mpirun, *exports,
                                 f"{PROGRAMS}/lab_checkpointed_ranks", folder],
                                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


def goes_on(folder):
    before = rounds(folder)
    return comes(lambda: rounds(folder) > before + 40)


def take(name):
    transport = TRANSPORTS[name]
    folder = f"{WORK}/{re.sub('[^a-zA-Z]', '_', name)}"
    os.makedirs(folder + "/images")
    job = start(folder, transport)
    try:
        if not comes(lambda: rounds(folder) > 0 or job.poll() is not None) or job.poll() is not None:
            return f"does not start: {why_not_started(folder)}"
        reason = criu("dump", folder, "-t", str(job.pid), *transport.criu)
        if reason:
            return after_refusal(folder, job.pid, reason)
        job.wait()
        before = rounds(folder)
        reason = criu("restore", folder, "--restore-detached", *transport.criu)
        if reason:
            return f"refused at the restore: {reason}"
        if not goes_on(folder):
            return "restored, and stands still"
        with open(folder + "/stop", "w", encoding="ascii"):
            pass
        if not comes(lambda: not os.path.exists(f"/proc/{job.pid}/exe")):
            return "restored, and does not end"
        return f"restored, rounds {before} then {rounds(folder)}, wrong 0"
    finally:
        subprocess.run(["pkill", "-KILL", "-f", "lab_checkpointed_ranks"], check=False)
        job.poll()


def main():
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
                   "OMPI_MCA_mpi_yield_when_idle": "1", "LD_LIBRARY_PATH": PROGRAMS}
    load_modules()
    shutil.rmtree(WORK, ignore_errors=True)
    for name in sys.argv[3:] or TRANSPORTS:
        print(f"{name}: {take(name)}", flush=True)


if __name__ == "__main__":
    main()
