# fm-verify compares exports with their bundle, or with its first members, and reports faults.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
for layout in native ragged elastic layer uniform padded; do
    fm-pack -q --export $layout --budget 0.4 --layout $layout family.fm >/dev/null
    check "$layout" $layout --against family.fm
    for file in "$layout"/*.safetensors; do
        size=$(stat -c %s "$file")
        flip "$file" $((size - 1000))
        check "$file: a byte of the weights" $layout --against family.fm
        flip "$file" $((size - 1000))
    done
done
first=$(tar -tRf family.fm | sed -n 's/^block \([0-9]*\): weights.*/\1/p' | head -n 1)
head -c $((first * 512)) family.fm >first.fm
check "ragged, against the first members" ragged --against first.fm
mv padded/model.safetensors elsewhere
check "padded without its weights" padded --against family.fm
mv elsewhere padded/model.safetensors
cp uniform/config.json ragged/config.json
check "ragged with another config.json" ragged --against family.fm
echo surplus >native/surplus.txt
check "native with an extra file" native --against family.fm
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method saliency --budget-step 0.2 \
    -o other.stage ranked >/dev/null
fm-pack -q --model "$odd" -o other.fm other.stage >/dev/null
check "uniform against another bundle" uniform --against other.fm
check "an export alone" uniform
check "an export alone, with another export's config.json" ragged
