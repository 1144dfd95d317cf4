# Stages identify the checkpoint by its weights: a fine-tune has the same names, sizes and config.json.
odd=$GOLDEN/odd-mixtral
cp -rL "$odd" model && chmod -R u+w model && cp -r model tune
on() {
    echo "--model $1 --tokens $odd/tokens.npy -q"
}
attempt() {
    "$@" 2>said >/dev/null
    echo "status $?"
    grep -v warning: said
}
# retouch NAME: flip the lowest bit of the last element of a tensor
retouch() {
    python3 - "$1" <<'PYTHON'
import pathlib, sys
from tensors import span, unpack
for path in sorted(pathlib.Path("tune").glob("*.safetensors")):
    data = bytearray(path.read_bytes())
    if sys.argv[1] in unpack(data):
        data[span(data, sys.argv[1])[1] - 2] ^= 1
        path.write_bytes(data)
        print("retouched", sys.argv[1])
PYTHON
}
# shellcheck disable=SC2046 # lists of words
{
    fm-rank $(on model) -o ranked >/dev/null 2>&1
    fm-train $(on model) --method saliency --budget-step 0.2 -o trained ranked >/dev/null 2>&1
    tar xOf ranked manifest.json | python3 -c '
import json, sys
w = json.load(sys.stdin)["model"]["weights"]
print(len(w["layers"]), "layers and the rest, all different:", len({*w["layers"], w["rest"]}))'
    for tensor in model.layers.1.block_sparse_moe.experts.2.w2.weight \
        model.layers.2.self_attn.k_proj.weight model.embed_tokens.weight; do
        rm -r tune && cp -r model tune
        retouch $tensor
        attempt fm-train $(on tune) --method saliency --budget-step 0.2 -o other ranked
        attempt fm-recover $(on tune) --steps 1 -o other trained
        attempt fm-pack --model tune -q -o other.fm trained
        fm-pack --model tune -q trained 2>said | tail -c 1024 | tr -d '\0' | wc -c
        ls other other.fm 2>/dev/null
    done
    rm -r tune && cp -r model tune && echo "-- the same weights in another place"
    attempt fm-pack --model tune -q -o other.fm trained
}
