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
# Open MPI 4's mpirun now and then says of a rank that has finalized that it has not, and ends with 1 (open-mpi/ompi
# #7833, of programs without a preload; a rank waits 2 s at most for the launcher to have heard of it, PMIx_Finalize).
# A run that refutes it, since both ranks have all right and came back from MPI_Finalize(), is done again.
launch() {
  local try status
  for try in 1 2 3; do
    status=0
    "$mpirun" -n 2 --mca pml "$1" --mca btl "$2" --mca btl_tcp_if_include lo "$MPI_PROGRAM" >out 2>err || status=$?
    [[ $status == 1 ]] && grep -q 'exiting improperly' err || break
    [[ $(grep -cE ': ([0-9]+) of \1 broadcasts right|: finalized$' out) == 4 ]] || break
    echo "mpirun, try $try: a rank is said to have exited improperly" >&2
  done
  cat err >&2
  # Standard output reaches the launcher in any order.
  sort out
  return "$status"
}
for transport in 'ob1 vader,self' 'ob1 tcp,self'; do
  read -r pml btl <<<"$transport"
  launch "$pml" "$btl"
done
