#!/bin/sh
# test_comm as processes that mpirun starts, of each MPI that is here: the bits that ranks as threads have.
# Usage: tests/comm.sh BUILD
. tools/checks.sh
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
for mpi in openmpi mpich; do
    export TENON_MPI="$build/tenon-mpi-$mpi.so"
    if ! [ -f "$TENON_MPI" ] || ! command -v mpirun.$mpi >"$dir/path"; then
        echo "note: comm.sh: without $mpi"
        continue
    fi
    for n in 1 2 3 8; do
        TENON_COMM_DELAY=500,$n timeout 60 mpirun.$mpi -n $n "$build/tests/test_comm" >"$dir/err" 2>&1
        ok "$mpi: test_comm on $n ranks"
    done
done
totals
