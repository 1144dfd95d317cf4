# A layer for multi-token prediction: its experts are ranked by its own loss, with the scores of PyTorch's
# autograd, and `uniform` narrows them; nothing of the other layers depends on it.
set -o pipefail
mtp=$(dirname "$0")/mtp.py
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
narrowed="dsv3 glm4 q3next q35 hy3" # names, own head, shared experts of a width in config.json, a wrapper
families=$(cd "$GOLDEN/ahead" && for file in *.golden.safetensors; do echo "${file%%.*}"; done)

# rank NAME OPTION...: rank the layer, too, on all sequences
rank() {
    fm-rank -q --model "$1" --tokens "$1/tokens.npy" --eval-tokens "$1/tokens.npy" --keep-extra -f "${@:2}"
}

# order STREAM: its ranking
order() {
    tar -xOf "$1" ranking.safetensors
}

for name in $families; do
    python3 "$mtp" make "$GOLDEN" "$name" "$name"
done

echo "== scores are those of PyTorch"
for name in $families; do
    for batch in 2 1; do
        rank "$name" --precision f32 --batch $batch -o "$name.$batch" 2>/dev/null >/dev/null
        python3 "$mtp" compare "$name.$batch" "$GOLDEN" "$name" $batch
    done
    fm-rank -q --model "$name" --tokens "$name/tokens.npy" --eval-tokens "$name/tokens.npy" --precision f32 \
        -o "$name.without" >/dev/null 2>&1
    python3 "$mtp" others "$name.1" "$name.without"
done
rank glm4 --precision f32 --json -o said 2>/dev/null |
    grep -A 4 '"extra"' | sed 's/\(6\.5397\)[0-9]*/\1/'

python3 "$mtp" forecast <(rank glm4 --precision f32 --json --dry-run -o said 2>/dev/null) \
    <(fm-rank -q --model glm4 --tokens glm4/tokens.npy --eval-tokens glm4/tokens.npy --precision f32 --json \
        --dry-run -f -o said 2>/dev/null) glm4
# Of such a length that the stream would be longer than a forecast without the layer's loss.
cp -r q3next long
printf '%512s' '' >>long/config.json
same=(--device ref --criterion energy --seed 12345678901234567) # digits that no processor changes
rank long "${same[@]}" --dry-run --json -o said 2>/dev/null >forecast.json
rank long "${same[@]}" -o said >/dev/null 2>&1
echo "the stream: $(sed -n 's/^  "output": \(.*\),/\1/p' forecast.json) bytes at most, $(stat -c %s said) bytes"

echo "== they do not depend on threads, memory, interruptions or the way they are made"
for how in "--threads 1" "--threads 3" "--memory 40M" "--state state"; do
    # shellcheck disable=SC2086
    rank glm4 --precision f32 $how -o other >/dev/null 2>&1
    cmp <(order other) <(order glm4.1) && echo "$how: same"
done
rank dsv3 --criterion energy --precision f32 --threads 1 -o one >/dev/null 2>&1
rank dsv3 --criterion energy --precision f32 --threads 2 --memory 40M -o other >/dev/null 2>&1
cmp one other && echo "energy: same"
fm-rank -q --blend glm4.1 --blend glm4.1 -o blended >/dev/null 2>&1 && python3 "$mtp" near blended glm4.1
fm-rank -q --blend glm4.1 --blend glm4.without -o mixed

echo "== uniform narrows its experts"
for name in $narrowed; do
    fm-train -q --model "$name" --tokens "$name/tokens.npy" --method saliency --budget-step 0.2 --until 0.6 \
        --granularity model -f -o trained "$name.1" >/dev/null 2>&1
    fm-pack -q --model "$name" -o "$name.fm" trained >/dev/null
    fm-pack -q --export "$name.out" --budget 0.4 --layout uniform --keep-extra "$name.fm" | grep -E 'width|extra'
    fm-verify -q --against "$name.fm" "$name.out" >/dev/null && echo verified
    python3 "$mtp" narrow "$name.out" "$name" "$name.1"
    grep -h multi-token "$name.out/README.md"
done
python3 "$mtp" fuse q35 fused
rank fused --precision f32 --batch 1 -o fused.1 >/dev/null 2>&1
cmp <(order fused.1) <(order q35.1) && echo "the same order if the layer's experts are in one tensor"
fm-train -q --model fused --tokens fused/tokens.npy --method saliency --budget-step 0.2 --until 0.6 \
    --granularity model -f -o trained fused.1 >/dev/null 2>&1
fm-pack -q --model fused -o fused.fm trained >/dev/null
fm-pack -q --export fused.out --budget 0.4 --layout uniform --keep-extra fused.fm >/dev/null
fm-verify -q --against fused.fm fused.out >/dev/null && python3 "$mtp" joined q35.out fused.out
fm-family -q glm4 --tokens glm4/tokens.npy --no-recover --method uniform --layout uniform -b 0.4 --keep-extra \
    -o made >/dev/null 2>&1 && python3 "$mtp" narrow made glm4 made.work/ranked.fm
fm-pack -q --export again --budget 0.4 --layout uniform --keep-extra --no-check glm4.fm >/dev/null &&
    cmp again/model.safetensors glm4.out/model.safetensors && echo "the same without checksums"
fm-pack -q --export - --budget 0.4 --layout uniform --keep-extra glm4.fm | tar -xO model.safetensors |
    cmp - glm4.out/model.safetensors && echo "the same to a pipe"
rank glm4.out -f -o again 2>/dev/null | grep extra
for layout in padded ragged elastic; do
    fm-pack -q --export $layout --budget 0.4 --layout $layout --keep-extra glm4.fm | grep extra
    fm-verify -q --function --tokens glm4/tokens.npy --against glm4.fm $layout >/dev/null && echo verified
    python3 "$mtp" whole $layout glm4
done
fm-pack -q --export refused --budget 0.4 --layout layer --keep-extra glm4.fm
fm-pack -q --export refused --budget 0.4 --layout uniform --weights fp8 --keep-extra dsv3.fm
fm-train -q --model glm4 --tokens glm4/tokens.npy --method saliency --budget-step 0.2 --until 0.4 -f -o trained \
    glm4.without >/dev/null 2>&1
fm-pack -q --model glm4 -o without.fm trained >/dev/null
fm-pack -q --export refused --budget 0.4 --layout uniform --keep-extra without.fm

echo "== damage is found"
python3 "$mtp" damage glm4.out model.layers.4.mlp.experts.3.down_proj.weight
check "a byte of an expert" --against glm4.fm glm4.out
weights=$(tar -xOf glm4.fm manifest.json | grep -A 2 -m 1 '"weights/' | grep offset | tr -dc 0-9)
head -c "$weights" glm4.fm >begun
fm-verify -q --against begun glm4.out

echo "== what cannot be ranked is refused"
rank "$GOLDEN/odd-glm4" -o refused
for change in missing-enorm missing-expert missing-norm shape dtype infinite second; do
    cp -r glm4 "$change"
    python3 "$mtp" spoil "$change"
    rank "$change" -o refused >/dev/null
    echo "$change: status $?"
done
rank missing-enorm -o refused --dry-run
rank glm4 --seq-len 2 -o refused
python3 "$(dirname "$0")/ahead.py" "$GOLDEN/odd-minimax" minimax 3 1
rank minimax -o refused
