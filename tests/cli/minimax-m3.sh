# MiniMax-M3 as published: multimodal, with separate matrices and names that differ from those of
# transformers' text class.  Scores are the same; exports are complete checkpoints or have our modelling file.
set -o pipefail
text=$GOLDEN/odd-m3
tokens=(--tokens "$text/tokens.npy")
python3 - "$text" <<'PYTHON'
import json, sys
from tensors import config_of, read, write
out = {"vision_tower.patch.weight": ("BF16", [2], b"abcd"), "patch_merge_mlp.linear_1.bias": ("BF16", [1], b"ef")}
def put(name, dtype, shape, data):
    out["language_model." + name] = dtype, shape, data
def halves(data):
    return data[:len(data) // 2], data[len(data) // 2:]
for name, (dtype, shape, data) in read(sys.argv[1]).items():
    layer = name.partition("layers.")[2].partition(".")[0]
    own = name.replace("indexer.", "index_")
    if layer and layer != "0":
        own = own.replace("mlp.gate.e_score", "mlp.e_score").replace(".mlp.", ".block_sparse_moe.")
    if ".experts." in own:
        each = len(data) // shape[0]
        for e in range(shape[0]):
            part, at = data[e * each:(e + 1) * each], own.replace("gate_up_proj", str(e)).replace("down_proj", str(e))
            if "gate_up" in own:
                for w, half in zip(("w1", "w3"), halves(part)):
                    put(f"{at}.{w}.weight", dtype, [shape[1] // 2, shape[2]], half)
            else:
                put(f"{at}.w2.weight", dtype, shape[1:], part)
    elif own.endswith("gate_up_proj.weight"):
        for x, half in zip(("gate", "up"), halves(data)):
            put(own.replace("gate_up", x), dtype, [shape[0] // 2, shape[1]], half)
    else:
        put(own, dtype, shape, data)
config = config_of(sys.argv[1])
for key in ("model_type", "mlp_layer_types", "layer_types", "hidden_act"):
    del config[key]
sparse = {"use_sparse_attention": True, "sparse_attention_freq": [0, 1, 0, 1]}
for key, name in (("index_n_heads", "num_index_heads"), ("index_head_dim", "index_dim"),
                  ("index_block_size", "block_size"), ("index_topk_blocks", "topk_blocks")):
    sparse["sparse_" + name] = config.pop(key)
config |= {"architectures": ["MiniMaxM3SparseForCausalLM"], "hidden_act": "swigluoai",
           "moe_layer_freq": [0, 1, 1, 1], "sparse_attention_config": sparse}
whole = {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl",
         "text_config": config, "vision_config": {"model_type": "clip_vision_model"}}
write(sys.argv[1], "hub", out, lambda config: (config.clear(), config.update(whole)))
PYTHON
pack() { # pack MODEL NAME
    fm-rank -q --device ref --model "$1" "${tokens[@]}" -o "$2.rank" >/dev/null
    fm-train -q --device ref --model "$1" "${tokens[@]}" --method saliency --budget-step 0.2 --until 0.4 \
        -o "$2.train" "$2.rank" >/dev/null
    fm-pack -q --model "$1" -o "$2.fm" "$2.train" >/dev/null
}
numbers() {
    sed 's/[0-9.]* [kM]B/SIZE/; s/loss.*differ by [-e.0-9]*/differ by D/; s/[0-9]* items, .*B:/items:/
        s/budget 0[.0-9]*/budget B/'
}
names() {
    python3 - "$@" <<'PYTHON'
import sys
from tensors import read
have, want = (read(path).keys() for path in sys.argv[1:])
print(len(have), "names,", "those of the original" if have == want else sorted(have ^ want)[:4])
PYTHON
}
echo "== the same scores in both forms"
pack "$text" text
pack hub hub
for x in text hub; do tar -xOf $x.rank ranking.safetensors | xxhsum -H2 -; done | uniq | wc -l
fm-pack --list hub.fm | grep -E '^(extra|checkpoint)'
for x in "$text" hub; do fm-rank -q --dry-run --model "$x" "${tokens[@]}" -o refused | grep longest; done
fm-rank -q --model hub --tokens "$text/tokens.npy" --seq-len 25 -o refused
echo "status $?"
echo "== as a whole"
for layout in padded uniform; do
    fm-pack -q --export refused --budget 0.4 --layout $layout hub.fm
    echo "status $?"
    fm-pack -q --export $layout --budget 0.4 --layout $layout --keep-extra hub.fm >/dev/null
    fm-verify -q --function "${tokens[@]}" --against hub.fm $layout | numbers
    names $layout hub
    grep -E '"model_type"|MiniMax|fm_wrapper' $layout/config.json
done
pack padded again
echo "== text only"
for layout in ragged elastic layer native; do
    for x in hub text; do
        fm-pack -q --export $x.out --budget 0.4 --layout $layout $x.fm >/dev/null
        fm-verify -q --function "${tokens[@]}" --against $x.fm $x.out | numbers
        rm -r $x.out
    done
done
fm-pack -q --export text.out --budget 0.4 --layout uniform text.fm >/dev/null
names text.out "$text"
fm-pack -q --export refused --budget 0.4 --layout uniform --weights fp8 text.fm
echo "status $?"
echo "== MXFP8 as MiniMax writes it: a power of two for every 32 elements of a row"
recode=$(dirname "$0")/recode.py
python3 "$recode" quantise hub mxfp8 mxfp8
python3 "$recode" plain mxfp8 wide
for x in mxfp8 wide; do
    fm-rank -q --device ref --model $x "${tokens[@]}" -f -o ranked >/dev/null
    tar -xOf ranked ranking.safetensors | xxhsum -H2 -
done | uniq | wc -l
pack mxfp8 codes
fm-pack --list codes.fm | grep -E '^(stored|checkpoint)'
fm-verify -q --function --model mxfp8 "${tokens[@]}" codes.fm | numbers
for layout in ragged native uniform; do
    fm-pack -q --export out --budget 0.4 --layout $layout --keep-extra codes.fm >/dev/null 2>&1 ||
        fm-pack -q --export out --budget 0.4 --layout $layout codes.fm >/dev/null
    fm-verify -q --function "${tokens[@]}" --against codes.fm out | numbers
    rm -r out
done
spoiled() { # spoiled KEY VALUE: print the error
    rm -rf bad
    cp -r mxfp8 bad
    sed -i "s/\"quant_method\": \"mxfp8\"/\"quant_method\": \"mxfp8\", \"$1\": $2/; /^ *\"$1\"/d" bad/config.json
    fm-rank -q --model bad "${tokens[@]}" -o refused
    echo "status $?"
}
spoiled moe_quant_algo '"NVFP4"'
spoiled activation_scheme '"static"'
spoiled scale_fmt '"float"'
spoiled fmt '"e5m2"'
sed 's/^ *32$/16/' mxfp8/config.json >bad/config.json
fm-rank -q --model bad "${tokens[@]}" -o refused
echo "status $?"
