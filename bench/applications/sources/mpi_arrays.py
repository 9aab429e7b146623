"""mpi_arrays.py TURNS: what Python programs do with mpi4py: fresh numpy arrays that are broadcast and reduced, and objects
that are pickled."""
import sys

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
turns = int(sys.argv[1])
total = 0.0
for turn in range(turns):
    for elements in 1_000, 30_000, 500_000:
        array = numpy.full(elements, turn, dtype=float) if world.rank == 0 else numpy.empty(elements)
        world.Bcast(array, root=0)
        summed = numpy.empty_like(array)
        world.Allreduce(array * 2.0 + 1.0, summed, op=MPI.SUM)
        total += float(summed[-1])
    table = {f"key {i}": [i, float(i), "text " * 8] for i in range(500)} if world.rank == 0 else None
    table = world.bcast(table, root=0)
    everyone = world.allgather({"rank": world.rank, "rows": list(table)[:100]})
    if len(everyone) != world.size:
        sys.exit("a rank is missing")
if total != sum(3 * world.size * (2.0 * turn + 1.0) for turn in range(turns)):
    sys.exit(f"wrong sum: {total}")
