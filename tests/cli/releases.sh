# Newer families as they are released: FP8 in blocks under the names of compressed-tensors, and experts in
# INT4.  Scores are those of the float32 model of the same values, and exports compute the same.  FP8 in blocks
# under its own names: fp8.sh; MXFP8: minimax-m3.sh.
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
rank() { # rank MODEL OUT [OPTION...]
    fm-rank -q -m "$1" -t made/tokens.npy --device ref -f -o "$2" "${@:3}" >/dev/null 2>&1
}
check() { # check LAYOUT...: compare the scores of made with those of twin; verify the bundle and the exports
    local group layout
    group=$(fm-rank -n -m made -t made/tokens.npy 2>/dev/null | sed -n '/not kept/d; s/^codes.*groups of \([0-9]*\).*/\1/p')
    rank made ranked
    rank twin twin.fm --channel-group "${group:-1}"
    cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) &&
        echo "scores of the float32 twin, groups of ${group:-1}"
    fm-train -q -m made -t made/tokens.npy --method saliency --budget-step 0.2 -f -o trained ranked >/dev/null 2>&1
    fm-pack -q -m made -f -o family.fm trained | grep -E '^(stored|codes)'
    fm-verify -q --function -m made -t made/tokens.npy family.fm | numbers
    for layout; do
        fm-pack -q --export out --budget 0.5 --layout "$layout" -f family.fm >/dev/null
        fm-verify -q --function -t made/tokens.npy --against family.fm out | numbers
        grep -oE '"quant_method": *"[a-z-]*"' out/config.json
        rm -r out
    done
    rm -r made twin ranked twin.fm
}
for name in odd-laguna odd-glm5 odd-mimo odd-afmoe; do
    echo "== $name, compressed-tensors' FP8 in blocks of 16 x 24"
    python3 "$here/recode.py" quantise "$GOLDEN/$name" made fp8-ct:16x24
    python3 "$here/recode.py" plain made twin
    check uniform
    echo "== $name, experts in compressed-tensors' INT4"
    python3 "$here/recode.py" grow "$GOLDEN/$name" grown 48
    python3 "$here/recode.py" resize grown wide 64
    python3 "$here/recode.py" quantise wide made w4a16:16
    python3 "$here/recode.py" plain made twin
    rm -r grown wide
    check uniform ragged
done
for kind in w4a16:16 mixed-modelopt; do
    echo "== odd-gemma4 with separate experts, $kind: exports have the experts of a layer in one tensor"
    python3 "$here/recode.py" apart "$GOLDEN/odd-gemma4" apart
    python3 "$here/recode.py" grow apart grown 48
    python3 "$here/recode.py" resize grown wide 64
    python3 "$here/recode.py" quantise wide made $kind
    python3 "$here/recode.py" plain made twin
    rm -r apart grown wide
    check uniform ragged
done
echo "== odd-mimo2, FP8 with q, k and v in one tensor, and experts in MXFP4"
python3 "$here/recode.py" grow "$GOLDEN/odd-mimo2" grown 64
python3 "$here/recode.py" resize grown wide 64
python3 "$here/recode.py" fuse wide made twin 16x16 mxfp4
rm -r grown wide
check uniform padded
echo "== odd-mimo2, FP8 with q, k and v in one tensor, whose chunks have blocks of their own"
python3 "$here/recode.py" resize "$GOLDEN/odd-mimo2" wide 48
python3 "$here/recode.py" fuse wide made twin 16x16
cp -r made kept
check uniform padded
mv kept made
PYTHONPATH=$here python3 - <<'PYTHON'
from tensors import read, write
name, tensors = "model.layers.0.self_attn.qkv_proj.weight", read("made")
dtype, (rows, across), scales = tensors[name + "_scale_inv"]
write("made", "whole", tensors | {name + "_scale_inv": (dtype, [rows - 1, across], scales[4 * across :])})
shape = tensors.pop(name)[1]
del tensors[name + "_scale_inv"]
write("made", "plain", tensors | {name: ("BF16", shape, bytes(2 * shape[0] * shape[1]))})
PYTHON
for of in whole plain; do
    said fm-rank -q -m $of -t made/tokens.npy -o refused
done
family made 0.2 >/dev/null
said fm-pack -q -m made --weights bf16 -o refused trained
for layout in ragged elastic layer; do
    said fm-pack -q --export out --budget 0.5 --layout "$layout" family.fm
done
