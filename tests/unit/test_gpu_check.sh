#!/usr/bin/env bash
# The whole host side of `make gpu-check` without a GPU: the check's own program and parts, in their
# order, linked against strict doubles of the driver, the runtime and cuBLAS (tests/gpu/double.h);
# then every call of those failing in turn.
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

# refuses WORDS WHAT PART: under such a double the part must fail, and not for want of a GPU
refuses() {
    FM_DOUBLE=$1 LD_LIBRARY_PATH=$doubles "$doubles/gpu_check_double" "$3" >"$scratch/refused" 2>&1
    if [ $? != 1 ] || ! grep -q "^FAIL.*$2" "$scratch/refused"; then
        echo "FAIL with FM_DOUBLE=$1: $3 does not fail for $2"
        bad=1
    fi
}

FM_GPU_DOUBLE=1 OUT=$scratch BUILD=$BUILD bash tests/gpu/gpu-check.sh || bad=1
LD_LIBRARY_PATH=$doubles "$doubles/double_test" || bad=1
refuses notensormap "path 19" probes
refuses notensormap "path 19" tiny
FM_DOUBLE=none "$doubles/gpu_check_double" there >/dev/null
[ $? = 77 ] || {
    echo "FAIL without a driver: status 77 is wanted"
    bad=1
}
exit $bad
