# Quality measured on a text equals quality measured on its tokens; a bundle contains its tokenizer.
tiny=$GOLDEN/tiny-mixtral
# The first six rows, and their tokens: each document begins with <s>, which is 1.
head -n 6 "$GOLDEN/text/rows.jsonl" >rows.jsonl
n=$(od -An -v -tu2 -w2 -j128 "$GOLDEN/text/rows.npy" | awk '$1 == 1 && ++seen == 7 { print NR - 1 }')
head -c $((128 + 2 * n)) "$GOLDEN/text/rows.npy" | sed "1s/(9023,)/($n,)/" >rows.npy
calib=(--model "$tiny" --tokens "$tiny/calib.npy" --seq-len 32 --max-tokens 2048)
try() {
    "$@" 2>&1 | sed "s|$GOLDEN|GOLDEN|g"
    echo "status ${PIPESTATUS[0]}"
}
fm-rank -q "${calib[@]}" -o ranked >/dev/null 2>&1
train() { # train NAME OPTION...
    local name=$1
    shift
    fm-train -q "${calib[@]}" --method saliency --budget-step 0.4 "$@" -o "$name" ranked >said || cat said
    tar xOf "$name" masks.zst >"$name.both" # and the manifest, except token sources and sizes
    tar xOf "$name" manifest.json |
        sed '/"held_out"/,/^      }/{/"sources"/,/^        \]/d}; /"size"/d' >>"$name.both"
    cmp tokens.both "$name.both" && echo "$name: the same"
}
train tokens --eval-tokens rows.npy
# These tokens have no separator.
train text --eval-text rows.jsonl --separator none
train stdin --eval-text - --separator none <rows.jsonl
sed 's/"text"/"body"/' rows.jsonl >bodies.jsonl
train body --eval-text bodies.jsonl --text-field body --separator none --tokenizer "$tiny/tokenizer.json"
fm-pack -q --model "$tiny" -o family.fm tokens >/dev/null
fm-bench quality -q --seq-len 32 --eval-tokens rows.npy --json family.fm >by-tokens
fm-bench quality -q --seq-len 32 --eval-text rows.jsonl --separator none --json family.fm >by-text
cmp by-tokens by-text && echo "fm-bench: the same"
for separator in eos '</s>'; do
    fm-bench quality -q --seq-len 32 --eval-text rows.jsonl --separator "$separator" --json family.fm >"by-${separator//\//}"
done 2>&1
cmp by-eos 'by-<s>' && ! cmp -s by-eos by-text && echo "fm-bench: the separator is that of the bundle's tokenizer"
fm-bench quality -q -n --seq-len 32 --text rows.jsonl family.fm | sed '/^memory/,$d'
echo "-- the tokenizer that a bundle carries"
try fm-verify -q --function --max-tokens 32 --seq-len 32 --model "$tiny" --text rows.jsonl family.fm | tail -n 1
fm-pack -q --export out --budget 0.4 family.fm >/dev/null
try fm-verify -q --function --max-tokens 32 --seq-len 32 --text rows.jsonl --against family.fm out | tail -n 1
cp -r "$tiny" bare && rm bare/tokenizer.json
fm-rank -q "${calib[@]}" --model bare -o bare.ranked >/dev/null 2>&1
fm-train -q "${calib[@]}" --model bare --method uniform --budget-step 0.4 -o bare.trained bare.ranked >/dev/null
fm-pack -q --model bare -o bare.fm bare.trained >/dev/null
try fm-bench quality -q --eval-text rows.jsonl bare.fm
echo "-- options that contradict each other"
try fm-train -q "${calib[@]}" --eval-text rows.jsonl --eval-tokens rows.npy -o none ranked
try fm-train -q "${calib[@]}" --eval-text - -o none - <ranked
try fm-train -q "${calib[@]}" --text - --eval-text - -o none ranked <rows.jsonl
try fm-train -q --force "${calib[@]}" --eval-text rows.jsonl -o rows.jsonl ranked
try fm-train -q --force "${calib[@]}" --text bodies.jsonl:2 -o bodies.jsonl ranked
try fm-bench quality -q --eval-text rows.jsonl --text rows.jsonl family.fm
try fm-bench quality -q family.fm
try fm-bench quality -q --eval-text missing.txt family.fm
echo "-- a limit on the held-out tokens"
for bound in "" "--max-eval-tokens 64" "--max-eval-tokens 31"; do
    # shellcheck disable=SC2086 # none or two words
    fm-bench quality -q --json --eval-tokens rows.npy --seq-len 32 --budgets 0 $bound family.fm 2>&1 |
        grep -E 'fm-bench:|"sequences"|"positions"' | sort -u
done
try fm-train -q -n "${calib[@]}" --max-eval-tokens 32
# Held-out rows that are shorter than a training sequence: the forecast uses their length.
{
    printf '\x93NUMPY\1\0\x46\0'
    printf "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 8), }%10s\n" ''
    for i in 1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8; do printf "%b" "\\x$i\\0\\0\\0"; done
} >short.npy
for tool in "fm-train --method saliency ranked" "fm-recover tokens"; do
    read -r name rest <<<"$tool"
    # shellcheck disable=SC2086
    try "$name" -q -n "${calib[@]:0:4}" --eval-tokens short.npy $rest | grep '^held out\|^status'
done
