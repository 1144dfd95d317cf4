# Every value in the manifest of each stage and in fm-export.json is changed, one at a time, with
# digests and sizes corrected: fm-verify finds each change except those of the values that are
# printed, of which fm-bundle(5) speaks.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
here=$(cd "$(dirname "$0")" && pwd)
family saliency --budget-step 0.2 --until 0.4 --eval-tokens "$odd/tokens.npy"
fm-recover -q --model "$odd" --tokens "$odd/tokens.npy" --eval-tokens "$odd/tokens.npy" --precision f32 --steps 1 --lora-rank 2 -o recovered \
    trained >/dev/null 2>&1
fm-pack -q -f --model "$odd" -o family.fm recovered >/dev/null
fm-pack -q --export one --budget 0.4 family.fm >/dev/null
fm-pack -q --export all --layout elastic --load-cap 0.1:0.5 --base-model me/mine --pad-multiple 3 family.fm >/dev/null
for file in ranked trained recovered family.fm; do
    python3 "$here/mutate.py" "$file" >>passed || echo "$file: status $?"
done
for directory in one all; do
    python3 "$here/mutate.py" "$directory" family.fm >>passed || echo "$directory: status $?"
done
LC_ALL=C sort -u passed
