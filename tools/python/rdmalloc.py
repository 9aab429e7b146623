"""rdmalloc's counters, from inside a Python process that runs with it.

    rdmalloc run -- python3 program.py        # or: mpirun … under rdmalloc run

    import rdmalloc
    rdmalloc.stats()["live_bytes"]            # every counter of docs/settings.md
    rdmalloc.stats()["domains"]               # of each domain of the registration cache
    rdmalloc.ctl("purge.decay_ms")            # a setting or counter by its name
    rdmalloc.ctl("purge.decay_ms", 100)       # sets it, and returns what it was

Loads no library: it asks the librdmalloc.so that is this process's malloc, and raises NotLoaded,
with what to do, where there is none.
"""
import ctypes
import json
import os

__all__ = ["Error", "NotLoaded", "ctl", "is_loaded", "purge", "stats", "version"]

_JSON = 1  # RDMALLOC_STATS_JSON


class NotLoaded(RuntimeError):
    """This process runs without rdmalloc."""


class Error(OSError):
    """What rdmalloc refused, with its errno and its words."""


def _library():
    """The functions that the process has already, by the preload or because it links them."""
    functions = ctypes.CDLL(None)
    if not hasattr(functions, "rdmalloc_stats_print"):
        preload = os.environ.get("LD_PRELOAD", "")
        raise NotLoaded(
            "librdmalloc.so is not loaded in this process (LD_PRELOAD is "
            + (f"'{preload}'" if preload else "not set")
            + "); start it with: rdmalloc run -- python3 …")
    functions.rdmalloc_strerror.restype = ctypes.c_char_p
    functions.rdmalloc_version.restype = ctypes.c_char_p
    functions.rdmalloc_purge.argtypes = [ctypes.c_size_t]
    functions.rdmalloc_purge.restype = ctypes.c_int64
    functions.rdmalloc_ctl.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p,
                                       ctypes.c_void_p, ctypes.c_size_t]
    return functions


def _check(functions, result, what):
    if result < 0:
        raise Error(-result, f"{what}: {functions.rdmalloc_strerror(int(result)).decode()}")
    return result


def is_loaded():
    """Whether this process's malloc is rdmalloc's."""
    try:
        _library()
    except NotLoaded:
        return False
    return True


def version():
    """Of the library, not of this module."""
    return _library().rdmalloc_version().decode()


def stats():
    """All counters, as a dictionary; those of registrations in "domains" and "closed_domains"."""
    functions = _library()
    # A file without a name, since a pipe would have to be read beside the writing.
    file = os.memfd_create("rdmalloc.stats")
    try:
        _check(functions, functions.rdmalloc_stats_print(file, _JSON), "stats")
        os.lseek(file, 0, os.SEEK_SET)
        text = b""
        while part := os.read(file, 1 << 16):
            text += part
    finally:
        os.close(file)
    return json.loads(text)


def ctl(name, value=None):
    """A setting or counter by its dotted name (docs/settings.md), before `value` was set."""
    functions = _library()
    old, size = ctypes.c_uint64(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_uint64))
    if value is not None and not 0 <= value < 1 << 64:
        raise ValueError(f"{name}: {value} is not within 64 bits")
    new = None if value is None else ctypes.byref(ctypes.c_uint64(value))
    _check(functions, functions.rdmalloc_ctl(name.encode(), ctypes.byref(old), ctypes.byref(size),
                                             new, 0 if new is None else size.value), name)
    return old.value


def purge(keep_bytes=0):
    """Gives free memory back to the kernel now; the bytes that went."""
    functions = _library()
    return _check(functions, functions.rdmalloc_purge(keep_bytes), "purge")
