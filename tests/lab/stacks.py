"""What the matrices cross: fabric stacks, allocators, and the work of a cell (docs/deadlock-matrix.md)."""
import collections

# The pattern that makes real allocators purge inside the cache: many registrations of live memory,
# nothing merged, nothing evicted, and messages that are not too small to be registered.
CACHE_SETTINGS = {"FI_UNIVERSE_SIZE": "16", "FI_OFI_RXM_SAR_LIMIT": "16384",
                  "FI_MR_CACHE_MAX_COUNT": "100000", "FI_MR_CACHE_MAX_SIZE": "-1"}
MPI_SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "OMPI_MCA_rmaps_base_oversubscribe": "1",
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
OFI = ["--mca", "pml", "cm", "--mca", "mtl", "ofi",
       "--mca", "mtl_ofi_provider_include", "verbs;ofi_rxm"]
UCX = ["--mca", "pml", "ucx"]
# get_zcopy: from registered memory. Left to itself UCX 1.18 copies through buffers of its own over
# this device, at every size (UCX_PROTO_INFO=y), so that no cache is put to the test.
UCX_SETTINGS = {"UCX_TLS": "rc,self", "UCX_NET_DEVICES": "rxe0:1", "UCX_IB_GID_INDEX": "0",
                "UCX_RNDV_SCHEME": "get_zcopy", "UCX_RNDV_THRESH": "16384"}

# release: whose Debian; mpirun: its words, None for libfabric alone.
Stack = collections.namedtuple("Stack", "name release mpirun settings")
STACKS = [
    Stack("Open MPI 4.1.4 + libfabric 1.17", "host", OFI, CACHE_SETTINGS),
    Stack("Open MPI 5.0.7 + libfabric 2.1", "trixie", OFI, CACHE_SETTINGS),
    Stack("libfabric 1.17 alone", "host", None, CACHE_SETTINGS),
    Stack("libfabric 2.1 alone", "trixie", None, CACHE_SETTINGS),
    Stack("Open MPI 4.1.4 + UCX 1.13", "host", UCX, UCX_SETTINGS),
    Stack("Open MPI 5.0.7 + UCX 1.18", "trixie", UCX, UCX_SETTINGS),
]

# role, which decides what is asserted (verdicts.py):
#   hangs     the control of the deadlock matrix
#   peer      reported, not judged: whether it hangs is a matter of the moment
#   rdmalloc  must end, with every byte right
#   silent    the control of the staleness matrix
#   shrinks   glibc, whose heap shrinks by brk: wrong bytes in one stack (docs/reports/heap-that-shrinks.md)
# recycles: it purges by itself, at once, so that the cell recycles buffers too (programs/blocks.h).
# shrinks: the cell runs the program of that report instead of broadcasts by pattern.
Allocator = collections.namedtuple("Allocator", "name library settings role recycles shrinks", defaults=(False,))
RDMALLOC = "librdmalloc.so.0"
AT_EVERY_CHANCE = {"RDMALLOC_DECAY_MS": "0"}
# mimalloc is this machine's 2.0.9 in both Debians: 3.0 purges elsewhere.
ALLOCATORS = [
    Allocator("control: malloc calls madvise", "libmadvise_malloc.so", {}, "hangs", False),
    Allocator("mimalloc 2.0.9, decommit delay 1 ms", "libmimalloc.so.2.0",
              {"MIMALLOC_DECOMMIT_DELAY": "1"}, "peer", False),
    Allocator("jemalloc 5.3", "libjemalloc.so.2", {}, "peer", False),
    Allocator("glibc", None, {}, "peer", False),
    Allocator("rdmalloc", RDMALLOC, {}, "rdmalloc", False),
    Allocator("rdmalloc, purging at every chance", RDMALLOC, AT_EVERY_CHANCE, "rdmalloc", True),
    Allocator("rdmalloc hooks, purging at every chance", RDMALLOC,
              {**AT_EVERY_CHANCE, "RDMALLOC_NOTIFY": "hooks"}, "rdmalloc", True),
    Allocator("rdmalloc T1, purging at every chance", RDMALLOC,
              {**AT_EVERY_CHANCE, "RDMALLOC_NOTIFY": "explicit"}, "rdmalloc", True),
    Allocator("control: rdmalloc purging without notifications", RDMALLOC,
              {**AT_EVERY_CHANCE, "RDMALLOC_NOTIFY": "off"}, "silent", True),
    Allocator("glibc, its heap shrinking", None, {}, "shrinks", False, shrinks=True),
    Allocator("rdmalloc, the same program", RDMALLOC, {}, "rdmalloc", False, shrinks=True),
]
# The report's program speaks MPI.
CELLS = [(stack, allocator) for stack in STACKS for allocator in ALLOCATORS
         if stack.mpirun is not None or not allocator.shrinks]


def cell_name(stack, allocator):
    return f"{stack.name} | {allocator.name}"


def cell_of(stack, allocator, libraries, programs, counts):
    """What cells.py runs. counts: broadcasts by pattern, and "limit" in seconds."""
    settings = {**stack.settings, **allocator.settings}
    if allocator.library:
        settings["LD_PRELOAD"] = f"{libraries}/{allocator.library}"
    # Growing first: it is the younger heap that lets a purge fall due inside the cache.
    work = [str(counts["growing"]), "24576", "growing", str(counts["fresh"]), "258048", "fresh"]
    if allocator.recycles:
        # Longer than what rdmalloc's threads cache: an idle one keeps one block of up to 256 KiB, pages and all.
        work += [str(counts["recycled"]), "307200", "recycled"]
    cell = {"name": cell_name(stack, allocator), "limit": counts["limit"],
            "stack": allocator.role != "hangs" or counts["stack_of_control"]}
    if stack.mpirun is None:
        return {**cell, "command": [f"{programs}/lab_registrations", *work], "environment": settings}
    if allocator.shrinks:
        program, work = "lab_heap_that_shrinks", [str(counts["shrinking"])]
    else:
        program = "lab_broadcast"
    exports = [word for name, value in settings.items() for word in ("-x", f"{name}={value}")]
    launcher = dict(MPI_SETTINGS)
    if stack.release == "host":
        launcher["OMPI_MCA_plm"] = "isolated"  # 4.1 looks for ssh otherwise; 5.0 has no such plm
    return {**cell, "environment": launcher,
            "command": ["mpirun.openmpi", "-n", "2", *stack.mpirun, *exports,
                        f"{programs}/{program}", *work]}
