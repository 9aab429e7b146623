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

PROGRAMS, MODULES = sys.argv[1:3]
WORK = "/var/tmp/mpi_checkpoints"
PATIENCE_S = 90
# What CRIU asks the kernel for, in the order in which one needs the other.
NEEDED = ("net/ipv4/inet_diag", "net/ipv4/tcp_diag", "net/ipv4/udp_diag", "net/unix/unix_diag",
          "net/packet/af_packet_diag", "net/netlink/netlink_diag", "net/netfilter/nfnetlink",
          "drivers/net/tun")
UCX = ["--mca", "pml", "ucx"]
OB1 = ["--mca", "pml", "ob1", "--mca", "btl"]
OFI = ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include"]
TRANSPORTS = {  # mpirun's words, settings of the ranks
    "btl sm": ([*OB1, "sm,self"], {}),
    "btl tcp": ([*OB1, "tcp,self"], {}),
    "UCX posix": (UCX, {"UCX_TLS": "posix,self"}),
    "UCX sysv": (UCX, {"UCX_TLS": "sysv,self"}),
    "UCX tcp": (UCX, {"UCX_TLS": "tcp,self"}),
    "UCX rc": (UCX, {"UCX_TLS": "rc,self", "UCX_NET_DEVICES": "rxe0:1"}),
    "mtl ofi shm": ([*OFI, "shm"], {}),
    "mtl ofi tcp": ([*OFI, "tcp"], {}),
}
# The job's connections have both ends in it, so nobody has to be kept from them meanwhile.
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
    done = subprocess.run(["criu", action, "-D", folder + "/images", "-o", action, "-v4", *CRIU_WORDS, *words],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False)
    if done.returncode == 0:
        return None
    with open(f"{folder}/images/{action}", encoding="utf-8", errors="replace") as file:
        reasons = [line.split("): ", 1)[-1].strip() for line in file if "Error" in line]
    return "; ".join(reasons[:2]) or done.stdout[-500:]


def take(name):
    words, settings = TRANSPORTS[name]
    folder = f"{WORK}/{name.replace(' ', '_')}"
    os.makedirs(folder + "/images")
    settings = {**settings, "LD_LIBRARY_PATH": PROGRAMS, "RDMALLOC_CHECKPOINT": "on",
                "LD_PRELOAD": f"{PROGRAMS}/librdmalloc.so.0"}
    exports = [word for key, value in settings.items() for word in ("-x", f"{key}={value}")]
    with open(folder + "/out", "w", encoding="utf-8") as out:
        job = subprocess.Popen(["mpirun.openmpi", "-n", "2", *words, *exports,  # pylint: disable=consider-using-with
                                f"{PROGRAMS}/lab_checkpointed_ranks", folder], stdin=subprocess.DEVNULL,
                               stdout=out, stderr=out, start_new_session=True)
    try:
        if not comes(lambda: rounds(folder) > 0 or job.poll() is not None) or job.poll() is not None:
            return "does not start"
        reason = criu("dump", folder, "-t", str(job.pid))
        if reason:
            return f"refused at the dump: {reason}"
        job.wait()
        before = rounds(folder)
        reason = criu("restore", folder, "--restore-detached")
        if reason:
            return f"refused at the restore: {reason}"
        if not comes(lambda: rounds(folder) > before + 40):
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
