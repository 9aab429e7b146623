"""What the tests of rdmalloc run and its relatives share: environments, programs, launchers."""
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from lab_folder import lab_folder  # noqa: E402

# LD_PRELOAD is divided at blanks and colons, what cc and mpirun are given at commas too: what is preloaded
# from a folder for temporary files must be named without.
if re.search(r"[\s:,;]", tempfile.gettempdir()):
    tempfile.tempdir = "/tmp"

# Names that change what a launcher or the tool does; each test sets its own.
FOREIGN = ("RDMALLOC_", "OMPI_", "PRTE_", "PMIX_", "UCX_", "FI_", "SLURM_", "SBATCH_", "HYDRA_")
NOBODY = 65534
# The lab's root, as far as it is there (tools/lab --release trixie fetch).
DEBIAN_13 = os.path.join(lab_folder(), "roots", "trixie")


def environment(**more):
    """Ours without what an outer launcher or shell left in it; None takes a variable out."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(FOREIGN) and name != "LD_PRELOAD"}
    kept.update(more)
    return {name: value for name, value in kept.items() if value is not None}


def open_mpi(**more):
    """As root, without ssh, more ranks than cores: what this machine needs, not what is tested."""
    return environment(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMPI_MCA_plm="isolated", OMPI_MCA_rmaps_base_oversubscribe="1",
                       OMPI_MCA_btl_vader_single_copy_mechanism="none",
                       PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe", **more)


def call(command, env=None, **more):
    more.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(command, env=env if env is not None else environment(), text=True,
                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          check=False, **more)


def script(path, text, mode=0o755):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def patched_copy(source, path, offset, value):
    """A copy of an ELF file with one byte of its header changed."""
    shutil.copy(source, path)
    os.chmod(path, 0o755)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(bytes([value]))
    return path


def is_open_mpi(path):
    return path is not None and "Open" in call([path, "--version"]).stdout.split("\n")[0]


def copy_of_tool(tool, folder):
    """The tool and the libraries of it that Debian has not everywhere, in a folder that any user or root may
    reach; it runs with LD_LIBRARY_PATH=folder."""
    needed = call(["ldd", tool]).stdout
    for name in ("librdmalloc", "libfmt"):
        shutil.copy(re.search(rf"{name}\S* => (\S+)", needed)[1], folder)
    return shutil.copy(tool, folder + "/rdmalloc")


def readable_by_all(folder):
    """So that a program can be tried as another user too."""
    os.chmod(folder, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)


def pointers_in(library):
    """Of a 64-bit ELF file: its bytes, where in them an address is, and the pointers that the loader will fill."""
    with open(library, "rb") as file:
        data = file.read()
    first, = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, first + size * at) for at in range(count)]
    nobits, rela, relative = 8, 4, 8

    def offset(address):
        return next((address - one[3] + one[4] for one in sections
                     if one[1] != nobits and one[3] and one[3] <= address < one[3] + one[5]), None)

    pointers = {}
    for one in sections:
        for at in range(one[4], one[4] + one[5], 24) if one[1] == rela else ():
            place, kind, addend = struct.unpack_from("<QQq", data, at)
            if kind & 0xffffffff == relative:
                pointers[place] = addend
    return data, offset, pointers


def slurm_options(library):
    """Slurm's options in its libslurmfull: (name, letter or "", has_arg) of each, as one slurm_cli_opt_t has them."""
    data, offset, pointers = pointers_in(library)
    found = set()
    for place, address in pointers.items():
        name, at = offset(address), offset(place)
        if name is None or at is None:
            continue
        text = data[name:data.index(b"\0", name)]
        has_argument, value = struct.unpack_from("<i12xi", data, at + 8)
        is_long = 0x100 <= value < 0x400  # LONG_OPT_ENUM_START on
        if has_argument in (0, 1, 2) and (is_long or chr(value & 0x7f).isalpha() and value < 0x7f) \
                and re.fullmatch(rb"[a-z][a-z0-9_-]+", text):
            found.add((text.decode(), "" if is_long else chr(value), has_argument))
    return found


def option_tables(library):
    """Tables of struct option (getopt_long(3)) in a 64-bit ELF file: the options and has_arg of each."""
    data, offset, pointers = pointers_in(library)

    def entry(place):
        if place not in pointers or place + 16 in pointers:
            return None
        name, at = offset(pointers[place]), offset(place)
        if name is None or at is None:
            return None
        text = data[name:data.index(b"\0", name)]
        has_argument, flag = struct.unpack_from("<i4xQ", data, at + 8)
        if has_argument not in (0, 1, 2) or flag or not re.fullmatch(rb"[A-Za-z0-9-]+", text):
            return None
        return text.decode(), has_argument

    tables, seen = [], set()
    for place in sorted(pointers):
        table = {}
        while place not in seen and (one := entry(place)):
            table[one[0]] = one[1]
            seen.add(place)
            place += 32  # sizeof(struct option)
        if len(table) > 20:
            tables.append(table)
    return tables
