#!/usr/bin/env bash
# What the CUDA compiler made of the GPU paths: Hopper's tensor cores (HGMMA) and copy engine
# (UTMALDG) are in the Hopper kernels, nothing spills registers, and no wgmma was serialized.
#
# Skips where there is no nvcc: the GPU side is not built then.  Without cuobjdump the instructions
# are recognised by their opcodes.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
NVCC=${NVCC:-$(command -v /usr/local/cuda/bin/nvcc nvcc | head -n 1)}
object=$BUILD/kernels/clip/cuda/clip_cuda_hopper.cu.o
bad=0
fail() {
    echo "$*"
    bad=1
}

if [ ! -e "$object" ]; then
    [ -z "$NVCC" ] || [ -n "${SAN:-}" ] || [ "${CUDA:-auto}" = 0 ] || fail "nvcc is here, but $object was not built"
    echo "no CUDA compiler, or CUDA=0: the GPU side is neither built nor looked at"
    [ $bad = 0 ] && exit 77
    exit 1
fi

for log in "$BUILD"/kernels/{clip/cuda/clip_cuda_{hopper,mma,route},serve/serve_cuda}.cu.o.ptxas; do
    spills=$(grep -c 'bytes spill stores' "$log")
    [ "$spills" -gt 0 ] || fail "$log: says nothing of spills"
    grep -E '[1-9][0-9]* bytes spill (stores|loads)' "$log" && fail "$log: registers are spilled"
    grep 'wgmma' "$log" && fail "$log: a remark on wgmma"
done

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
tool=$(command -v cuobjdump "$(dirname "$NVCC")/cuobjdump" \
    "$HOME"/.cache/fm-suite/*/lib/python3*/site-packages/triton/backends/nvidia/bin/cuobjdump | head -n 1)
if [ -n "$tool" ]; then
    "$tool" -sass "$object" >"$scratch/sass" || fail "$tool failed"
    kernels=$(grep -c 'Function : .*hopper_product' "$scratch/sass")
    hgmma=$(grep -cE '\bHGMMA\.64x(16|64|256)x16\.F32' "$scratch/sass")
    utmaldg=$(grep -c '\bUTMALDG\.2D' "$scratch/sass")
    [ "$kernels" = 4 ] || fail "$kernels Hopper kernels, not 4"
    grep -E '\b(LDL|STL)\b' "$scratch/sass" && fail "local memory is used"
else
    echo "no cuobjdump here: opcodes are counted instead"
    "$NVCC" -I. -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -cubin \
        -o "$scratch/cubin" kernels/clip/cuda/clip_cuda_hopper.cu || fail "nvcc -cubin failed"
    # An instruction is 16 bytes; the low 12 bits of its first word are the opcode.
    od -An -v -tx8 -w16 "$scratch/cubin" | awk '{print substr($1, 14)}' >"$scratch/opcodes"
    hgmma=$(grep -c '^9f0$' "$scratch/opcodes")
    utmaldg=$(grep -c '^5b4$' "$scratch/opcodes")
fi
# Two products, two types; three widths of product, four pieces of a step each; and copies.
[ "$hgmma" -ge 48 ] || fail "$hgmma HGMMA instructions, fewer than 48"
[ "$utmaldg" -ge 8 ] || fail "$utmaldg UTMALDG instructions, fewer than 8"
echo "HGMMA $hgmma, UTMALDG $utmaldg, no spills"
exit $bad
