#!/usr/bin/env bash
# --precision auto: if memory is missing while a tool finds out what the CPU can compute, the run fails;
# it does not continue in another precision.  Each mmap of fm-rank fails in turn.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
bin=$(realpath "$build")/bin faults=$(realpath "$build")/tests/unit/faults.so odd=$PWD/golden/odd-mixtral
[ -z "${SAN:-}" ] || { echo "this test preloads a library, which sanitizers do not allow" && exit 77; }
[ -e "$faults" ] || { echo "no $faults; make tests" && exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

rank() { # rank FAULT OUT
    LD_PRELOAD=$faults FM_FAULT=$1 FM_FAULT_TOLD=told "$bin/fm-rank" -q -T 1 --model "$odd" --tokens "$odd/tokens.npy" \
        -o "$2" >/dev/null 2>said
}

rank none:0:fail want || { cat said && exit 1; }
calls=$(sed -n 's/^mmap //p' told)
[ "$calls" -ge 2 ] || { echo "fm-rank called mmap $calls times" && exit 1; }
for ((n = 1; n <= calls; n++)); do
    rank "mmap:$n:fail" out
    status=$?
    if [ $status != 71 ] || [ -e out ] || ! grep -q "no memory" said; then
        echo "mmap $n: status $status; $(cat said)"
        [ ! -e out ] || cmp out want
        exit 1
    fi
done
