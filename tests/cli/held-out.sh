# Losses are compared on the same held-out tokens: the history records the tokens, and if the losses in the
# stream were measured on other tokens, fm-recover measures the masks again.
tiny=$GOLDEN/tiny-mixtral
data=(--model "$tiny" --tokens "$tiny/calib.npy" --seq-len 64 --precision f32)
held=(--eval-tokens "$tiny/heldout.npy")
recover() { # recover NAME STREAM OPTION...: print its status, and whether masks were measured again
    fm-recover "${data[@]}" --steps 8 --lr 1e-3 --json -o "$1" "${@:3}" "$2" 2>complained >"$1.json"
    echo "$1: status $?"
    grep -o 'masks are measured.*' complained
}
losses() { # losses NAME: the budgets' losses without the adapter
    sed -n '/"quality"/,/}/{/"ce"\|"recovered"/p}' "$1.json"
}
fm-rank -q "${data[@]}" -o ranked >/dev/null 2>&1
for most in 2048 512; do
    fm-train -q "${data[@]}" "${held[@]}" --max-eval-tokens $most --method saliency --until 0.3 \
        --budget-step 0.1 --json -o trained$most ranked >trained$most.json
    tar xOf trained$most manifest.json | sed -n '/"held_out"/,/"positions"/p'
done
recover same trained512 "${held[@]}" --max-eval-tokens 512
recover other trained2048 "${held[@]}" --max-eval-tokens 512
recover again same "${held[@]}" --max-eval-tokens 512
fm-recover "${data[@]}" "${held[@]}" --max-eval-tokens 512 --steps 2 -o printed trained512 2>/dev/null |
    sed 's/[0-9]\.[0-9]*/N/g'
tar xOf other manifest.json | sed -n '/"held_out"/,/^      }/p' | tail -n 16
for name in other again; do
    cmp <(losses same) <(losses $name) && echo "$name: the same losses before"
done
echo "-- the original on the card of a recovered member is the checkpoint itself"
for name in same other again; do
    fm-pack -q --model "$tiny" -o $name.fm $name >/dev/null
    fm-pack -q --export $name.out --budget 0 $name.fm >/dev/null
    fm-verify -q --against $name.fm $name.out >/dev/null || echo "$name: status $?"
    original=$(sed -n '/"quality"/,/}/s/.*"ce": *\([0-9.]*\).*/\1/p' trained512.json | head -n 1)
    merged=$(sed -n '/"recovered": {/,/}/s/.*"ce": *\([0-9.]*\).*/\1/p' $name.json | head -n 1)
    sed -n 's/^| held-out cross-entropy/&/p' $name.out/README.md |
        sed "s/$(printf %.4f "$original")/ORIGINAL/; s/$(printf %.4f "$merged")/MERGED/"
done
echo "-- what is held out of the calibration data is not ranked on"
few=(--model "$tiny" --tokens "$tiny/calib.npy" --seq-len 64 --max-tokens 4096 --precision f32)
train() { # train STREAM OPTION...: print the record of the held-out tokens, and the warning
    fm-train "${few[@]}" "${@:2}" --method uniform --budget-step 0.4 -f -o t "$1" 2>&1 >/dev/null | grep -v ' of '
    tar xOf t manifest.json | sed -n '/"held_out"/,/"sequences"/p' | tail -n 2
}
fm-rank "${few[@]}" -o split 2>/dev/null | sed -n '/^tokens/,/^held/s/, mean.*//p'
fm-rank "${few[@]}" "${held[@]}" -o whole 2>/dev/null | sed -n '/^tokens/,/^held/s/, mean.*//p'
tar xOf split manifest.json | sed -n '/"held_out"/,/"sequences"/p' | tail -n 2
train split
train whole "${held[@]}"
train whole
train split --max-tokens 2048
echo "-- by default measuring all members costs less than ranking, and the forecast says how it costs half"
for _ in 1 2 3 4; do tail -c +129 "$tiny/calib.npy"; done | head -c 131072 >long.u16
for _ in 1 2 3 4 5; do tail -c +129 "$tiny/heldout.npy"; done >held.u16
long=(--model "$tiny" --tokens long.u16 --seq-len 128 --precision f32)
forecast() { # forecast TOOL OPTION...: the sequences to measure on, the products, and what halves the time
    "$@" --dry-run --device ref 2>/dev/null |
        sed -n 's/^held out *\([0-9]*\).*/\1 sequences/p; s/^flops *\([^ ]*\).*/\1 flops/p; s/^halved.*with/halved with/p'
}
forecast fm-rank "${long[@]}" --eval-tokens held.u16 | sed 's/ with.*//' | tee ranking
forecast fm-train "${long[@]}" --eval-tokens held.u16 --method saliency - </dev/null | tee measuring
awk '/flops/ { flops[NR == FNR] = $1 } END { print (flops[0] < flops[1] ? "less" : "more") " than ranking" }' ranking measuring
forecast fm-train "${long[@]}" --method saliency - </dev/null
forecast fm-train "${long[@]}" --eval-tokens held.u16 --max-eval-tokens 16384 --method saliency - </dev/null
forecast fm-train "${long[@]}" --eval-tokens held.u16 --measure-step 0.5 --method saliency - </dev/null
