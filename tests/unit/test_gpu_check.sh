#!/usr/bin/env bash
# Run tests/gpu/gpu-check.sh without a GPU: with stand-ins for nvcc, make and the check's own program, which
# may hang; without nvcc or GPU it must end with 77.
set -u
cd "$(dirname "$0")/../.." || exit 1
bad=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
fake=$scratch/fake
log=$scratch/out/summary.txt
mkdir -p "$fake/bin" "$fake/tests/gpu"
printf '#!/bin/sh\n' | tee "$fake/bin/nvcc" "$fake/bin/make" >/dev/null
printf '#!/bin/sh\nexit 77\n' >"$fake/bin/python3" # no PyTorch
cat >"$fake/tests/gpu/gpu_check" <<'END'
#!/bin/bash
trap '' TERM
[ "$1 $there" = 'there no' ] && exit 77
for ((i = 0; i < 150; i++)); do # half a minute, unless it is killed
    [[ $hangs != *" $1 "* ]] || sleep 0.2
done
echo "what $* says"
[[ $fails != *" $1 "* ]]
END
chmod +x "$fake"/bin/* "$fake/tests/gpu/gpu_check"

# check WANTED PARTS...: run the check, which must end with that status.
check() {
    local wanted=$1
    shift
    PATH=$fake/bin:$PATH NVCC=nvcc FM_GPU_SECONDS=2 OUT=$scratch/out BUILD=$fake \
        there=${there:-} hangs=${hangs:-} fails=${fails:-} bash tests/gpu/gpu-check.sh "$@" >"$scratch/said" 2>&1
    [ $? = "$wanted" ] || fail "gpu-check $*: not status $wanted"
}

fail() {
    echo "FAIL $*"
    cat "$scratch/said" "$log"
    bad=1
}

# told LINE...: each is the beginning of a line of the summary.
told() {
    local line
    for line; do
        grep -q "^$line" "$log" || fail "no line '$line'"
    done
}

# A part that hangs or fails is reported; those before and after it keep their results.
check 0
told 'small: ok' 'replays: ok' 'edges: ok' 'model: left out' 'baselines: ok' 'memcheck: '
hangs=' small edges ' check 1
told 'small: HUNG' 'replays: ok' 'edges: HUNG' 'baselines: ok'
grep -q 'what replays 2000 says' "$scratch/out/replays.log" || fail "the log of replays"
fails=' small ' check 1 small edges
told 'small: FAILED, status 1' 'edges: ok'
check 2 nonsense

# Without a GPU, or without nvcc, the check does not pass.
there=no check 77
grep -q 'NO GPU HERE' "$scratch/said" || fail "without a GPU"
! grep -q '^small' "$log" || fail "parts run without a GPU"
if [ ! -x /usr/local/cuda/bin/nvcc ]; then
    NVCC=/nonexistent OUT=$scratch/out bash tests/gpu/gpu-check.sh >"$scratch/said"
    [ $? = 77 ] || fail "without nvcc"
fi

# The check is linked with the objects that ship, not with others from the same sources.
line=$(env -u MAKEFLAGS make -n -B --no-print-directory CUDA=1 BUILD="$scratch/build" "$scratch/build/tests/gpu/gpu_check" \
    2>/dev/null | grep -- "-o $scratch/build/tests/gpu/gpu_check ")
for source in kernels/clip/cuda/*.cu; do
    [[ "$line" == *" $scratch/build/$source.o "* ]] || fail "the check is not linked with $source"
done
exit $bad
