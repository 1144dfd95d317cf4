#!/usr/bin/env bash
# Check the code that the CUDA compiler generated for sm_80 and sm_90: the products use the tensor cores (HMMA)
# and asynchronous copies (LDGSTS), recognised by their opcodes, and no kernel of the fused path spills
# registers or uses local memory.
#
# Skipped without nvcc: the GPU side is not built then.
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build}
NVCC=${NVCC:-$(command -v /usr/local/cuda/bin/nvcc nvcc | head -n 1)}
object=$BUILD/kernels/clip/cuda/clip_cuda_mma.cu.o
bad=0
fail() {
    echo "$*"
    bad=1
}

if [ ! -e "$object" ]; then
    [ -z "$NVCC" ] || [ -n "${SAN:-}" ] || [ "${CUDA:-auto}" = 0 ] || fail "nvcc is installed, but $object was not built"
    echo "no CUDA compiler, or CUDA=0: the GPU side is neither built nor checked"
    [ $bad = 0 ] && exit 77
    exit 1
fi

for log in "$BUILD"/kernels/clip/cuda/clip_cuda_{mma,route}.cu.o.ptxas; do
    for gpu in sm_80 sm_90; do
        grep -q "for '$gpu'" "$log" || fail "$log: no code for $gpu"
    done
    spills=$(grep -c '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' "$log")
    [ "$spills" -gt 0 ] || fail "$log: does not report spills"
    grep -E '[1-9][0-9]* bytes (stack frame|spill)' "$log" && fail "$log: registers are spilled"
done

scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
for gpu in sm_80 sm_90; do
    "$NVCC" -I. -O3 -std=c++17 -arch=$gpu -cubin -o "$scratch/cubin" kernels/clip/cuda/clip_cuda_mma.cu ||
        fail "nvcc -cubin failed"
    # An instruction is 16 bytes; the low 12 bits of its first word are the opcode.
    od -An -v -tx8 -w16 "$scratch/cubin" | awk '{print substr($1, 14)}' >"$scratch/opcodes"
    hmma=$(grep -c '^23c$' "$scratch/opcodes")
    ldgsts=$(grep -c '^fae$' "$scratch/opcodes")
    # two products, two types, 64 of a step's multiplications and 12 copies
    [ "$hmma" -ge 256 ] || fail "$gpu: $hmma HMMA instructions, fewer than 256"
    [ "$ldgsts" -ge 48 ] || fail "$gpu: $ldgsts LDGSTS instructions, fewer than 48"
    echo "$gpu: HMMA $hmma, LDGSTS $ldgsts, no spills"
done
exit $bad
