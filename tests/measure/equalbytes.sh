#!/usr/bin/env bash
# Compare pruning and quantising with quantising only: held-out losses and bytes of uniform exports.  Prints
# the table of fm-guide(7).
#
#   BUILD=build tests/measure/equalbytes.sh MODELS [OUT]
#
# MODELS is the folder of the models groups-mixtral and groups-olmoe (golden/make/trained.py); tiny-mixtral
# is in golden/.
# OUT receives the reports of fm-bench quality as MODEL.json; fm-bench report --figures reads them.
set -eu
cd "$(dirname "$0")/../.."
build=$(cd "${BUILD:-build}" && pwd)
PATH=$build/bin:$PATH
models=$1
at=$(mktemp -d)
out=${2:-$at}
trap 'rm -rf "$at"' EXIT
for name in tiny-mixtral groups-mixtral groups-olmoe; do
    model=$models/$name
    [ $name != tiny-mixtral ] || model=golden/$name
    data=(-q -m "$model" -t "$model/calib.npy" --eval-tokens "$model/heldout.npy" --seq-len 128
        --max-tokens 8192 --precision f32 -f)
    fm-rank "${data[@]}" -o "$at/rank" >/dev/null 2>&1
    fm-train "${data[@]}" --granularity model --width-multiple 32 --until 0.85 -o "$at/train" "$at/rank" >/dev/null 2>&1
    fm-pack -q -m "$model" -f -o "$at/family.fm" "$at/train" >/dev/null
    rm -rf "$at/x"
    mkdir "$at/x"
    for format in bf16 fp8 w4a16:32 mxfp4; do
        for budget in 0 0.125 0.25 0.375 0.5 0.625 0.75; do
            fm-pack -q -x "$at/x/$format-$budget" -b $budget --layout uniform --weights $format -f \
                "$at/family.fm" >/dev/null
        done
    done
    echo "== $name"
    fm-bench quality -q --eval-tokens "$model/heldout.npy" --seq-len 128 --max-tokens 8192 --precision f32 \
        -m "$model" --json "$at"/x/* >"$out/$name.json"
done
