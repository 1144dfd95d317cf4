#!/usr/bin/env bash
# Measure the cost of channel groups: held-out losses at budgets 0, 0.2, 0.4 and 0.6 with groups of 1, 16, 32
# and 128.  Prints the table of RESULTS.md.
#
#   BUILD=build tests/measure/groups.sh MODELS
#
# MODELS is the folder of the models groups-mixtral and groups-olmoe (golden/make/trained.py), whose experts
# have 512 channels; those of golden/tiny-mixtral have 256.
set -eu
cd "$(dirname "$0")/../.."
build=$(cd "${BUILD:-build}" && pwd)
PATH=$build/bin:$PATH
models=$1
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
for name in tiny-mixtral groups-mixtral groups-olmoe; do
    model=$models/$name
    [ $name != tiny-mixtral ] || model=golden/$name
    data=(-q -m "$model" -t "$model/calib.npy" --eval-tokens "$model/heldout.npy" --seq-len 128
        --max-tokens 8192 --precision f32 -f)
    for group in 1 16 32 128; do
        fm-rank "${data[@]}" --channel-group $group -o "$at/rank" >/dev/null 2>&1
        for method in saliency exchange; do
            fm-train "${data[@]}" --method $method --until 0.65 -o "$at/train" "$at/rank" >/dev/null 2>&1
            fm-pack --list --json "$at/train" | python3 -c '
import json, sys
rows = json.load(sys.stdin)["budgets"]
near = [min(rows, key=lambda r: abs(r["budget"] - cut)) for cut in (0, 0.2, 0.4, 0.6)]
print(*sys.argv[1:], *("%.4f (%.2f)" % (r["quality"]["ce"], r["budget"]) for r in near))' \
                $name $group $method
        done
    done
done
