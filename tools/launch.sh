# shellcheck shell=sh
# Read after tools/checks.sh by scripts that start ranks as processes.

# Open MPI refuses to run as root, as in a container, and more ranks than there are cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

# mpis: the names of those whose module was built and whose mpirun.NAME is there; of others a note in $dir/skipped.
mpis() {
    for mpi in mpich openmpi; do # the first, which starts faster, tries what either can
        if [ ! -e "$build/tenon-mpi-$mpi.so" ]; then
            echo "note: no ranks by $mpi: its module was not built"
        elif ! command -v mpirun.$mpi >/dev/null; then
            echo "note: no ranks by $mpi: there is no mpirun.$mpi"
        else
            echo $mpi >&3
        fi
    done 3>&1 >"$dir/skipped"
}
