#!/usr/bin/env bash
# Run the host side of `make gpu-check` without a GPU: the check's own program and parts, in their
# order, linked against strict fakes of the driver, the runtime and cuBLAS (tests/gpu/double.h);
# then each call to them fails in turn.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
doubles=$BUILD/tests/gpu
if [ ! -e "$doubles/gpu_check_double" ]; then
    echo "no CUDA compiler, or CUDA=0: the GPU side was not built"
    exit 77
fi
bad=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT

# refuses WORDS WHAT PART: with FM_DOUBLE=WORDS the part must fail, name WHAT, and have found a GPU
refuses() {
    FM_DOUBLE=$1 LD_LIBRARY_PATH=$doubles "$doubles/gpu_check_double" "$3" >"$scratch/refused" 2>&1
    if [ $? != 1 ] || ! grep -q "^FAIL.*$2" "$scratch/refused"; then
        echo "FAIL with FM_DOUBLE=$1: $3 does not fail for $2"
        bad=1
    fi
}

# emulated PART...: run parts in the emulator, thread by thread, including the products
emulated() {
    FM_DOUBLE=emulated LD_LIBRARY_PATH=$doubles "$doubles/gpu_check_double" "$@" || bad=1
}

# check_fake SECONDS HANGS PARTS...: run the check with a program that hangs if HANGS matches its
# arguments, and then ignores SIGTERM.
check_fake() {
    local home=$scratch/fake seconds=$1 hangs=$2
    shift 2
    mkdir -p "$home/tests/gpu"
    cat >"$home/tests/gpu/gpu_check_double" <<'END'
#!/bin/bash
trap '' TERM
for ((i = 0; i < 150; i++)); do # half a minute, unless it is killed
    [[ ! " $* " =~ $hangs ]] || sleep 0.2
done
echo "what $* says"
END
    chmod +x "$home/tests/gpu/gpu_check_double"
    FM_GPU_DOUBLE=1 FM_GPU_SECONDS=$seconds OUT=$scratch/hung BUILD=$home HOME=/nonexistent \
        hangs=$hangs bash tests/gpu/gpu-check.sh "$@" >/dev/null 2>&1
}

# A run that hangs is ended and reported; runs before and after it keep their results, and the check
# ends in time even if everything hangs.  Only $OUT is written.
hangs() {
    local began took name log=$scratch/hung/summary.txt
    check_fake 20 ' tiny ' small replays
    if [ $? != 1 ] || [ "$(grep -c '^\(tiny\|simple\): HUNG' "$log")" != 2 ] || ! grep -q '^small: ok' "$log" ||
        ! grep -q '^replays: ok' "$log" || ! grep -q 'what small says' "$scratch/hung/small.log"; then
        echo "FAIL a part that hangs:"
        cat "$log"
        bad=1
    fi
    began=${EPOCHREALTIME/[.,]/}
    check_fake 12 'probes|tiny|small|replays|edges|bench|baselines'
    [ $? = 1 ] || bad=1
    took=$(((${EPOCHREALTIME/[.,]/} - began) / 1000))
    for name in probes tiny small simple replays edges quick baselines; do
        grep -q "^$name: \(HUNG\|left out, the time is over\)" "$log" || echo "$name is not reported"
    done >"$scratch/untold"
    # Starting a process may take longer than limits this short, but the last part must have been started.
    if [ -s "$scratch/untold" ] || ! grep -q '^baselines: HUNG' "$log" || [ $took -gt 16000 ]; then
        echo "FAIL all parts hang: $took ms of 12000"
        cat "$scratch/untold" "$log"
        bad=1
    fi
}

# The limits of all parts but those that run only if named add up to at most ten minutes, and the parts
# that find faults most cheaply come first.
plans() {
    local plan
    plan=$(bash tests/gpu/gpu-check.sh plan)
    if ! awk '$2 != "real" && $2 != "bench" { sum += $3 } END { exit !(NR > 20 && sum <= 600) }' <<<"$plan" ||
        [ "$(awk '$2 != "-" { print $2 }' <<<"$plan" | uniq | tr '\n' ' ')" != \
            "host probes small replays edges model torch quick profile baselines memcheck real bench " ]; then
        echo "FAIL the plan of the check:"
        echo "$plan"
        bad=1
    fi
}

# The check is linked with the objects that ship, not with others from the same sources.
ships() {
    local line source
    line=$(make -n -B --no-print-directory "$BUILD/tests/gpu/gpu_check" 2>/dev/null |
        grep -- "-o $BUILD/tests/gpu/gpu_check ")
    for source in kernels/clip/cuda/*.cu; do
        [[ "$line" == *" $BUILD/$source.o "* ]] || {
            echo "FAIL the check is not linked with $BUILD/$source.o"
            bad=1
        }
    done
}

# A directory with the fake cuBLAS, like a toolkit's, that the loader does not search.  If the loader would
# find a real cuBLAS, LD_LIBRARY_PATH below makes it find the fake instead.
mkdir -p "$scratch/cuda/lib64"
ln -s "$(realpath "$doubles/libcublas.so.13")" "$scratch/cuda/lib64/"

plans
hangs
ships
emulated tiny
emulated replays 1
FM_GPU_DOUBLE=1 OUT=$scratch BUILD=$BUILD bash tests/gpu/gpu-check.sh || bad=1
# memcheck, which is slow, runs `small`, so `small` leaves out the baselines
grep -q 'naive 0, bucket 0' "$scratch/small.log" || {
    echo "FAIL small runs baselines"
    bad=1
}
if ldconfig -p 2>/dev/null | grep -q libcublas.so; then
    export LD_LIBRARY_PATH=$doubles
fi
CUDA_HOME=$scratch/cuda "$doubles/double_test" || bad=1
refuses notensormap "path 19" probes
refuses notensormap "path 19" tiny
# On older and newer devices, which lack Hopper's instructions, the other paths are used and checked.
for cc in 8.0 10.0 12.0; do
    if ! FM_DOUBLE=cc=$cc "$doubles/gpu_check_double" probes >"$scratch/cc" 2>&1 ||
        ! grep -q 'mma 4, hopper 0' "$scratch/cc"; then
        echo "FAIL on compute capability $cc:"
        cat "$scratch/cc"
        bad=1
    fi
done
FM_DOUBLE=none "$doubles/gpu_check_double" there >/dev/null
[ $? = 77 ] || {
    echo "FAIL without a driver: status 77 is wanted"
    bad=1
}
exit $bad
