#!/usr/bin/env bash
# To export one member, in any layout, fm-pack reads the bytes of that member and at most a twentieth more.
# To a directory, it reads them in ascending order after opening the bundle.  So a file system that fetches on
# demand fetches little else of the bundle.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD tiny=$PWD/golden/tiny-mixtral
bin=$root/${BUILD:-build}/bin
reads=$root/${BUILD:-build}/tests/unit/reads.so
[ -z "${SAN:-}" ] || { echo "this test preloads a library, which sanitizers do not allow" && exit 77; }
[ -e "$reads" ] || { echo "no $reads; make tests" && exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

"$bin/fm-rank" -q --model "$tiny" --tokens "$tiny/heldout.npy" -o ranked >/dev/null 2>&1 &&
    "$bin/fm-train" -q --model "$tiny" --tokens "$tiny/heldout.npy" --method saliency \
        --budget-step 0.25 --until 0.5 --measure-step 1 -o trained ranked >/dev/null 2>&1 &&
    "$bin/fm-pack" -q --model "$tiny" -o family.fm trained >/dev/null || exit 1

# count TARGET OPTION...: set $told to the numbers of reads, bytes, distinct bytes and steps back; the
# report goes to the file `report`.
count() {
    local target=$1
    shift
    rm -rf out counts
    LD_PRELOAD=$reads FM_READS_OF=family.fm FM_READS_TOLD=counts "$bin/fm-pack" -q -T 1 --json \
        --export "$target" --budget 0.5 "$@" family.fm >report 2>error </dev/null ||
        { cat error && exit 1; }
    read -r -a told <counts
}

weights() { grep -o '"bytes_weights": [0-9]*' report | grep -o '[0-9]*'; }

# expect NAME MOST STEPS [PERCENT]: at most MOST bytes of the bundle and PERCENT more were read, with at
# most STEPS steps back.
expect() {
    local name=$1 most=$2 steps=$3 percent=${4:-5}
    echo "$name: ${told[0]} reads of ${told[1]} bytes, ${told[2]} different, ${told[3]} steps back;" \
        "the member has $most"
    [ $((100 * told[1])) -le $(((100 + percent) * most)) ] && [ "${told[3]}" -le "$steps" ] && return
    echo "$name: more than that"
    failures=$((failures + 1))
}

# Steps back while the bundle is opened and its small members are read.  Their number does not depend on the
# number of weights.
opening=12
for layout in $(basename -s .c "$root"/lib/export/layouts/*.c); do
    count out --layout "$layout"
    expect "$layout" "$(weights)" $opening
done
# If a width is not a boundary of checksums, the channels up to the next boundary are read and checked,
# too: at most 127, which is a large part of this small model.
count out --layout layer --for vllm
expect "layer for vllm" "$(weights)" $opening 8
# Rounded weights, their scales and their factors are computed from the same bytes.
count out --layout uniform --pad-multiple 32
most=$(weights)
for weights in fp8 nvfp4 mxfp4; do
    count out --layout uniform --pad-multiple 32 --weights $weights
    expect "uniform, $weights" "$most" $opening
done
# Widths here are not boundaries of checksums, so any number of bytes may be read, but at most 5 % twice.
for layout in ragged elastic layer; do
    for weights in fp8 nvfp4 mxfp4; do
        count out --layout $layout --weights $weights
        expect "$layout, $weights" "${told[2]}" $opening
    done
done
# A stream, which is written in the order of its files.
for layout in ragged uniform; do
    count out --layout $layout
    most=$(weights)
    count - --layout $layout
    expect "$layout, a stream" "$most" 1000
done
# Packing a quantised checkpoint with its codes reads every byte once: scales are checked where they are copied.
for kept in mxfp4 nvfp4; do
    from=$root/golden/packed/$kept
    data=(-q --model "$from" --tokens "$from/tokens.npy" --seq-len 16)
    rm -f counts
    "$bin/fm-rank" "${data[@]}" -f -o ranked >/dev/null 2>&1 &&
        "$bin/fm-train" "${data[@]}" --method saliency -f -o trained ranked >/dev/null 2>&1 &&
        LD_PRELOAD=$reads FM_READS_OF=$from/model.safetensors FM_READS_TOLD=counts "$bin/fm-pack" -q -T 1 \
            --model "$from" -o codes.fm -f trained >/dev/null || exit 1
    read -r -a told <counts
    expect "packing $kept" "${told[2]}" 1000 1
done
# compare NAME: $weights is within one percent of $forecast.
compare() {
    local off=$((weights - forecast))
    echo "$1: $weights bytes of weights read, forecast $forecast"
    [ "${off#-}" -le $((forecast / 100)) ] && return
    echo "$1: the forecast is off by $off bytes"
    failures=$((failures + 1))
}

# fm-recover reads the header and as many bytes of weights as it forecasts, to one percent, which is less than
# a layer.  After the last step the first layer is still in memory, unless its weights are decoded codes or the
# backward pass ended above it, at the first layer with experts.
export PYTHONDONTWRITEBYTECODE=1
# shellcheck source=tests/cli/least.bash
. "$root/tests/cli/least.bash"
python3 "$root/tests/cli/recode.py" resize "$root/golden/odd-qwen3" plain 24 # in one file
python3 "$root/tests/cli/recode.py" resize "$root/golden/odd-dsv3" dense 24
for from in plain dense "$root/golden/packed/nvfp4"; do
    data=(-q --model "$from" --tokens "$from/tokens.npy" --eval-tokens "$from/tokens.npy" --precision f32)
    recover() { "$bin/fm-recover" "${data[@]}" --steps 2 --batch 2 -T 1 -f -o recovered trained "$@"; }
    rm -f counts
    "$bin/fm-rank" "${data[@]}" -f -o ranked >/dev/null 2>&1 &&
        "$bin/fm-train" "${data[@]}" --method saliency --budget-step 0.25 --until 0.5 -f -o trained ranked \
            >/dev/null 2>&1 || exit 1
    memory=$(least recover)
    forecast=$(recover --memory "$memory" --dry-run --json 2>/dev/null | sed -n 's/.*"read": \([0-9]*\).*/\1/p')
    LD_PRELOAD=$reads FM_READS_OF=$from/model.safetensors FM_READS_TOLD=counts \
        recover --memory "$memory" >/dev/null 2>&1 || exit 1
    read -r -a told <counts
    weights=$((told[1] - 8 - $(od -An -t u8 -N 8 "$from/model.safetensors")))
    compare "recovering ${from##*/}"
done
# fm-bench reads the layers of an export and of its original once each.
from=$PWD/plain
data=(-q --model "$from" --eval-tokens "$from/tokens.npy" --precision f32)
"$bin/fm-rank" -q --model "$from" --tokens "$from/tokens.npy" -f -o ranked >/dev/null 2>&1 &&
    "$bin/fm-train" -q --model "$from" --tokens "$from/tokens.npy" --method saliency -f -o trained ranked \
        >/dev/null 2>&1 && "$bin/fm-pack" -q --model "$from" -f -o family.fm trained >/dev/null &&
    "$bin/fm-pack" -q --export small --layout uniform --budget 0.25 family.fm >/dev/null || exit 1
bench() { "$bin/fm-bench" quality "${data[@]}" -T 1 small "$@"; }
read_of() { bench --dry-run --json "$@" 2>/dev/null | sed -n 's/.*"read": \([0-9]*\).*/\1/p'; }
compare_bench() { # compare_bench TITLE EXPORT...: compare what is read of `small`, these exports and their original
    local model header opened=$#
    forecast=$(read_of "${@:2}") weights=0
    for model in small "$from"; do
        rm -f counts
        LD_PRELOAD=$reads FM_READS_OF=$model/model.safetensors FM_READS_TOLD=counts \
            bench "${@:2}" >/dev/null 2>&1 || exit 1
        read -r -a told <counts
        header=$((8 + $(od -An -t u8 -N 8 "$model/model.safetensors")))
        weights=$((weights + told[1] - header * opened))
        opened=1 # the original
    done
    compare "$1"
}
compare_bench "comparing an export with its original"
compare_bench "comparing two such exports" small
exit $((failures > 0))
