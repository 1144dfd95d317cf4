#!/usr/bin/env bash
# Run tests/gpu/gpu-check.sh without a GPU: with stand-ins for nvcc, make and the check's own program, which
# may hang; without nvcc or GPU it must end with 77.
set -u
cd "$(dirname "$0")/../.." || exit 1
bad=0
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
fake=$scratch/fake
mkdir -p "$fake/bin" "$fake/tests/gpu"
printf '#!/bin/sh\n' | tee "$fake/bin/nvcc" "$fake/bin/make" >/dev/null
printf '#!/bin/sh\nexit 77\n' >"$fake/bin/python3" # no PyTorch
cat >"$fake/tests/gpu/gpu_check" <<'END'
#!/bin/bash
trap '' TERM
[ "$1 $there" = 'there no' ] && exit 77
for ((i = 0; i < 150; i++)); do # half a minute, unless it is killed
    [[ ! " $* " =~ $hangs ]] || sleep 0.2
done
echo "what $* says"
END
chmod +x "$fake"/bin/* "$fake/tests/gpu/gpu_check"

# check_fake SECONDS HANGS PARTS...: run the check with a program that hangs if HANGS matches its
# arguments, and then ignores SIGTERM.
check_fake() {
    local seconds=$1 hangs=$2
    shift 2
    PATH=$fake/bin:$PATH NVCC=nvcc FM_GPU_SECONDS=$seconds OUT=$scratch/out BUILD=$fake HOME=/nonexistent \
        there=${there:-} hangs=$hangs bash tests/gpu/gpu-check.sh "$@" >"$scratch/said" 2>&1
}

# A run that hangs is ended and reported; runs before and after it keep their results, and the check
# ends in time even if everything hangs.  Only $OUT is written.
hangs() {
    local began took name log=$scratch/out/summary.txt
    check_fake 20 ' tiny ' small replays
    if [ $? != 1 ] || [ "$(grep -c '^tiny: HUNG' "$log")" != 1 ] || ! grep -q '^small: ok' "$log" ||
        ! grep -q '^replays: ok' "$log" || ! grep -q 'what small says' "$scratch/out/small.log"; then
        echo "FAIL a part that hangs:"
        cat "$log"
        bad=1
    fi
    began=${EPOCHREALTIME/[.,]/}
    check_fake 12 'host|tiny|small|replays|edges|bench|baselines'
    [ $? = 1 ] || bad=1
    took=$(((${EPOCHREALTIME/[.,]/} - began) / 1000))
    for name in host tiny small replays edges quick baselines; do
        grep -q "^$name: \(HUNG\|left out, the time is over\)" "$log" || echo "$name is not reported"
    done >"$scratch/untold"
    # Starting a process may take longer than limits this short, but the last part must have been started.
    if [ -s "$scratch/untold" ] || ! grep -q '^baselines: HUNG' "$log" || [ $took -gt 16000 ]; then
        echo "FAIL all parts hang: $took ms of 12000"
        cat "$scratch/untold" "$log"
        bad=1
    fi
}

# Without a GPU, or without nvcc, the check does not pass.
absent() {
    there=no check_fake 20 none
    if [ $? != 77 ] || ! grep -q 'NO GPU HERE' "$scratch/said" || grep -q '^small' "$scratch/out/summary.txt"; then
        echo "FAIL without a GPU:"
        cat "$scratch/said"
        bad=1
    fi
    if [ ! -x /usr/local/cuda/bin/nvcc ]; then
        NVCC=/nonexistent OUT=$scratch/out bash tests/gpu/gpu-check.sh >"$scratch/said"
        [ $? = 77 ] || {
            echo "FAIL without nvcc: status 77 is wanted"
            bad=1
        }
    fi
}

# The limits of all parts but those that run only if named add up to at most ten minutes, and the parts
# that find faults most cheaply come first.
plans() {
    local plan
    plan=$(bash tests/gpu/gpu-check.sh plan)
    if ! awk '$2 != "real" && $2 != "bench" { sum += $3 } END { exit !(NR > 15 && sum <= 600) }' <<<"$plan" ||
        [ "$(awk '$2 != "-" { print $2 }' <<<"$plan" | uniq | tr '\n' ' ')" != \
            "host small replays edges model torch quick profile baselines memcheck real bench " ]; then
        echo "FAIL the plan of the check:"
        echo "$plan"
        bad=1
    fi
}

# The check is linked with the objects that ship, not with others from the same sources.
ships() {
    local line source
    line=$(env -u MAKEFLAGS make -n -B --no-print-directory CUDA=1 BUILD="$scratch/build" "$scratch/build/tests/gpu/gpu_check" \
        2>/dev/null | grep -- "-o $scratch/build/tests/gpu/gpu_check ")
    for source in kernels/clip/cuda/*.cu; do
        [[ "$line" == *" $scratch/build/$source.o "* ]] || {
            echo "FAIL the check is not linked with $source"
            bad=1
        }
    done
}

plans
hangs
absent
ships
exit $bad
