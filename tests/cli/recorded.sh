# fm-bench quality on exports of every layout, of several directories, and of all members of one; and the
# losses that fm-pack writes into a card are those of the exported weights.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency --until 0.5
cp "$odd/tokens.npy" .
eval=(--eval-tokens "$odd/tokens.npy" --seq-len 8 --max-eval-tokens 400 --device ref)
short() { # round figures, whose last digits differ between machines
    sed -E 's/([0-9]{2}\.[0-9])[0-9]+/\1/g; s/([0-9]\.[0-9]{3})[0-9]+/\1/g; s/[0-9a-f]{32}/DIGEST/g'
}
two() { # print the line of the original and the one before it
    sed -n '/^original/{x;p;x;p};h'
}
for layout in native ragged elastic layer uniform padded; do
    fm-pack -q --export $layout --layout $layout --budget 0.3 family.fm >/dev/null 2>&1
    fm-bench quality -q -m "$odd" "${eval[@]}" $layout | short | two
done
fm-bench quality -q "${eval[@]}" --json ragged | grep -o -e '"layout": "ragged"' -e original
echo "-- several directories: the original is computed once, and the figures are those of each alone"
flops() { fm-bench quality -n -q -m "$odd" "${eval[@]}" --json "$@" | sed -n 's/^  "flops": \([^,]*\),$/\1/p'; }
awk -v one="$(flops ragged)" -v two="$(flops ragged ragged)" -v three="$(flops ragged ragged ragged)" -v own="$(
    fm-bench quality -n -q "${eval[@]}" --json ragged | sed -n 's/^  "flops": \([^,]*\),$/\1/p')" \
    'BEGIN { print (two - one == own && three - two == own && one > own ? "once" : one " " two " " three " " own) }'
fm-bench quality -q -m "$odd" "${eval[@]}" --json ragged native uniform >three.json
for dir in ragged native uniform; do fm-bench quality -q -m "$odd" "${eval[@]}" --json $dir >$dir.json; done
python3 - <<'END'
import json, math
several = {e["directory"]: e for e in json.load(open("three.json"))["exports"]}
one = {name: json.load(open(name + ".json")) for name in several}
same = ("ce", "kl", "agree", "ce_change", "original_ce", "kl_tokens", "kl_interval")
print(*(name for name in one if all(one[name][k] == several[name][k] for k in same)))
for before, e in zip(list(several.values()), list(several.values())[1:]):
    assert math.isclose(e["ce_step"][0], e["ce"] - before["ce"], abs_tol=1e-6), e
for e in several.values():
    assert math.isclose(e["ce_change"][0], e["ce"] - e["original_ce"], abs_tol=1e-6), e
    low, high = e["ce_interval"]
    print(e["directory"], "error below the half interval:", e["ce_change"][1] < (high - low) / 2)
END
echo "-- all members"
fm-bench quality -q -m "$odd" "${eval[@]}" elastic --budgets 0.1,0.5 | short
fm-bench quality -q "${eval[@]}" --budgets all elastic --json | grep -c '"budget"'
say() {
    echo "\$ $*" >&2
    "$@" >/dev/null
    echo "status $?" >&2
}
say fm-bench quality -q --eval-tokens tokens.npy --budgets 0.2 ragged
sed -i 's/"fm_budget": *[0-9.]*/"fm_budget": 0.9/' elastic/config.json
say fm-bench quality -q --eval-tokens tokens.npy elastic
sed -i 's/"budget": 0/"budget": 7/' ragged/fm-export.json
say fm-bench quality -q --eval-tokens tokens.npy ragged
echo "-- a card has a loss only if these weights were measured, and then that loss"
mkdir cards && cd cards || exit 99
own=(--eval-tokens "$odd/tokens.npy" --seq-len 8 --max-eval-tokens 400)
family saliency --until 0.5 "${own[@]}"
figure() { # figure DIRECTORY ROW: its number on the card
    sed -n "s/^| $2 | \([0-9.]*\) |$/\1/p" "$1/README.md"
}
for form in native ragged elastic layer uniform padded 'ragged --pad-multiple 8' \
    'ragged --weights fp8' 'elastic --weights fp8'; do
    for budget in 0 0.3; do
        # shellcheck disable=SC2086 # several words
        fm-pack -q -f --export out --layout $form --budget $budget family.fm >/dev/null 2>&1 || echo "status $?"
        ce=$(figure out 'held-out cross-entropy')
        [ "${form%% *}" != elastic ] || ce=$(awk -F ' *[|] *' -v b="$(sed -n \
            's/^| initial budget | \([0-9.]*\) |$/\1/p' out/README.md)" '$2 == b { print $5 }' out/README.md)
        fm-bench quality -q --precision f32 --json "${own[@]}" out | awk -v said="$ce" -v form="$form at $budget" '
            $1 == "\"ce\":" { ce = $2 + 0; exit }
            END { off = ce - said
                print form ": " (said == "" ? "no loss" : off < 1e-4 && off > -1e-4 ? "the measured loss" : said ", not " ce) }'
        [ "$ce" ] || grep -c 'not measured.*fm-bench quality' out/README.md
    done
done
fm-pack -q -f --export out --layout layer --for vllm --budget 0.3 family.fm >/dev/null
sed -n 's/^| held-out cross-entropy | //p' out/README.md
fm-pack -q -f --export out --layout ragged --budget 0.3 family.fm >/dev/null
sed -n 's/^| figures below measured by | //p' out/README.md
