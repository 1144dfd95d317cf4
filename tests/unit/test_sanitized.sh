#!/usr/bin/env bash
# clang compiles each of the unrolled products in seconds with the sanitizers of `make fuzz`: without
# FM_SANITIZED (kernels/clip/clip_tile.h) clang 14 takes minutes for one of them.
set -u
cd "$(dirname "$0")/../.." || exit 1
seconds=40 # limit of CPU time for a file, which takes 5 on a slow machine
CLANG=${CLANG:-clang}
printf 'int x;' | "$CLANG" -x c -fsanitize=fuzzer-no-link,address,undefined -c -o /dev/null - 2>/dev/null || {
    echo "no $CLANG with the sanitizers: apt-get install clang" >&2
    exit 77
}
made=$(mktemp -d) || exit 1
trap 'rm -rf "$made"' EXIT
objects=()
for source in kernels/clip/clip_{few,avx2,avx512,bf16}.c; do objects+=("$made/$source.o"); done
ulimit -t "$seconds"
make -s -j1 BUILD="$made" CUDA=0 CC="$CLANG" SAN=fuzzer-no-link,address,undefined WARN=-w "${objects[@]}"
