#!/usr/bin/env bash
# Run all checks that need a GPU: `make gpu-check`, or this script by itself from a copy of the sources.  It
# needs nvcc, gcc and make.  cuBLAS for the baselines, PyTorch for the modelling file, and compute-sanitizer are
# used if they are installed; if not, the summary says so.  fm-bench kernels measures the speed.
#
#   tests/gpu/gpu-check.sh [PART...]      all parts, in this order, or those named:
#
#   small      small and odd cases of the library's own path
#   replays    2,000 graph replays over random ids and widths, two streams on one layer
#   edges      one token, one slot, one expert, a layer of more than 2^31 numbers
#   model      the modelling file of exports on CUDA tensors
#   baselines  the small cases on the benchmark's baselines; late, since they may fail in cuBLAS
#   memcheck   small under compute-sanitizer
#   real       (only if named) real sizes against the definition
#
# Each part is a separate process with a time limit, so that one that hangs does not keep the others from
# running.  Results are written to $OUT (or build/gpu-check) as they arrive; nothing is written elsewhere except
# in the build folder.
#
# Status 0; 1 if something is wrong; 77 if there is no nvcc or no GPU (nothing was checked).
set -u
cd "$(dirname "$0")/../.." || exit 1
export LC_ALL=C
BUILD=${BUILD:-build}
out=${OUT:-$BUILD/gpu-check}
check=$BUILD/tests/gpu/gpu_check
bad=0
mkdir -p "$out" || exit 1
export PYTHONDONTWRITEBYTECODE=1 CUDA_CACHE_PATH=$out/cache
: >"$out/summary.txt"

# run NAME SECONDS COMMAND...: run it for at most SECONDS, with output to the terminal and a log, and add its
# status to the summary (77 is a skip).  A process that waits inside a driver cannot be killed: a second later
# the outer timeout ends the inner one, and the check goes on.
run() {
    local name=$1 seconds=${FM_GPU_SECONDS:-$2} began=$SECONDS status word
    shift 2
    echo "== $name (at most $seconds s): $*"
    timeout -s KILL $((seconds + 2)) timeout -k 1 "$seconds" "$@" >"$out/$name.log" 2>&1 </dev/null
    status=$?
    cat "$out/$name.log"
    case $status in
    0) word=ok ;;
    77 | 127) word="left out" status=77 ;; # 127: no such program
    124 | 137) word="HUNG, ended" bad=1 ;;
    *) word="FAILED, status $status" bad=1 ;;
    esac
    echo "$name: $word, $((SECONDS - began)) s" | tee -a "$out/summary.txt"
    return $status
}

if ! command -v "${NVCC:-nvcc}" >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "gpu-check: no nvcc here: nothing of the GPU side can be built"
    exit 77
fi
run build 600 make --no-print-directory -j"$(nproc)" gpu-build || exit 1
run there 60 "$check" there
case $? in
0) ;;
77)
    echo "gpu-check: NO GPU HERE. The code was built; what runs on a GPU was not tested."
    exit 77
    ;;
*)
    echo "gpu-check: the GPU does not answer: nothing else was run"
    exit 1
    ;;
esac
[ $# -gt 0 ] || set -- small replays edges model baselines memcheck
for part; do
    case $part in
    small | edges | baselines) run "$part" 60 "$check" "$part" ;;
    replays) run replays 60 "$check" replays 2000 ;;
    model) run model 60 python3 tests/gpu/gpu_model.py "$BUILD/libfm_clip.so" ;;
    memcheck)
        sanitizer=$(command -v compute-sanitizer /usr/local/cuda/bin/compute-sanitizer | head -n 1)
        run memcheck 120 "${sanitizer:-compute-sanitizer}" --tool memcheck --error-exitcode 9 "$check" small
        ;;
    real) run real 600 "$check" real ;;
    *) echo "gpu-check: no part '$part'" && exit 2 ;;
    esac
done
cat "$out/summary.txt"
case $bad in 0) echo "== all good" ;; *) echo "== SOMETHING IS WRONG: see FAIL and HUNG above" ;; esac
exit $bad
