# Quantised layers for multi-token prediction are ranked by their values, and exports have their codes, cut in
# whole groups of channels, or their values.
set -o pipefail
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
# shellcheck source=tests/cli/family.bash
. "$here/family.bash"
mtp=$here/mtp.py

# made NAME CHANNELS KIND TO: a model with a layer, resized and quantised
made() {
    python3 "$mtp" make "$GOLDEN" "$1" bare
    python3 "$here/recode.py" resize bare wide "$2"
    python3 "$here/recode.py" quantise wide "$4" "$3"
    rm -r bare wide
}

# rank MODEL OPTION...: rank the layer, too
rank() {
    fm-rank -q -m "$1" -t "$1/tokens.npy" --precision f32 --keep-extra -f "${@:2}" >/dev/null 2>&1
}

made glm4 24 fp8:8x4 blocks
made dsv3 24 w4a16:8 int4
made dsv3 64 mixed-modelopt mixed
for model in blocks int4 mixed; do
    echo "== $model"
    rank $model -o ranked
    fm-train -q -m $model -t $model/tokens.npy --method saliency --budget-step 0.25 --until 0.75 --granularity model -f \
        -o trained ranked >/dev/null 2>&1
    fm-pack -q -m $model -f -o family.fm trained | grep codes
    group=$(fm-rank -n -m $model -t $model/tokens.npy 2>/dev/null | sed -n 's/^codes.*groups of \([0-9]*\).*/\1/p')
    python3 "$here/recode.py" plain $model twin
    rank twin ${group:+--channel-group "$group"} -o twin.fm
    cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) && echo "scores of the float32 twin"
    for how in "uniform" "uniform --weights bf16" "padded" "ragged"; do
        # shellcheck disable=SC2086 # several words
        fm-pack -q --export out --budget 0.5 --layout $how --keep-extra -f family.fm >/dev/null || continue
        echo "$how: $(python3 "$mtp" coded out $model ranked)"
        verify --against family.fm out | tail -n 1
        grep -ho 'multi-token.*|' out/README.md
        # shellcheck disable=SC2086
        fm-pack -q --export - --budget 0.5 --layout $how --keep-extra --no-check family.fm |
            tar -xf - --one-top-level=stream && cmp out/model.safetensors stream/model.safetensors
        rm -r stream
    done
    rm -r twin
done
echo "== damage is found"
fm-pack -q --export out --budget 0.5 --layout ragged --keep-extra -f family.fm >/dev/null
python3 "$mtp" damage out model.layers.3.mlp.experts.3.down_proj.weight
check "a byte of a value" --against family.fm out
echo "== scales that are missing or do not fit"
for change in unscaled coarse; do
    cp -r blocks $change
    python3 "$mtp" spoil $change
    fm-rank -q -m $change -t $change/tokens.npy -f -o ranked >/dev/null 2>&1
    fm-train -q -m $change -t $change/tokens.npy --method saliency --budget-step 0.25 --until 0.75 -f \
        -o trained ranked >/dev/null 2>&1
    fm-pack -q -m $change -f -o family.fm trained >/dev/null
    fm-pack -q --export out --budget 0.5 --layout ragged --keep-extra -f family.fm >/dev/null
    echo "$change: status $?"
done
