# GPTQ and AWQ.  GPTQ with symmetric zero points and without desc_act, which reorders columns, is compressed-tensors' W4A16,
# transposed: the bundle has the same weights, and exports have the format of compressed-tensors.
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
from=$GOLDEN/packed/w4a16
same() { # same MEMBER
    cmp <(tar -xOf w4a16.fm "$1") <(tar -xOf gptq.fm "$1") && echo "$1: the same"
}
family "$from" 0.15 | grep -E '^(stored|plain|codes)'
mv family.fm w4a16.fm
fm-pack -q --export uniform --budget 0.5 --layout uniform -f w4a16.fm >/dev/null
for format in v1 v2; do
    echo "== $format"
    python3 "$here/recode.py" gptq "$from" gptq $format
    echo '{"bits": 4, "group_size": 32, "desc_act": false}' >gptq/quantize_config.json
    family gptq 0.15 | grep -E '^(stored|plain|codes)'
    mv family.fm gptq.fm
    tar -tf gptq.fm | grep quantize
    same ranking.safetensors
    for member in layers-00000 layers-00001 rest; do
        same weights/$member.safetensors
    done
    python3 "$here/recode.py" plain gptq twin
    fm-rank -q -m twin -t twin/tokens.npy --precision f32 --channel-group 32 -f -o twin.fm >/dev/null
    cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) &&
        echo "scores of the float32 twin"
    fm-pack -q -m gptq -T 3 trained | cmp - gptq.fm && echo "pipe: same bytes"
    fm-pack -q --export out --budget 0.5 --layout uniform -f gptq.fm | grep -E '^(export|codes)'
    cmp out/*.safetensors uniform/*.safetensors && echo "export: the same"
    (cd out && echo ./[!m]*)
    fm-verify -q -m gptq --against gptq.fm out | sed 's/ items, .*B:/ items:/' | tail -n 1
    fm-verify -q --function -m gptq -t "$from/tokens.npy" gptq.fm | sed 's/ items, .*B:/ items:/' | tail -n 1
    rm -r gptq twin
done
echo "== values"
python3 "$here/recode.py" gptq "$from" gptq
for model in "$from" gptq; do
    fm-rank -q -m "$model" -t "$from/tokens.npy" --channel-group 1 -f -o ranked >/dev/null
    fm-train -q -m "$model" -t "$from/tokens.npy" --method saliency --budget-step 0.3 -f -o trained ranked \
        >/dev/null 2>&1
    fm-pack -q -m "$model" -f -o "${model##*/}.fm" trained | grep -E '^codes'
    fm-pack -n --json -T 1 -m "$model" -f -o "${model##*/}.fm" trained | sed -n 's/.*"bytes_memory": \(.*\),/\1/p' >>memory
done
echo "memory: $(($(tail -n 1 memory) - $(head -n 1 memory))) bytes more, for a matrix that is transposed"
for member in layers-00000 layers-00001 rest; do
    same weights/$member.safetensors
done
fm-verify -q -m gptq gptq.fm | sed 's/ items, .*B:/ items:/'
for layout in uniform ragged; do
    fm-pack -q --export values --budget 0.3 --layout $layout -f gptq.fm >/dev/null
    fm-verify -q --function -t "$from/tokens.npy" --against gptq.fm values | sed 's/ items, .*B:/ items:/' | tail -n 1
done
python3 - <<'PYTHON'
import json
print(json.load(open("out/config.json"))["quantization_config"]["ignore"])
PYTHON
echo "== awq: zero points, and codes packed along rows; only read"
python3 "$here/recode.py" awq "$from" awq
python3 "$here/recode.py" plain awq twin
fm-rank -q -m twin -t "$from/tokens.npy" --precision f32 -f -o twin.fm >/dev/null
family awq 0.15 | grep -E '^(stored|plain|codes)'
mv family.fm awq.fm
cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) &&
    echo "scores of the float32 twin"
fm-pack -q -m awq -T 3 trained | cmp - awq.fm && echo "pipe: same bytes"
fm-verify -q --function -m awq -t "$from/tokens.npy" awq.fm | sed 's/ items, .*B:/ items:/' | tail -n 1
python3 "$here/recode.py" plain awq rounded BF16
python3 "$here/compare.py" values rounded awq.fm
fm-pack -q -m awq -f --weights keep -o none.fm trained 2>&1 | sed 's/^/  /'
echo "-- the wrong type of scales, scales whose largest value is infinite, and a description inside text_config"
python3 - <<'PYTHON'
import json, struct
from pathlib import Path
from tensors import pack, unpack

config = json.loads(Path("awq/config.json").read_text())
model = {n: t for f in sorted(Path("awq").glob("*.safetensors")) for n, t in unpack(f.read_bytes()).items()}
name = next(n for n in model if n.endswith("experts.0.gate_proj.scales") or n.endswith("experts.0.w1.scales"))
shape = model[name][1]
count = shape[0] * shape[1]
made = {
    "narrow": {name: ("F8_E4M3", shape, bytes(count))},
    "huge": {name: ("F32", shape, count * struct.pack("<f", 4e37))},
    "inside": {},
}
for to, change in made.items():
    Path(to).mkdir()
    tensors, said = model | change, config
    if to == "inside":
        tensors = {"language_model." + n: t for n, t in tensors.items()}
        said = {"model_type": "any_wrapper", "architectures": ["AnyWrapper"], "text_config": config}
    Path(to, "model.safetensors").write_bytes(pack(tensors))
    Path(to, "config.json").write_text(json.dumps(said))
PYTHON
for model in narrow huge; do
    fm-rank -q -m $model -t "$from/tokens.npy" -f -o none.fm 2>&1 | sed 's/^/  /'
done
fm-rank -q -m inside -t "$from/tokens.npy" --precision f32 -f -o inside.fm >/dev/null 2>&1
cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf inside.fm ranking.safetensors) && echo "inside: the same scores"
