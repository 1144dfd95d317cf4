#!/usr/bin/env bash
# The whole pipeline on the small trained model in golden/: rank, train, recover, pack, list,
# export in all layouts, verify everything.  Results stay in build/demo (or DEMO_DIR).
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${DEMO_DIR:-build/demo}
model=golden/tiny-mixtral
data=(--model "$model" --tokens "$model/calib.npy" --seq-len 128 --precision f32)
quality=(--eval-tokens "$model/heldout.npy")
layouts=$(basename -s .c lib/export/layouts/*.c)
rm -rf "$dir"
mkdir -p "$dir"

say() {
    printf '\n== %s\n' "$*"
}

# Rows "budget bytes CE KL" of a stage or bundle, from the JSON of --list.
rows() {
    fm-pack --list --json "$1" | awk -F'[:,]' '
        /"budget"/ { budget = $2 }
        /"bytes"/ { bytes = $2 }
        /"ce"/ { ce = $2 }
        /"kl"/ { print budget, bytes, ce, $2 }'
}

say "fm-rank | fm-train | tee | fm-recover | fm-pack"
fm-rank "${data[@]}" "${quality[@]}" |
    fm-train "${data[@]}" "${quality[@]}" --until 0.70 --budget-step 0.05 |
    tee "$dir/trained.stage" |
    fm-recover "${data[@]}" "${quality[@]}" --budget 0.40 --steps 40 |
    fm-pack --model "$model" -o "$dir/family.fm"

say "exports at budget 0.40"
for layout in $layouts; do
    fm-pack --export "$dir/$layout" --budget 0.40 --layout "$layout" "$dir/family.fm"
done

say "the family: held-out loss and divergence from the full model, before and after recovery"
printf '%8s %10s %9s %9s %9s %9s\n' budget bytes CE 'CE after' KL 'KL after'
paste -d ' ' <(rows "$dir/trained.stage") <(rows "$dir/family.fm") | awk '
    $1 != $5 { print "demo: the stages list different budgets"; exit 1 }
    { printf "%8.4f %10d %9.4f %9.4f %9.4f %9.4f\n", $1, $6, $3, $7, $4, $8 }'

say "verified"
fm-verify "$dir/family.fm"
for layout in $layouts; do
    fm-verify "$dir/$layout" --against "$dir/family.fm"
done
pack=$(command -v fm-pack)
printf '\nThe results are in %s.  Look around:\n\n    %s --list %s/family.fm\n' "$dir" "${pack#"$PWD/"}" "$dir"
