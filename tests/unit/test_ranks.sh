#!/usr/bin/env bash
# The unit tests of what ranks say and sum, as processes of MPI: two and three of them.
set -eu
cd "$(dirname "$0")/../.."
# shellcheck source=tests/ranks.sh
. tests/ranks.sh
mpi=${MPI_BUILD:-$BUILD/mpi}/tests/unit
has_ranks "$mpi/test_comm" || exit 77
for n in 2 3; do
    for test in test_comm test_reduction; do
        "$MPIRUN" -n $n "$mpi/$test" || {
            echo "$test fails on $n ranks"
            exit 1
        }
    done
done
