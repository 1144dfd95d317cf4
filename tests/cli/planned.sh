# fm-bench quality --weights: the figures are those of the directories that fm-pack exports, and so are the bytes.
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
measure() { fm-bench -q quality --precision f32 --eval-tokens "$tokens" "$@"; }
compare() { # compare LAYOUT FORMAT...: export each format at two budgets, and measure the directories
    local formats
    formats=$(IFS=,; echo "${*:2}")
    measure --json --layout "$1" --weights "$formats" --budgets 0.25,0.5 family.fm >planned.json
    python3 -c 'import json
for row in json.load(open("planned.json"))["exports"]:
    print(row["weights"].replace("codes", "keep"), row["budget"], row["bytes"], row["ce"])' |
        while read -r format budget bytes ce; do
            fm-pack -q -x out -b "$budget" --layout "$1" --weights "$format" -f family.fm >/dev/null
            measure --json out >written.json
            python3 -c 'import json, os, sys
own = json.load(open("written.json"))["ce"]
bytes, ce = int(sys.argv[1]), float(sys.argv[2])
same = bytes == sum(os.path.getsize("out/" + f) for f in os.listdir("out"))
print(*sys.argv[3:], "same bytes" if same else "other bytes",
      "same loss" if abs(ce - own) <= 1e-6 * own else "another loss")' "$bytes" "$ce" "$1" "$format" "$budget"
        done
}
echo "== values"
python3 "$here/recode.py" qwen3 BF16 BF16
family BF16 0.25 >/dev/null
tokens=BF16/tokens.npy
compare ragged fp8 w4a16:32 nvfp4
compare uniform nvfp4:ct mxfp8
echo "== codes"
tokens=$GOLDEN/packed/fp8-channel/tokens.npy
family "$GOLDEN/packed/fp8-channel" 0.25 >/dev/null
compare ragged keep bf16 nvfp4
compare uniform keep w4a16:32
echo "== a table, with the rows that cannot be written"
measure --weights bf16,fp8-block,w4a16 --budgets 0,0.5 --layout uniform family.fm |
    sed -E 's/[0-9.]+ [kM]?B/SIZE/; s/ +[-+]?[0-9]+\.[0-9]{2,4}\b/ N/g'
measure --json --weights bf16,fp8-block --budgets 0 family.fm | sed -n '/"refused"/,$p'
measure -n --weights bf16,mxfp4 --budgets 0,0.5 family.fm | sed -E '/^memory/,$d; s/[0-9.]+ [kM]?B/SIZE/'
measure --json --weights bf16,mxfp4 --budgets 0,0.5 family.fm >figures.json
fm-bench report -q --figures figures.json -f -o page.html family.fm >/dev/null && echo shown
echo "== messages"
said measure --weights int8 family.fm
said measure --weights fp8-block family.fm
said measure --weights bf16 --layout elastic family.fm
said measure --weights bf16 --budgets 0.25x family.fm
said measure --weights bf16 -m "$GOLDEN/packed/fp8-channel" family.fm
said measure --weights bf16 --plot plot.svg family.fm
said measure --weights bf16 trained
said measure --layout ragged family.fm
