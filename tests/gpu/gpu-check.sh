#!/usr/bin/env bash
# Run all checks that need a GPU within ten minutes: `make gpu-check`, or this script by
# itself from a copy of the sources.  It needs nvcc, gcc and make.  cuBLAS for the baselines, PyTorch
# to compare errors and speed, compute-sanitizer and ncu are used if they are installed; if not, the
# summary says so.
#
#   tests/gpu/gpu-check.sh [PART...]      all parts, in this order, or those named:
#
#   host       needs no GPU: the CPU path
#   small      tiny and small cases of the fused paths
#   replays    2,000 graph replays over random ids and widths, two streams on one layer
#   edges      one token, one slot, one expert, a layer of more than 2^31 numbers
#   model      the modelling file of exports on CUDA tensors
#   torch      errors compared with PyTorch's own
#   quick      a short benchmark, with the targets, and with PyTorch and Triton
#   profile    64 and 4096 tokens under ncu
#   baselines  the benchmark's baselines at odd sizes; late, since they may fail in cuBLAS
#   memcheck   tiny and small under compute-sanitizer
#   real bench (only if named) real sizes against the definition; the whole benchmark
#   plan       (on its own) prints what runs for each part, and its limit in seconds
#
# Everything, including the build, ends within FM_GPU_SECONDS (590).  Each run is a separate process with
# its own time limit.  The limits add up to no more than the total, so that a run that hangs does not
# take the time of later ones.  A run may use the time that earlier ones left over, up to twice its limit.
# Results are written to $OUT (or build/gpu-check) as they arrive.
#
# Nothing is written outside $OUT and the build folder: caches of CUDA, Triton and others go to
# $OUT/cache.
#
# Status 0; 1 if something is wrong; 77 if there is no nvcc (nothing has run) or no GPU (only `host`
# has run).
set -u
cd "$(dirname "$0")/../.." || exit 1
export LC_ALL=C
BUILD=${BUILD:-build}
out=${OUT:-$BUILD/gpu-check}
bad=0
all="host small replays edges model torch quick profile baselines memcheck"
parts=${*:-$all}

# What runs: its name, its part (-: it belongs to all parts), its limit in seconds out of 600.
plan="build - 124
machine - 6
there - 12
host host 6
tiny small 10
small small 24
replays replays 36
edges edges 24
model model 36
torch torch 30
quick quick 26
pytorch quick 24
profile profile 24
baselines baselines 18
memcheck memcheck 64
racecheck memcheck 20
synccheck memcheck 20
real real 300
bench bench 600"
if [ "$parts" = plan ]; then
    echo "$plan"
    exit 0
fi
mkdir -p "$out" || exit 1
export XDG_CACHE_HOME=$PWD/$out/cache PYTHONDONTWRITEBYTECODE=1
case $out in /*) XDG_CACHE_HOME=$out/cache ;; esac
export CUDA_CACHE_PATH=$XDG_CACHE_HOME/cuda TRITON_CACHE_DIR=$XDG_CACHE_HOME/triton
: >"$out/summary.txt"

say() {
    echo "== $*"
}
wants() {
    [[ " $parts " == *" $1 "* ]]
}
now() { # milliseconds
    echo $((${EPOCHREALTIME/./} / 1000))
}

seconds_max=${FM_GPU_SECONDS:-590}
began_all=$(now) ahead=0
declare -A limit # limits of the runs in milliseconds; ahead: the sum of those to come
while read -r name part seconds; do
    limit[$name]=$((seconds * seconds_max * 1000 / 600))
    [ "$part" != - ] && ! wants "$part" || ahead=$((ahead + limit[$name]))
done <<<"$plan"
# the parts that run only if named may take longer than the total
[ -n "${FM_GPU_SECONDS:-}" ] || [ $ahead -le $((seconds_max * 1000)) ] || seconds_max=$((ahead / 1000))

# room NAME: set $room to the milliseconds that a run may take: its limit, and time that others left over.
room() {
    ahead=$((ahead - limit[$1]))
    room=$((seconds_max * 1000 - ($(now) - began_all) - ahead))
    [ $room -le $((2 * limit[$1])) ] || room=$((2 * limit[$1]))
}
seconds() { # seconds MILLISECONDS
    printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000))
}

# run NAME COMMAND...: run it under the limit, with output to the terminal and a log; the status is
# counted (77 is a skip) and added to the summary at once.  A process that waits inside a driver cannot
# be killed: a second later the outer timeout ends the inner one, and the check goes on.
run() {
    local name=$1 began status word took
    shift
    room "$name"
    if [ $room -lt 50 ]; then
        echo "$name: left out, the time is over" | tee -a "$out/summary.txt"
        return 76
    fi
    say "$name (at most $(seconds $room) s): $*"
    began=$(now)
    timeout -s KILL "$(seconds $((room + 1000)))" timeout -k "$(seconds $((room / 20)))" \
        "$(seconds $((room * 9 / 10)))" "$@" >"$out/$name.log" 2>&1 </dev/null
    status=$?
    took=$(seconds $(($(now) - began)))
    cat "$out/$name.log"
    # a profiler's counters are only for root on many machines
    [ $status = 0 ] || ! grep -q ERR_NVGPUCTRPERM "$out/$name.log" || status=77
    case $status in
    0) word=ok ;;
    77) word="left out" ;;
    124 | 137) word="HUNG, ended" ;;
    *) word="FAILED, status $status" ;;
    esac
    echo "$name: $word, $took s" | tee -a "$out/summary.txt"
    case $status in 0 | 77) ;; *) bad=1 ;; esac
    return "$status"
}

# The same for a tool whose findings are shown but not counted.
show() {
    local before=$bad
    run "$@"
    bad=$before
}

# checker NAME WORDS...: a run of gpu_check.
checker() {
    run "$1" "$BUILD/tests/gpu/gpu_check" "${@:2}"
}

# --- build: the objects that ship, and the checker

if ! command -v "${NVCC:-nvcc}" >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "gpu-check: no nvcc here: nothing of the GPU side can be built"
    exit 77
fi
# shellcheck disable=SC2016 # $0 is the inner shell's
run build sh -c 'make --no-print-directory -j"$0" gpu-build' "$(nproc)" || {
    echo "gpu-check: the build failed or took too long; to give it time: make -j gpu-build"
    exit 1
}

# --- parts that need no GPU

! wants host || run host "$BUILD/tests/gpu/gpu_check" host
if command -v nvidia-smi >/dev/null; then
    show machine nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total,mig.mode.uptodate --format=csv
fi
run there "$BUILD/tests/gpu/gpu_check" there
case $? in
0) ;;
77)
    echo "gpu-check: NO GPU HERE. The code was built; what runs on a GPU was not tested."
    [ $bad = 0 ] && exit 77
    exit 1
    ;;
*)
    echo "gpu-check: the GPU does not answer: nothing else was run"
    exit 1
    ;;
esac

# --- parts that need a GPU, the cheapest first

python=$(command -v python3)

python_run() { # python_run NAME SCRIPT ARGUMENTS...
    if [ -n "$python" ]; then
        run "$1" "$python" "${@:2}"
    else
        echo "$1: left out, no python3 here" | tee -a "$out/summary.txt"
    fi
}

if wants small; then
    checker tiny tiny
    checker small small
fi
! wants replays || checker replays replays 2000
! wants edges || checker edges edges
! wants model || python_run model tests/gpu/gpu_model.py "$BUILD/libfm_clip.so"
! wants torch || python_run torch tests/gpu/gpu_check.py "$BUILD/libfm_clip.so" "$out/errors.json"
if wants quick; then
    checker quick bench "$out/quick.json" quick
    python_run pytorch tests/gpu/gpu_baselines.py "$out/quick.json" "$out/baselines.json"
fi
if wants profile; then
    ncu=$(command -v ncu /usr/local/cuda/bin/ncu | head -n 1)
    if [ -n "$ncu" ]; then
        run profile "$ncu" --set full -k regex:product -c 8 -f -o "$out/profile" \
            "$BUILD/tests/gpu/gpu_check" profile
    else
        echo "profile: left out, no ncu here" | tee -a "$out/summary.txt"
    fi
fi
! wants baselines || checker baselines baselines
if wants memcheck; then
    sanitizer=$(command -v compute-sanitizer /usr/local/cuda/bin/compute-sanitizer | head -n 1)
    if [ -n "$sanitizer" ]; then
        run memcheck "$sanitizer" --tool memcheck --error-exitcode 9 "$BUILD/tests/gpu/gpu_check" small
        show racecheck "$sanitizer" --tool racecheck --error-exitcode 9 "$BUILD/tests/gpu/gpu_check" tiny
        show synccheck "$sanitizer" --tool synccheck --error-exitcode 9 "$BUILD/tests/gpu/gpu_check" tiny
    else
        echo "memcheck: left out, no compute-sanitizer here" | tee -a "$out/summary.txt"
    fi
fi
! wants real || checker real real
! wants bench || checker bench bench "$out/bench.json" all

say "$(seconds $(($(now) - began_all))) s in all"
cat "$out/summary.txt"
case $bad in 0) say "all good" ;; *) say "SOMETHING IS WRONG: see FAIL and HUNG above" ;; esac
exit $bad
