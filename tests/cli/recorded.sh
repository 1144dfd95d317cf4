# fm-bench quality on exports of every layout: --record writes the loss into the export, fm-verify accepts
# the result, and a second --record changes nothing.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency --until 0.5
cp "$odd/tokens.npy" .
eval=(--eval-tokens "$odd/tokens.npy" --seq-len 8 --max-eval-tokens 400 --device ref)
short() { # round figures, whose last digits differ between machines
    sed -E 's/([0-9]{2}\.[0-9])[0-9]+/\1/g; s/([0-9]\.[0-9]{3})[0-9]+/\1/g; s/[0-9a-f]{32}/DIGEST/g
        s/(README.md": \{"bytes": )[0-9]+/\1N/'
}
two() { # print the line of the original and the one before it
    sed -n '/^original/{x;p;x;p};h'
}
for layout in native ragged elastic layer uniform padded; do
    fm-pack -q --export $layout --layout $layout --budget 0.3 family.fm >/dev/null 2>&1
    fm-bench quality -q -m "$odd" "${eval[@]}" --record $layout | short | two
    fm-verify -q $layout --against family.fm | sed 's/:.*:/:/'
done
cp ragged/README.md once
cp ragged/fm-export.json once.json
fm-bench quality -q -m "$odd" "${eval[@]}" --record ragged >/dev/null
cmp once ragged/README.md && cmp once.json ragged/fm-export.json && echo "recorded twice: the same"
sed -n '/^model-index/,/^---/p; /^## Measured/,/^## Running/p' ragged/README.md | short
fm-pack --export again --layout ragged --budget 0.3 family.fm >/dev/null 2>&1
diff again/README.md ragged/README.md | grep -c '^<'
diff again/fm-export.json ragged/fm-export.json | sed -E 's/(_tokens": \[)[^]]*/\1.../g' | short
fm-bench quality -q "${eval[@]}" --json again | grep -o -e '"layout": "ragged"' -e original
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
fm-bench quality -q -m "$odd" "${eval[@]}" --record elastic |
    short | two
sed -n '/^| the original/,/^$/p' elastic/README.md | short
fm-verify -q elastic --against family.fm | sed 's/:.*:/:/'
echo "-- what the owner wrote stays, and is not taken for what was recorded"
fm-pack -q --export mine --layout ragged --budget 0.3 family.fm >/dev/null 2>&1
python3 - mine/README.md <<'END'
import sys
path = sys.argv[1]
front, body = open(path).read().split("\n---\n", 1)
body = body.replace("## Running it", """## Measured
On my own data.

| quality | not measured by others |

## Running it""")
open(path, "w").write(front + "\nmodel-index:\n- name: mine\n  results: []\n---\n" + body)
END
cp mine/README.md owner
fm-bench quality -m "$odd" "${eval[@]}" --record mine 2>&1 >/dev/null | grep model-index
diff owner mine/README.md | short
cp mine/README.md once
fm-bench quality -q -m "$odd" "${eval[@]}" --record mine >/dev/null
cmp once mine/README.md && echo "recorded twice: the same"
{
    cat mine/README.md
    echo "after the end"
} >edited && sed -i '/^<!-- fm-bench quality --record: end/a my remark' edited
cp edited mine/README.md
fm-bench quality -q -m "$odd" "${eval[@]}" --record mine >/dev/null
diff edited mine/README.md
sed -i '/^<!-- fm-bench quality --record: end/d' mine/README.md
fm-bench quality -q -m "$odd" "${eval[@]}" --record mine >/dev/null
fm-bench quality -q -m "$odd" "${eval[@]}" --record mine >/dev/null
grep -c -e 'my remark' -e 'after the end' -e 'On my own' mine/README.md
grep -c 'record: begin' mine/README.md
say() {
    echo "\$ $*" >&2
    "$@" >/dev/null
    echo "status $?" >&2
}
say fm-bench quality -q --eval-tokens tokens.npy --budgets 0.2 ragged
say fm-bench quality -q --eval-tokens tokens.npy --record family.fm
sed -i 's/"fm_budget": *[0-9.]*/"fm_budget": 0.9/' elastic/config.json
say fm-bench quality -q --eval-tokens tokens.npy elastic
sed -i 's/"measured"/"measurec"/' ragged/fm-export.json
say fm-verify -q ragged --against family.fm
sed -i 's/"budget": 0/"budget": 7/' again/fm-export.json
say fm-bench quality -q --eval-tokens tokens.npy again
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
if [ -z "${SAN:-}" ]; then # sanitizers refuse a library that is loaded before theirs
    faults=$(dirname "$(type -P fm-pack)")/../tests/unit/faults.so
    LD_PRELOAD=$faults FM_FAULT=rename:2:fail fm-bench quality -q --record "${own[@]}" out 2>complained >/dev/null
    echo "fm-export.json cannot be written: status $?, $(cat complained)"
    fm-verify -q out | tail -n 1 | figures
fi
