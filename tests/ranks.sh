# shellcheck shell=bash
# What tests that start ranks source: MPIRUN is the launcher of the MPI that MPI_BUILD was linked
# with.  Open MPI wants to be told that root may, and that there may be more ranks than CPUs; other
# MPIs do not look at its variables.
MPIRUN=${MPIRUN:-mpirun}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none

# MPI leaks, and its frames have no pointers to unwind by.
if [ -n "${SAN:-}" ]; then
    LSAN_OPTIONS=suppressions=$(dirname "${BASH_SOURCE[0]}")/mpi.supp:print_suppressions=0
    export LSAN_OPTIONS ASAN_OPTIONS=fast_unwind_on_malloc=0:malloc_context_size=12
fi

has_ranks() { # has_ranks FILE: it was built and there is a launcher; else says what to install
    [ -x "$1" ] && command -v "$MPIRUN" >/dev/null && return
    echo "no MPI here: 'make check' tests ranks once 'apt-get install openmpi-bin libopenmpi-dev' was run" >&2
    return 1
}

a_rank_of() { # a_rank_of LAUNCHER: one of its ranks, which MPICH has behind a proxy
    local parent=$1 proxy
    ! proxy=$(pgrep -P "$1" hydra) || parent=$proxy
    pgrep -P "$parent" fm- | shuf -n 1 || true
}
