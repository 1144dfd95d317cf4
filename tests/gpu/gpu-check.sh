#!/usr/bin/env bash
# Everything that needs a GPU, in one command: `make gpu-check`, or this script by itself from a bare
# copy of the sources.  It needs nvcc and gcc; cuBLAS for the baselines, PyTorch to compare errors,
# compute-sanitizer, cuobjdump: each is used where it is there, and said where it is not.
#
#   tests/gpu/gpu-check.sh [PART...]      parts: host small torch sanitize real bench quick
#
# Without a part: all but `quick` (a short bench).  Each part prints its seconds.  Where a command may
# last ten minutes only, give the parts in turn: `small torch`, `sanitize`, `real`, `bench`.  JSON and logs go to $OUT (or build/gpu-check).  Status 0; 1 where something is
# wrong; 77 where there is no GPU: then the parts that need none have run, and nothing is proven
# about the others.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=${GPU_CHECK_BUILD:-build/gpu-check}
out=${OUT:-$work}
CC=${CC:-gcc}
NVCC=${NVCC:-$(command -v nvcc /usr/local/cuda/bin/nvcc | head -n 1)}
mkdir -p "$work" "$out" || exit 1
bad=0
parts=${*:-host small torch sanitize real bench}

say() {
    echo "== $*"
}
wants() {
    [[ " $parts " == *" $1 "* ]]
}
# run PART COMMAND...: its output to the terminal and a log, its status counted (77 is a skip)
run() {
    local part=$1 began=$SECONDS status
    shift
    say "$part: $*"
    "$@" 2>&1 | tee "$out/$part.log"
    status=${PIPESTATUS[0]}
    say "$part: status $status, $((SECONDS - began)) s"
    case $status in 0 | 77) ;; *) bad=1 ;; esac
    return "$status"
}

# --- build: the library and the checker, nothing but sources of kernels/, lib/base and tests/

if [ -z "$NVCC" ]; then
    echo "gpu-check: no nvcc here: nothing of the GPU side can be built"
    exit 77
fi
version=$(sed -n 's/^VERSION := //p' Makefile)
flags="-std=c11 -O3 -ffp-contract=off -fno-math-errno -fPIC -pthread -I. -D_GNU_SOURCE"
arch=80
sm=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
[ -n "$sm" ] && [ "$sm" -ge 80 ] 2>/dev/null && arch=$sm
portable="-gencode arch=compute_$arch,code=sm_$arch -gencode arch=compute_80,code=compute_80"
hopper="-gencode arch=compute_90a,code=sm_90a"

build() {
    local source object objects=() checker=() jobs=()
    for source in kernels/clip/*.c kernels/serve/serve_gpu.c lib/base/dtype.c; do
        object=$work/$(basename "$source").o
        objects+=("$object")
        # shellcheck disable=SC2086 # flags are words
        $CC $flags -DFM_CUDA -DFM_VERSION="\"$version\"" -c -o "$object" "$source" &
        jobs+=($!)
    done
    for source in kernels/clip/cuda/*.cu kernels/serve/serve_cuda.cu tests/gpu/*.cu; do
        object=$work/$(basename "$source").o
        local code=$portable
        [ "$source" = kernels/clip/cuda/clip_cuda_hopper.cu ] && code=$hopper
        # shellcheck disable=SC2086
        "$NVCC" -I. -O3 -std=c++17 $code -lineinfo -Xcompiler -Wall,-Wextra,-fPIC -c -o "$object" "$source" &
        jobs+=($!)
        if [[ $source == tests/* || $source == kernels/serve/* ]]; then checker+=("$object"); else objects+=("$object"); fi
    done
    for job in "${jobs[@]}"; do
        wait "$job" || return 1
    done
    "$NVCC" -cudart static -shared -o "$work/libfm_clip.so" "${objects[@]}" -lpthread -ldl &&
        "$NVCC" -cudart static -o "$work/gpu_check" "${checker[@]}" "${objects[@]}" -lpthread -ldl
}
began=$SECONDS
build || {
    echo "gpu-check: the build failed"
    exit 1
}
say "built in $((SECONDS - began)) s"

# --- what needs no GPU

if wants host; then
    run host "$work/gpu_check" host
    if CXX=${CXX:-g++} && command -v "$CXX" >/dev/null; then
        $CXX -std=c++17 -I. -O2 -fno-strict-aliasing -w -Wno-psabi -o "$work/emulated" tests/unit/test_clip_cuda_emulated.cc &&
            run emulated "$work/emulated" || bad=1
        $CXX -std=c++17 -I. -O2 -fno-strict-aliasing -w -Wno-psabi -o "$work/emulated_serve" tests/unit/test_serve_cuda_emulated.cc &&
            run emulated_serve "$work/emulated_serve" || bad=1
    fi
fi
"$work/gpu_check" probe >"$work/probe.log" 2>&1
if [ $? = 77 ]; then
    cat "$work/probe.log"
    echo "gpu-check: NO GPU HERE. The code was built; what runs on a GPU is unproven by this run."
    [ $bad = 0 ] && exit 77
    exit 1
fi

# --- what does

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv
! wants small || run small "$work/gpu_check" small
python=$(command -v python3)
if wants torch; then
    if [ -n "$python" ]; then
        run torch "$python" tests/gpu/gpu_check.py "$work/libfm_clip.so" "$out/errors.json"
    else
        say "torch: no python3 here: errors are not compared with PyTorch's"
    fi
fi
if wants sanitize; then
    sanitizer=$(command -v compute-sanitizer /usr/local/cuda/bin/compute-sanitizer | head -n 1)
    if [ -n "$sanitizer" ]; then
        run memcheck timeout 300 "$sanitizer" --tool memcheck --error-exitcode 9 "$work/gpu_check" small
        run racecheck timeout 300 "$sanitizer" --tool racecheck --error-exitcode 9 "$work/gpu_check" tiny
        run synccheck timeout 300 "$sanitizer" --tool synccheck --error-exitcode 9 "$work/gpu_check" tiny
    else
        say "sanitize: no compute-sanitizer here"
    fi
fi
! wants real || run real "$work/gpu_check" real
! wants bench || run bench "$work/gpu_check" bench "$out/bench.json"
! wants quick || run quick "$work/gpu_check" bench "$out/quick.json" quick
case $bad in 0) say "all good" ;; *) say "SOMETHING IS WRONG: see FAIL above" ;; esac
exit $bad
