#!/usr/bin/python3
"""A libfabric that no Debian has, 2.6.0 for one: is its cache safe from two threads, and does rdmalloc know it?

    libfabric_source_test.py FOLDER LAB_REGISTRATIONS LIBRDMALLOC_SO

LIBFABRIC_SOURCE is an unpacked source of libfabric, a checkout of a tag or a release's archive: it is copied to FOLDER and
built there with the providers verbs, rxm and tcp (autoconf, automake, libtool and the headers of libibverbs and librdmacm; a
minute or two). Without it: SKIP. In one boot of the lab, over soft-RoCE, with that library before Debian's:

- docs/reports/node_taken_twice.c, five times with a monitor and five times with four threads. Of 2.6 at least one of the ten
  crashes or hangs, else docs/reports/node-taken-twice.md, `doctor` and README.md are wrong of it; any other release ends ten
  times, else they are wrong of that one.
- docs/reports/pinned_after_close.c and fabric_answers_wider.c, as their pages have them of every release.
- a program that registers, under rdmalloc, where fresh buffers come back after purges: rdmalloc warns of 2.6 and of no other;
  with RDMALLOC_PURGE=off, which the warning names, 2.6 ends with every byte right.

Run with 2.1.0, and with 2.1.0 whose node is allocated before the lock, as in 2.6.0, and that calls itself 2.6: the first ended
ten times, the second crashed seven times of ten and was warned of. Seen to fail on results made up: crashes of a 2.1, ten
ends of a 2.6, a warning for 2.1 and none for 2.6 (`problems_of`).
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

from stacks import CACHE_SETTINGS

HERE = pathlib.Path(__file__).resolve().parent
REPORTS = HERE.parents[1] / "docs" / "reports"
PROGRAMS = {"node_taken_twice": ["-pthread", "-lfabric"], "pinned_after_close": ["-lfabric"],
            "fabric_answers_wider": ["-rdynamic", "-lfabric", "-libverbs", "-ldl"]}
TURNS, LIMIT_S = 5, 60
RACE = (2, 6)
WARNING = "libfabric 2.6"


def skip(why):
    print("SKIP:", why)
    return 77


def missing():
    for name in ("/usr/include/infiniband/verbs.h", "/usr/include/rdma/rdma_cma.h"):
        if not os.path.exists(name):
            return f"{name} is missing: apt install libibverbs-dev librdmacm-dev"
    return None


def build(source, folder):
    """Installed to folder/prefix; the source is left as it is."""
    tree, prefix = folder / "source", folder / "prefix"
    shutil.copytree(source, tree, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    log = folder / "build.log"
    commands = [] if (tree / "configure").exists() else [["autoreconf", "-if"]]
    commands += [["./configure", f"--prefix={prefix}", f"--libdir={prefix}/lib", "--disable-static", "--enable-only",
                  "--enable-verbs=yes", "--enable-rxm=yes", "--enable-tcp=yes"],
                 ["make", f"-j{os.cpu_count()}"], ["make", "install"]]
    with open(log, "w", encoding="utf-8") as file:
        for command in commands:
            if subprocess.run(command, cwd=tree, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False).returncode:
                sys.exit(f"{' '.join(command)} failed: {log}\n" + "\n".join(log.read_text().splitlines()[-30:]))
    return prefix


def compile_programs(prefix, folder):
    for name, words in PROGRAMS.items():
        subprocess.run(["cc", "-O2", f"-I{prefix}/include", REPORTS / f"{name}.c", "-o", folder / name, f"-L{prefix}/lib",
                        *words], check=True)


def runs(folder, prefix):
    """(name, command line for the guest's shell)."""
    library = f"LD_LIBRARY_PATH={prefix}/lib"
    for how in ("monitor", "registers"):
        for turn in range(TURNS):
            yield f"{how} {turn}", f"timeout -s KILL {LIMIT_S} env {library} {folder}/node_taken_twice {how}"
    yield "pinned", f"timeout -s KILL {LIMIT_S} env {library} {folder}/pinned_after_close"
    yield "wider", f"timeout -s KILL {LIMIT_S} env {library} {folder}/fabric_answers_wider"
    settings = " ".join(f"{name}={value}" for name, value in CACHE_SETTINGS.items())
    for purge in ("auto", "off"):
        yield (f"rdmalloc {purge}",
               f"timeout -s KILL {LIMIT_S} env {library} {settings} RDMALLOC_PURGE={purge} RDMALLOC_DECAY_MS=0 "
               f"LD_PRELOAD={folder}/librdmalloc.so.0 {folder}/lab_registrations 20 258048 fresh")


def problems_of(parts):
    """parts: {name: (status, output)}."""
    said = re.search(r"^libfabric (\d+)\.(\d+)$", parts["monitor 0"][1], flags=re.M)
    if said is None:
        yield f"the program does not say its libfabric: {parts['monitor 0']}"
        return
    release = tuple(map(int, said.groups()))
    is_race = release == RACE
    for how in ("monitor", "registers"):
        ends = ["hung" if status == 137 else "ended" if status == 0 and "\nended: " in text else "crashed"
                for status, text in (parts[f"{how} {turn}"] for turn in range(TURNS))]
        print(f"libfabric {release[0]}.{release[1]}: {how}: {', '.join(ends)}")
        if not is_race and set(ends) != {"ended"}:
            yield f"{how}: {ends}, of a release that docs/reports/node-taken-twice.md has as safe"
    if is_race and all(parts[f"{how} {turn}"][0] == 0 for how in ("monitor", "registers") for turn in range(TURNS)):
        yield "all ten ended, of the release that docs/reports/node-taken-twice.md has as not safe"
    for name, status, line in (("pinned", 1, "after fi_close +1024 KiB"), ("wider", 1, "the key is the first one's")):
        if parts[name][0] != status or not re.search(line, parts[name][1]):
            yield f"{name}: {parts[name]}"
    status, text = parts["rdmalloc auto"]
    print(f"libfabric {release[0]}.{release[1]}: rdmalloc {'warns' if WARNING in text else 'does not warn'}, status {status}")
    if (WARNING in text) != is_race:
        yield f"rdmalloc's warning: {text}"
    for purge in ("off",) if is_race else ("auto", "off"):
        status, text = parts[f"rdmalloc {purge}"]
        if status != 0 or "wrong_bytes 0 " not in text or (purge == "off" and WARNING in text):
            yield f"rdmalloc {purge}: status {status}: {text}"


def main(folder, registrations, library):
    source = os.environ.get("LIBFABRIC_SOURCE")
    if not source:
        return skip("LIBFABRIC_SOURCE names no source of libfabric (git clone -b v2.6.0 …/ofiwg/libfabric)")
    if why := missing():
        return skip(why)
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prefix = build(source, folder)
    compile_programs(prefix, folder)
    shutil.copy(registrations, folder)
    shutil.copy(library, folder / "librdmalloc.so.0")
    script = "\n".join(f"echo; echo 'run {name}'; {command} 2>&1; s=$?; echo; echo status $s"
                       for name, command in runs(folder, prefix))
    done = subprocess.run([HERE.parents[1] / "tools" / "lab", "-q", "--limit", str(14 * LIMIT_S + 100), "--mount", folder,
                           "run", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    output = done.stdout.decode(errors="replace").replace("\r", "")
    parts = {name: (int(status), text) for name, text, status in
             re.findall(r"^run (.+?)\n(.*?)^status (\d+)$", output, flags=re.M | re.S)}
    if missed := [name for name, _ in runs(folder, prefix) if name not in parts]:
        print(f"the lab ended with {done.returncode}, without {missed}:\n{output[-4000:]}")
        return 1
    problems = list(problems_of(parts))
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
