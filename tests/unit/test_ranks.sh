#!/usr/bin/env bash
# Run the unit tests of messages between ranks and of their sums with two and three MPI processes.
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
