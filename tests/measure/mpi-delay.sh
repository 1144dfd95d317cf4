#!/usr/bin/env bash
# mpi-delay.sh [MICROSECONDS]: run fm-rank, fm-train and fm-recover on two ranks with every message
# delayed by that many microseconds (default: 1000), using lib/comm/wire_mpi.c compiled with a delay.  Prints the
# seconds, the share of them spent waiting, and whether the bytes equal those of one process.  With NETWORK=1
# the ranks are in two network namespaces of this machine instead, joined by a link of RATE
# (mpi-network.sh), and messages are not delayed.  The default model is small, and its leaves take
# milliseconds; MODEL, TOKENS (16-bit), SEQ_LEN and PRECISION select another.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build} delay=${1:-1000}
bin=$PWD/$build/bin model=$(realpath "${MODEL:-golden/odd-qwen2}") network=$PWD/tests/measure/mpi-network.sh
mpi=$(realpath "${MPI_BUILD:-$build/mpi}")/bin
# shellcheck source=tests/ranks.sh
. tests/ranks.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ "${NETWORK:-0}" = 1 ]; then
    run=(bash "$network")
else
    # The same objects, except wire_mpi.c's.
    make --no-print-directory BUILD="$build" MPI_BUILD="$scratch" CPPFLAGS="-DFM_WIRE_DELAY_US=$delay" \
        "$scratch"/bin/fm-{rank,train,recover} >/dev/null
    mpi=$scratch/bin run=("$MPIRUN" -n 2)
fi
cd "$scratch"
[ -n "${TOKENS:-}" ] || python3 -c "import sys
sys.stdout.buffer.write(b''.join((i * i % 89 + i % 7).to_bytes(2, 'little') for i in range(64 * 512)))" >tokens.u16
common=(-q --model "$model" --tokens "${TOKENS:-$PWD/tokens.u16}" --seq-len "${SEQ_LEN:-64}"
    --precision "${PRECISION:-f32}")
members() { # members STREAM: print all members except build.json
    tar xOf "$1" --exclude build.json
}
try() { # try TOOL OPTION...: run it with one process, then with two ranks
    local tool=$1 same=differ
    shift
    "$bin/$tool" "${common[@]}" --threads 2 -f -o "$tool.one" --json "$@" >one.json
    "${run[@]}" "$mpi/$tool" "${common[@]}" --threads 1 -f -o "$PWD/$tool.two" --json "$@" >two.json
    cmp <(members "$tool.one") <(members "$tool.two") && same="are the same"
    python3 - "$tool" "$same" <<'END'
import json, sys
one, two = (json.load(open(f"{n}.json")) for n in ("one", "two"))
waited = [r["seconds_waiting"] / two["seconds"] for r in two["ranks"]]
hosts = " and ".join(dict.fromkeys(r["host"] for r in two["ranks"]))
print(f"{sys.argv[1]} on {hosts}: one process {one['seconds']:.2f} s, two ranks {two['seconds']:.2f} s, of which they "
      f"waited {100 * waited[0]:.0f} and {100 * waited[1]:.0f} %; bytes {sys.argv[2]}")
END
    grep sent log || true
}
rows=$((2048 / ${SEQ_LEN:-64})) # rows of one leaf
try fm-rank --batch $rows
try fm-train --method learned --batch $((4 * rows)) --steps "${STEPS:-8}" --budget-step 0.2 --until 0.2 "$PWD/fm-rank.one"
try fm-recover --batch $((4 * rows)) --lora-rank 16 --steps "${STEPS:-8}" --budget 0 "$PWD/fm-train.one"
