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
import struct
from tensors import members, unpack
def scores(path):
    values = []
    for name, (dtype, _, data) in sorted(unpack(members(path)["ranking.safetensors"]).items()):
        if "score" in name:
            values += [x[0] for x in struct.iter_unpack("<" + {"F32": "f", "F64": "d"}[dtype], data)]
    return [sorted(values[i:i + 21]) for i in range(0, len(values), 21)]
pairs = [(a, b) for x, y in zip(scores("fused"), scores("ranked"), strict=True) for a, b in zip(x, y)]
print(len(pairs), "scores,", "the same" if all(abs(a - b) <= 1e-4 * a for a, b in pairs) else "others")
PYTHON

echo "== other parts"
fm-pack --list family.fm | grep '^extra'
python3 - "$model" <<'PYTHON'
import sys
from tensors import members, read, unpack
kept = unpack(members("family.fm")["weights/extra.safetensors"])
want = {n: t for n, t in read(sys.argv[1]).items() if n.startswith(("model.visual.", "mtp."))}
print(len(kept), "tensors,", "as they were" if kept == want else "changed")
PYTHON
fm-pack -q --export along --budget 0.4 --layout padded --keep-extra family.fm >/dev/null
fm-verify -q --function --tokens "$tokens" --against family.fm along | sed 's/[0-9.]* [kM]B/SIZE/; s/loss.*differ by [-e.0-9]*/differ by D/'
for layout in uniform ragged; do
    fm-pack -q --export refused --budget 0.4 --layout $layout --keep-extra family.fm
done
cat along/*.safetensors whole/*.safetensors | grep -ao 'mtp\.fc\.weight' | sort | uniq -c

echo "== with all parts it is the whole again: the wrapper's config.json and names"
grep -c fm_wrapper along/config.json whole/config.json
python3 - "$model" <<'PYTHON'
import json, sys
from tensors import read
have, want = ({n for n in read(path) if "experts." not in n} for path in ("along", sys.argv[1]))
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
from pathlib import Path
from tensors import pack
names = "model.language_model.norm.weight", "model.norm.weight"
Path("twice/model.safetensors").write_bytes(pack({n: ("BF16", [2], bytes(4)) for n in names}))
PYTHON
fm-rank -q --model twice --tokens "$tokens" -o refused || echo "status $?"

# lists DIRECTORY: matrices without codes that no entry of its list names exactly or matches as an expression
# from the start of the name, and matrices with codes that one does
cat >lists.py <<'PYTHON'
import json, re, sys
from tensors import read
tensors = read(sys.argv[1])
config = json.load(open(sys.argv[1] + "/config.json"))
quant = config["quantization_config"]
assert "quantization_config" not in config.get("text_config", {})
entries = quant["modules_to_not_convert"]
def listed(name):
    return any(re.match(e[3:], name) if e.startswith("re:") else name == e for e in entries)
modules = [n[:-7] for n, t in tensors.items() if n.endswith(".weight") and len(t[1]) == 2 and "embed" not in n]
codes = {m for m in modules if m + ".weight_scale_inv" in tensors}
print(f"{len(codes)} with codes, {len(modules) - len(codes)} without;",
      f"not listed: {sum(not listed(m) for m in modules if m not in codes)}, listed: {sum(map(bool, map(listed, codes)))}")
PYTHON
echo "== the list of matrices without codes has the names of each export"
python3 - "$model" <<'PYTHON'
import random, struct, sys
from tensors import read, write
random.seed(1)
tensors = read(sys.argv[1])
code = lambda r, c: bytes(random.choice((0, 128)) + random.randrange(127) for _ in range(r * c))
for name in [n for n in tensors if n.startswith("model.") and n.endswith((".experts.gate_up_proj", ".experts.down_proj"))]:
    del tensors[name]
    for e in range(8):
        for part, r, c in [("down_proj", 48, 32)] if "down" in name else [("gate_proj", 32, 48), ("up_proj", 32, 48)]:
            base = f"{name.rsplit('.', 1)[0]}.{e}.{part}.weight"
            tensors[base] = "F8_E4M3", [r, c], code(r, c)
            tensors[base + "_scale_inv"] = "F32", [r // 16, c // 16], struct.pack("<f", 0.002) * (r * c // 256)
plain = [n[:-7] for n, t in tensors.items() if n.endswith(".weight") and len(t[1]) == 2 and n + "_scale_inv" not in tensors]
rest = [n for n in plain if "self_attn" not in n and "shared_expert." not in n]
lists = {"names": plain, "expressions": rest + [r"re:model\.language_model\.layers\.\d+\.self_attn.*", "re:.*language.*shared_expert.*"]}
for to, entries in lists.items():
    def edit(config):
        config["text_config"]["moe_intermediate_size"] = 32
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic",
                                         "weight_block_size": [16, 16], "modules_to_not_convert": entries}
    write(sys.argv[1], to, tensors, edit)
PYTHON
for way in names expressions; do
    echo '{"quantization": {"exclude_modules": ["model.language_model.layers.0.mlp.gate"]}}' >"$way/hf_quant_config.json"
    pack "$way" "$way.fm" >/dev/null
    fm-pack -q --export out --budget 0.4 --layout uniform -f "$way.fm" >/dev/null
    fm-pack -q --export kept --budget 0.4 --layout padded --keep-extra -f "$way.fm" >/dev/null
    ls out/hf_quant* kept/hf_quant* 2>/dev/null # only with the wrapper's names
    for of in "$way" out kept; do echo "$way: $(python3 lists.py "$of")"; done
    fm-verify -q --against "$way.fm" kept | sed 's/[0-9.]* [kM]B/SIZE/'
done
