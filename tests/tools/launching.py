"""What the tests of rdmalloc run and its relatives share: environments, programs, launchers."""
import os
import re
import shutil
import stat
import subprocess

# Names that change what a launcher or the tool does; each test sets its own.
FOREIGN = ("RDMALLOC_", "OMPI_", "PRTE_", "PMIX_", "UCX_", "FI_", "SLURM_", "SBATCH_", "HYDRA_")
NOBODY = 65534


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
