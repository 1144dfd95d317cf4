#!/usr/bin/env bash
# mpi-pair.sh MODEL TOKENS [TOOL OPTION...]: time one process with two threads and two pinned ranks of
# one thread each, one after the other.  Prints the seconds of both and their ratio (one process over
# two ranks: 1 means no loss).  Needs an idle machine with two CPUs.  Default TOOL: fm-rank.
set -eu
cd "$(dirname "$0")/../.."
bin=$PWD/${BUILD:-build}/bin mpi=$(realpath "${MPI_BUILD:-${BUILD:-build}/mpi}")/bin
model=$1 tokens=$2
shift 2
[ $# -gt 0 ] || set -- fm-rank
tool=$1
shift
# shellcheck source=tests/ranks.sh
. tests/ranks.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
seconds() { python3 -c "import json, sys; print(json.load(open(sys.argv[1]))['seconds'])" "$1"; }
for ((i = 0; i < ${ROUNDS:-1}; i++)); do
    env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u SLURM_STEP_NUM_TASKS "$bin/$tool" -q -f -T 2 --model "$model" --tokens "$tokens" -o "$scratch/one" \
        --json "$@" >"$scratch/one.json"
    # Ranks that share a set of CPUs divide it: here each gets one CPU.
    "$MPIRUN" -n 2 "$mpi/$tool" -q -f --model "$model" --tokens "$tokens" -o "$scratch/two" \
        --json "$@" >"$scratch/two.json"
    one=$(seconds "$scratch/one.json") two=$(seconds "$scratch/two.json")
    echo "$tool: one process $one s, two ranks $two s: $(python3 -c "print(f'{$one / $two:.3f}')")"
done
python3 -c "import json, sys
for r in json.load(open(sys.argv[1]))['ranks']:
    print({k: round(v, 2) if isinstance(v, float) else v for k, v in r.items()})" "$scratch/two.json"
