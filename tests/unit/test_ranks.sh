#!/usr/bin/env bash
# The unit tests of what ranks say and sum, as processes of MPI: two and three of them.
set -eu
mpi=$BUILD/mpi/tests/unit
if [ ! -x "$mpi/test_comm" ] || ! command -v mpirun >/dev/null; then
    echo "no MPI here: 'make check' tests ranks once 'apt-get install openmpi-bin libopenmpi-dev' was run"
    exit 77
fi
# Of Open MPI; others do not look at them.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none
for n in 2 3; do
    for test in test_comm test_fold; do
        mpirun -n $n "$mpi/$test" || {
            echo "$test fails on $n ranks"
            exit 1
        }
    done
done
