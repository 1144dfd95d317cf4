#!/usr/bin/env bash
# Check the code that the CUDA compiler generated for the GPU paths: the Hopper kernels use the tensor
# cores (HGMMA) and TMA copies (UTMALDG), nothing spills registers, no wgmma was serialized, and
# warpgroups take no more registers than exist.
#
# Skipped without nvcc: the GPU side is not built then.  Without cuobjdump the instructions
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
    [ -z "$NVCC" ] || [ -n "${SAN:-}" ] || [ "${CUDA:-auto}" = 0 ] || fail "nvcc is installed, but $object was not built"
    echo "no CUDA compiler, or CUDA=0: the GPU side is neither built nor checked"
    [ $bad = 0 ] && exit 77
    exit 1
fi

for log in "$BUILD"/kernels/clip/cuda/clip_cuda_{hopper,mma,route}.cu.o.ptxas; do
    spills=$(grep -c 'bytes spill stores' "$log")
    [ "$spills" -gt 0 ] || fail "$log: does not report spills"
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
    # in each kernel, the registers of three warpgroups (USETMAXREG) fit in those of 384 threads
    awk -v used="$(grep -oE 'Used [0-9]+ registers' "$object.ptxas" | sort -u)" '
        function hex(s,    i, n) {
            n = 0
            for (i = 1; i <= length(s); i++) n = 16 * n + index("0123456789abcdef", substr(s, i, 1)) - 1
            return n
        }
        function close_kernel() {
            if (name == "") return
            if (most == 0 || least * 128 + most * 256 > 168 * 384) {
                print name ": registers " least + 0 " and " most + 0
                bad = 1
            }
            kernels++
        }
        /Function : / { close_kernel(); name = $0; most = least = 0 }
        /USETMAXREG/ && match($0, /0x[0-9a-f]+ ;/) {
            n = hex(substr($0, RSTART + 2, RLENGTH - 4))
            if (most == 0 || n > most) most = n
            if (least == 0 || n < least) least = n
        }
        END {
            close_kernel()
            if (used != "Used 168 registers") { print "kernels use: " used; bad = 1 }
            if (kernels != 4) { print "kernels: " kernels; bad = 1 }
            exit bad
        }' "$scratch/sass" || fail "unexpected numbers of registers"
else
    echo "no cuobjdump here: opcodes are counted instead"
    "$NVCC" -I. -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -cubin \
        -o "$scratch/cubin" kernels/clip/cuda/clip_cuda_hopper.cu || fail "nvcc -cubin failed"
    # An instruction is 16 bytes; the low 12 bits of its first word are the opcode.
    od -An -v -tx8 -w16 "$scratch/cubin" | awk '{print substr($1, 14)}' >"$scratch/opcodes"
    hgmma=$(grep -c '^9f0$' "$scratch/opcodes")
    utmaldg=$(grep -c '^5b4$' "$scratch/opcodes")
fi
# Built with FM_CLIP_WATCH, a wait gives up after a time and prints a message; as shipped it does neither.
if [ -n "$NVCC" ]; then
    printf '%s\n' '#include "kernels/clip/cuda/clip_cuda_ptx.cuh"' \
        '__global__ void waits(uint32_t b) { barrier_wait(b, 0, "test", 0, 0); }' >"$scratch/waits.cu"
    for watch in "" -DFM_CLIP_WATCH; do
        "$NVCC" -I. -std=c++17 -arch=sm_90a -ptx $watch -o "$scratch/waits$watch.ptx" "$scratch/waits.cu" ||
            fail "nvcc -ptx failed"
    done
    grep -q 'trap;' "$scratch/waits-DFM_CLIP_WATCH.ptx" || fail "a watched wait does not give up"
    grep -q 'vprintf' "$scratch/waits-DFM_CLIP_WATCH.ptx" || fail "a watched wait prints nothing"
    grep -E 'trap;|vprintf' "$scratch/waits.ptx" && fail "a wait is watched without FM_CLIP_WATCH"
fi
# After a wait for products, products_fence makes every result register depend on the wait.  Otherwise the
# compiler could move reads of these registers before it, because products write them asynchronously.
if [ -n "$NVCC" ]; then
    printf '%s\n' '#include "kernels/clip/cuda/clip_cuda_hopper.cuh"' '#include "tests/gpu/gpu_probe.cuh"' \
        'const void *kernels[] = {(const void *)hopper_product<__half, 2>,' \
        '    (const void *)probe_product<__half, 64, 0, 0>};' >"$scratch/fences.cu"
    "$NVCC" -I. -O3 -std=c++17 -arch=sm_90a -ptx -o "$scratch/fences.ptx" "$scratch/fences.cu" ||
        fail "nvcc -ptx failed"
    awk '
        function close_wait() {
            if (wants == 0) return
            waits++
            if (ties < wants) { print "after a wait, only " ties " of " wants " result registers depend on it"; bad = 1 }
            wants = 0
        }
        /wgmma\.mma_async/ { match($0, /m64n[0-9]+/); width = substr($0, RSTART + 4, RLENGTH - 4) }
        /wgmma\.wait_group\.sync\.aligned 0;/ { close_wait(); wants = width / 2; ties = -1; next }
        /begin inline asm/ { empty = 1; next }
        /end inline asm/ { if (wants && empty) ties++; else if (wants && ties < 0) ties = 0; next }
        /^[[:space:]]*$/ || /^[[:space:]]*\/\// { next }
        { empty = 0; close_wait() }
        END {
            close_wait()
            if (waits < 4) { print waits + 0 " waits for products, fewer than 4"; bad = 1 }
            exit bad
        }' "$scratch/fences.ptx" || fail "sums may be read before they are complete"
fi
# HGMMA: 2 products, 2 types, 3 widths and 4 pieces of a step.  UTMALDG: the 4 kernels together.
[ "$hgmma" -ge 48 ] || fail "$hgmma HGMMA instructions, fewer than 48"
[ "$utmaldg" -ge 16 ] || fail "$utmaldg UTMALDG instructions, fewer than 16"
echo "HGMMA $hgmma, UTMALDG $utmaldg, no spills"
exit $bad
