"""Finds threads that wait for a lock which, in the end, they hold themselves: proof of a deadlock.

A thread that sleeps in futex(2) on a pthread_mutex_t shows the mutex's address as the call's first
argument; glibc keeps the owner's thread id 8 bytes behind it. So /proc alone tells who waits for
whom, without symbols, without stopping anything and without guessing from time that passed.
"""
import json
import os
import struct
import subprocess

FUTEX = 202  # x86_64
OWNER_OFFSET = 8  # of __data.__owner in pthread_mutex_t


def mutex_waits(pid):
    """{thread: (mutex address, owner's thread id)} for the threads of a process that wait now."""
    waits = {}
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except OSError:
        return waits
    try:
        for thread in threads:
            try:
                with open(f"/proc/{pid}/task/{thread}/syscall", encoding="ascii") as file:
                    words = file.read().split()
                if len(words) < 2 or words[0] != str(FUTEX):
                    continue
                address = int(words[1], 16)
                owner = struct.unpack("<i", os.pread(memory, 4, address + OWNER_OFFSET))[0]
            except (OSError, ValueError, struct.error):
                continue
            if str(owner) in threads:
                waits[int(thread)] = (address, owner)
    finally:
        os.close(memory)
    return waits


def cycle_of(pid):
    """[(thread, mutex address, owner), ...] closed to a ring, or [] when no thread is in one."""
    waits = mutex_waits(pid)
    for start in waits:
        ring, thread = [], start
        while thread in waits and thread not in [link[0] for link in ring]:
            address, owner = waits[thread]
            ring.append((thread, address, owner))
            thread = owner
        if ring and thread == start:
            return ring
    return []


def place_of(pid, address):
    """Where an address lies: 'libfabric.so.1.19.0 +0x1c3f00 (static)', or 'heap'."""
    base, library = {}, None
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        previous = None
        for line in maps:
            fields = line.split()
            start, end = (int(x, 16) for x in fields[0].split("-"))
            path = fields[5] if len(fields) > 5 else ""
            if path.startswith("/"):
                base.setdefault(path, start)
                previous = path
            if start <= address < end:
                # .bss has no path of its own but follows its library's last mapping.
                library = path if path.startswith("/") else (previous if not path else None)
                break
    if library is None or "/lib" not in library:
        return "heap"
    return f"{os.path.basename(library)} +{address - base[library]:#x} (static)"


def backtrace(pid, thread):
    """[(function or '??', library or ''), ...] of one thread, innermost first, by gdb."""
    command = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", str(pid),
               "-ex", "python\nimport json\nfor t in gdb.selected_inferior().threads():\n"
               f"  if t.ptid[1] != {thread}: continue\n"
               "  t.switch(); f = gdb.newest_frame(); out = []\n"
               "  while f is not None and len(out) < 60:\n"
               "    out.append([f.name() or '??', (gdb.solib_name(f.pc()) or '').split('/')[-1]])\n"
               "    f = f.older()\n"
               "  print('FRAMES ' + json.dumps(out))\nend"]
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=120, text=True, errors="replace",
                              env=environment, check=False)
    except subprocess.TimeoutExpired:
        return []
    for line in done.stdout.splitlines():
        if line.startswith("FRAMES "):
            return [tuple(frame) for frame in json.loads(line[len("FRAMES "):])]
    return [("gdb failed: " + done.stdout.strip()[-200:], "")]
