#!/usr/bin/env bash
# mpi-kill.sh [TRIALS]: a rank is killed by SIGKILL at a random time, and the run goes on with
# another number of ranks, or as one process without MPI; every output has the bytes of an
# uninterrupted run of one process.  A line a trial; status 1 where one differs.  With SIGNAL=TERM or
# another that asks, the job must end with 75, "run me again", or be over.
set -eu
cd "$(dirname "$0")/../.."
bin=$PWD/${BUILD:-build}/bin mpi=$(realpath "${MPI_BUILD:-${BUILD:-build}/mpi}")/bin odd=$PWD/golden/odd-qwen2
trials=${1:-20} signal=${SIGNAL:-KILL}
# shellcheck source=tests/ranks.sh
. tests/ranks.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
python3 -c "import sys
sys.stdout.buffer.write(b''.join((i * i % 89 + i % 7).to_bytes(2, 'little') for i in range(64 * 272)))" >tokens
common=(-q --model "$odd" --tokens tokens --token-dtype u16 --seq-len 64 --precision f32 --threads 1)
declare -A options=(
    [fm-rank]="--batch 1"
    [fm-train]="--method learned --batch 96 --budget-step 0.1 --until 0.2 --steps ${STEPS:-40} ranked"
    [fm-recover]="--batch 96 --lora-rank 4 --budget 0 --steps ${STEPS:-40} trained"
)
start() { # start RANKS TOOL OUTPUT: 0 ranks, one process without MPI
    # shellcheck disable=SC2086 # a list of words
    if [ "$1" = 0 ]; then
        "$bin/$2" "${common[@]}" ${options[$2]} --state state -o "$3" >/dev/null 2>&1
    else
        "$MPIRUN" -n "$1" "$mpi/$2" "${common[@]}" ${options[$2]} --state state -o "$3" >/dev/null 2>&1
    fi
}
members() { # members STREAM: digests of all but build.json
    local member
    for member in $(tar tf "$1"); do
        [ "$member" = build.json ] || tar xOf "$1" "$member" | xxhsum -H2
    done
}
declare -A straight=([fm-rank]=ranked [fm-train]=trained [fm-recover]=recovered) took
for tool in fm-rank fm-train fm-recover; do
    began=${EPOCHREALTIME/./}
    start 0 $tool "${straight[$tool]}"
    took[$tool]=$(((${EPOCHREALTIME/./} - began) / 2))
done
tools=(fm-rank fm-train fm-recover) counts=(2 3 5) again=(3 0 2 1) status=0
for ((i = 0; i < trials;)); do
    tool=${tools[i % 3]} n=${counts[RANDOM % 3]} m=${again[RANDOM % 4]} kept=none
    rm -f out state
    wait=$(((RANDOM * 32768 + RANDOM) % took[$tool] + 300000))
    start "$n" "$tool" out &
    job=$!
    sleep "$((wait / 1000000)).$(printf %06d $((wait % 1000000)))"
    launcher=$(pgrep -P $job || true)
    victim=$([ -z "$launcher" ] || a_rank_of "$launcher")
    [ -z "$victim" ] || kill -"$signal" "$victim"
    code=0
    wait $job || code=$?
    if [ -z "$victim" ]; then # it was over, or had not begun
        took[$tool]=$((took[$tool] * 4 / 5 + 1))
        continue
    fi
    i=$((i + 1))
    [ ! -e state.lock ] || flock -w 9 state.lock true # others end a moment later than their launcher
    [ ! -e state ] || kept=state
    [ -e out ] || start "$m" "$tool" out || echo "the run after it failed"
    same=differs
    [ "$signal" = KILL ] || [ $code = 75 ] || [ $code = 0 ] || status=1
    [ "$(members out)" = "$(members "${straight[$tool]}")" ] && same=same || status=1
    echo "$tool: $n ranks, SIG$signal to one after $((wait / 1000)) ms, status $code, $kept left; then $m: $same"
done
exit $status
