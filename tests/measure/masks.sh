#!/bin/bash
# Compare the losses of the mask methods: run every method on small trained models, with several seeds,
# and measure on a third split, which neither the methods nor the choice of defaults used.  Also compare
# the time of each, in processor seconds as a share of the time of `learned`.  Models trained on real text
# (golden/make/realtext.py) are also measured on two kinds of text that are not in the calibration
# data.  Prints tables in Markdown.
#
# usage: tests/measure/masks.sh [-d DIR] [-m MODEL,...] [-k METHOD,...] [-s SEED,...] [-w WEIGHT] [-t]
#
# Run make and `tests/judge/judge.sh --golden trained real` first: the latter makes the third split of
# golden/tiny-mixtral, and all other models.  A METHOD is one of fm-train's; or `default`, for
# fm-train without --method; or a method with more options: learned+prior=2+steps=100 is --method
# learned --prior=2 --steps=100.  The last METHOD is compared with the others.  With -w, for which the MODELs
# must be those trained on real text, their sampled.npy is a second calibration file with this weight; choose
# another DIR.
#
# Everything runs on one thread.  Streams, reports and losses go to DIR (build/masks).  Existing files
# are not made again, so an interrupted study can be resumed; the table (-t: print only the table) covers
# the files that exist.  Remove DIR after changing a method.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
dir=build/masks
models=tiny-mixtral,choose-qwen2,choose-phimoe,confirm-mixtral,confirm-olmoe,real-qwen2,real-mixtral,real-olmoe
methods=uniform,saliency,learned,default
seeds=0,1,2
weight=
table=
while getopts d:m:k:s:w:t option; do
    case $option in
    d) dir=$OPTARG ;;
    m) models=$OPTARG ;;
    k) methods=$OPTARG ;;
    s) seeds=$OPTARG ;;
    w) weight=$OPTARG ;;
    t) table=1 ;;
    *) exit 64 ;;
    esac
done
build=${BUILD:-build}
PATH=$PWD/$build/bin:$PATH
IFS=, read -ra model_list <<<"$models"
IFS=, read -ra method_list <<<"$methods"
IFS=, read -ra seed_list <<<"$seeds"

# Sets $files to a model's folder, $third to its third split and $kinds to the other kinds of text to
# measure on.
locate() {
    files=${TRAINED:-build/trained}/$1
    third=$files/test-long.npy kinds=()
    case $1 in
    tiny-mixtral) files=golden/tiny-mixtral ;;
    real-*)
        third=$files/test.npy
        for kind in "$files"/test-*.npy; do
            kind=${kind##*/test-}
            kinds+=("${kind%.npy}")
        done
        ;;
    esac
}

# measure MODEL SEED METHOD: make the family, its report and its losses.
measure() {
    local to=$dir/$1-$3-$2 options=() common parts part kind
    locate "$1"
    common=(--model "$files" --tokens "$files/calib.npy" --eval-tokens "$files/heldout.npy" --seq-len 128 --shuffle --seed "$2" -T 1
        --precision f32 --quiet --force)
    [ -z "$weight" ] || common+=(--tokens "$files/sampled.npy:$weight")
    [ -s "$dir/$1-rank-$2" ] || fm-rank "${common[@]}" -o "$dir/$1-rank-$2" >/dev/null
    if [ "$3" != default ]; then
        IFS=+ read -ra parts <<<"$3"
        options=(--method "${parts[0]}")
        for part in "${parts[@]:1}"; do
            options+=("--$part")
        done
    fi
    if ! [ -s "$to.seconds" ]; then
        TIMEFORMAT=%U
        { time fm-train "${common[@]}" "${options[@]}" \
            --json -o "$to" "$dir/$1-rank-$2" >"$to.json" 2>&3; } 3>&2 2>"$to.seconds.part"
        mv "$to.seconds.part" "$to.seconds"
    fi
    for kind in "${kinds[@]}"; do
        "$build/tests/measure/heldout" "$files" "$files/test-$kind.npy" 128 "$to" >"$to.on-$kind"
    done
    "$build/tests/measure/heldout" "$files" "$third" 128 "$to" >"$to.losses.part"
    mv "$to.losses.part" "$to.losses"
}

if [ -z "$table" ]; then
    make -s "$build/tests/measure/heldout"
    mkdir -p "$dir"
    for seed in "${seed_list[@]}"; do
        for model in "${model_list[@]}"; do
            for method in "${method_list[@]}"; do
                [ -s "$dir/$model-$method-$seed.losses" ] || measure "$model" "$seed" "$method"
            done
        done
    done
fi

# Print lines "MODEL METHOD SEED SECONDS LOSS..."; for another kind of text "MODEL:KIND METHOD ...".
list() {
    local model method seed at kind
    for model in "${model_list[@]}"; do
        for method in "${method_list[@]}"; do
            for seed in "${seed_list[@]}"; do
                at=$dir/$model-$method-$seed
                [ -s "$at.losses" ] || continue
                echo "$model $method $seed $(cat "$at.seconds" "$at.losses" | tr '\n' ' ')"
                locate "$model"
                for kind in "${kinds[@]}"; do
                    echo "$model:$kind $method $seed $(cat "$at.seconds" "$at.on-$kind" | tr '\n' ' ')"
                done
            done
        done
    done
}

# Means over seeds, and the difference of the last method from the best of the others.
list | awk '
    function mean(model, method, b) { return sum[model, method, b] / count[model, method] }
    {
        if (!(($1) in models)) { models[$1] = 1; model[++M] = $1 }
        if (!(($2) in methods)) { methods[$2] = 1; method[++K] = $2 }
        count[$1, $2]++
        seconds[$1, $2] += $4
        for (b = 1; b <= 8; b++) {
            x = $(b + 4)
            sum[$1, $2, b] += x
            if (count[$1, $2] == 1 || x < low[$1, $2, b]) low[$1, $2, b] = x
            if (count[$1, $2] == 1 || x > high[$1, $2, b]) high[$1, $2, b] = x
        }
    }
    END {
        head = "| method | seeds | 0.1 | 0.2 | 0.3 | 0.4 | 0.5 | 0.6 | 0.7 | 0.8 | spread | time |"
        rule = "| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |"
        for (m = 1; m <= M; m++) {
            printf "%s%s\n\n%s\n%s\n", (m > 1 ? "\n" : ""), model[m], head, rule
            for (k = 1; k <= K; k++) {
                if (!count[model[m], method[k]]) continue
                line = "| " method[k] " | " count[model[m], method[k]]
                spread = 0
                for (b = 1; b <= 8; b++) {
                    x = mean(model[m], method[k], b)
                    line = line (x == x ? sprintf(" | %.4f", x) : " | -")
                    wide = high[model[m], method[k], b] - low[model[m], method[k], b]
                    if (wide > spread) spread = wide
                }
                took = seconds[model[m], method[k]] / count[model[m], method[k]]
                time = sprintf("%.0f s", took)
                if (count[model[m], "learned"])
                    time = sprintf("%.2f", took * count[model[m], "learned"] / \
                        seconds[model[m], "learned"])
                printf "%s | %.4f | %s |\n", line, spread, time
            }
            last = method[K]
            if (!count[model[m], last]) continue
            above = "|"
            for (b = 1; b <= 8; b++) {
                best = 1e9
                for (k = 1; k < K; k++) {
                    if (!count[model[m], method[k]]) continue
                    x = mean(model[m], method[k], b)
                    if (x < best) best = x
                }
                above = above sprintf(" %+.4f |", mean(model[m], last, b) - best)
            }
            print "| minus the best other | " above " | |"
        }
    }'
