# The text part of a multimodal checkpoint: pruned like the text class, with experts fused or
# separate; bundles keep the other parts byte for byte, exports leave them out or keep them.
set -o pipefail
model=$GOLDEN/odd-q35
tokens=$model/tokens.npy

# pack MODEL TO: a family by saliency
pack() {
    fm-rank -q --precision f32 --model "$1" --tokens "$tokens" -f -o ranked |
        sed 's/\(mean loss [0-9]*\.[0-9][0-9]\)[0-9]*/\1/' && # further digits depend on the CPU
        fm-train -q --precision f32 --model "$1" --tokens "$tokens" --method saliency --budget-step 0.2 --until 0.4 \
            -f -o trained ranked >/dev/null && fm-pack -q --model "$1" -o "$2" trained >/dev/null
}

echo "== fused experts of a wrapper, separate ones of an export: the same scores"
pack "$model" family.fm
tar -xOf family.fm carried/config.json | grep -E '"model_type"|ForCausalLM'
cp ranked fused
fm-pack -q --export whole --budget 0 --layout padded family.fm >/dev/null
grep -E '"model_type"|ForCausalLM|mtp' whole/config.json
pack whole again.fm
python3 - <<'PYTHON'
import json, struct, tarfile
def scores(path):
    data = tarfile.open(path).extractfile("ranking.safetensors").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    values = []
    for name in sorted(n for n in header if "score" in n):
        (first, last), kind = header[name]["data_offsets"], {"F32": "f", "F64": "d"}[header[name]["dtype"]]
        values += [x[0] for x in struct.iter_unpack("<" + kind, data[8 + size + first:8 + size + last])]
    return [sorted(values[i:i + 21]) for i in range(0, len(values), 21)]
pairs = [(a, b) for x, y in zip(scores("fused"), scores("ranked"), strict=True) for a, b in zip(x, y)]
print(len(pairs), "scores,", "the same" if all(abs(a - b) <= 1e-4 * a for a, b in pairs) else "others")
PYTHON

echo "== other parts"
fm-pack --list family.fm | grep '^extra'
python3 - "$model" <<'PYTHON'
import glob, json, struct, sys, tarfile
def read(f):
    data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    body = data[8 + size:]
    return {n: body[slice(*t["data_offsets"])] for n, t in header.items() if n != "__metadata__"}
kept = read(tarfile.open("family.fm").extractfile("weights/extra.safetensors"))
source = {}
for path in glob.glob(sys.argv[1] + "/model*.safetensors"):
    source |= read(open(path, "rb"))
want = {n: t for n, t in source.items() if n.startswith(("model.visual.", "mtp."))}
print(len(kept), "tensors,", "as they were" if kept == want else "changed")
PYTHON
fm-pack -q --export along --budget 0.4 --layout padded --keep-extra family.fm >/dev/null
fm-verify -q --function --tokens "$tokens" --against family.fm along | sed 's/[0-9.]* [kM]B/SIZE/; s/loss.*differ by [-e.0-9]*/differ by D/'
cat along/*.safetensors whole/*.safetensors | grep -ao 'mtp\.fc\.weight' | sort | uniq -c

echo "== with all parts it is the whole again: the wrapper's config.json and names"
grep -c fm_wrapper along/config.json whole/config.json
python3 - "$model" <<'PYTHON'
import glob, json, struct, sys
def names(path):
    out = set()
    for file in glob.glob(path + "/*.safetensors"):
        with open(file, "rb") as f:
            size, = struct.unpack("<Q", f.read(8))
            out |= {n for n in json.loads(f.read(size)) if "experts." not in n and "__" not in n}
    return out
have, want = names("along"), {n for n in names(sys.argv[1]) if not n.startswith(("full.", "grad."))}
want = {n for n in want if n.startswith(("model.", "mtp.", "lm_head"))}
print(len(have), "names,", "those of the original" if have == want else sorted(have ^ want))
config, original = (json.load(open(d + "/config.json")) for d in ("along", sys.argv[1]))
texts = [c.pop("text_config") for c in (config, original)]
print("config.json:", "as it was" if config == original else "another")
print("text_config:", "as it was" if all(texts[0][k] == v for k, v in texts[1].items()) else "another")
PYTHON
pack along third.fm
fm-pack -q --export twice-along --budget 0.4 --layout padded --keep-extra third.fm >/dev/null
cmp along/config.json twice-along/config.json && echo "and so again"
rm -rf twice-along

echo "== a name that two tensors would have"
mkdir twice
cp "$model"/config.json twice
python3 - <<'PYTHON'
import json, struct
names = ["model.language_model.norm.weight", "model.norm.weight"]
header = {n: {"dtype": "BF16", "shape": [2], "data_offsets": [4 * i, 4 * i + 4]} for i, n in enumerate(names)}
text = json.dumps(header).encode()
open("twice/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + bytes(8))
PYTHON
fm-rank -q --model twice --tokens "$tokens" -o refused
