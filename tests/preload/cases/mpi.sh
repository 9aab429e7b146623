#!/bin/bash
# Open MPI: launcher, daemon and ranks with the preload; shared memory and tcp.
set -euo pipefail
: "${MPI_PROGRAM:?the program of mpi_program.cc}"
# Beside MPICH, Debian's mpirun is whichever the administrator chose.
mpirun=$(command -v mpirun.openmpi || command -v mpirun || true)
[[ $mpirun ]] || { echo "SKIP: Open MPI is not installed"; exit 77; }
[[ $MPI_PROGRAM != none ]] || { echo "SKIP: MPI's headers were not installed at the build"; exit 77; }
# As root, without ssh, more ranks than cores, and quiet about all three.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
for transport in 'ob1 vader,self' 'ob1 tcp,self'; do
  read -r pml btl <<<"$transport"
  # Standard output reaches the launcher in any order.
  "$mpirun" -n 2 --mca pml "$pml" --mca btl "$btl" --mca btl_tcp_if_include lo "$MPI_PROGRAM" | sort
done
