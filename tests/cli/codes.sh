# A quantised checkpoint's codes and scales are kept in the bundle and in its uniform and padded exports.
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
python3 "$here/recode.py" gptoss "$GOLDEN/odd-gptoss" mxfp4
for name in odd-qwen3 odd-dsv3 odd-glm5; do
    python3 "$here/recode.py" resize "$GOLDEN/$name" wide 24
    python3 "$here/recode.py" quantise wide fp8-$name fp8:8x4
    [ $name != odd-dsv3 ] || python3 "$here/recode.py" quantise wide int4-$name w4a16:8
    rm -r wide
done
# ModelOpt's MIXED_PRECISION with shared experts, which become wider in a uniform export
python3 "$here/recode.py" resize "$GOLDEN/odd-dsv3" wide 64
python3 "$here/recode.py" quantise wide united-odd-dsv3 mixed-modelopt
rm -r wide
for model in fp8-channel fp8-block w4a16 nvfp4 nvfp4-modelopt mxfp4 mxfp8 mixed modelopt-mixed; do
    echo "== $model"
    from=$GOLDEN/packed/$model
    python3 "$here/recode.py" plain "$from" twin
    family "$from" 0.15 | grep -E '^(stored|plain|codes)'
    group=$(fm-rank -n -m "$from" -t twin/tokens.npy 2>/dev/null | sed -n 's/^codes.*groups of \([0-9]*\).*/\1/p')
    fm-rank -q -m twin -t twin/tokens.npy --precision f32 --channel-group "$group" -f -o twin.fm >/dev/null
    cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) &&
        echo "scores of the float32 twin"
    fm-pack -q --export uniform --budget 0.5 --layout uniform -f family.fm >/dev/null
    python3 "$here/compare.py" export "$from" family.fm uniform
    verify --function -m "$from" -t twin/tokens.npy family.fm | tail -n 1
    verify --function -t twin/tokens.npy --against family.fm uniform | tail -n 1
    fm-pack -q --export out --budget 0.5 --layout padded -f family.fm >/dev/null
    verify --function -t twin/tokens.npy --against family.fm out | tail -n 1
    python3 "$here/compare.py" blank "$from" family.fm out | tail -n 1
    for layout in ragged uniform; do
        fm-pack -q --export out --budget 0.5 --layout $layout --weights bf16 -f family.fm >/dev/null
        verify --function -t twin/tokens.npy --against family.fm out | tail -n 1
        # The masks were measured with the values of the codes, which BF16 may round.
        grep -o '^| held-out cross-entropy.*BF16' out/README.md
    done
    fm-pack -q -m twin -o none.fm trained 2>&1 | sed 's/has digest.*it has [0-9a-f]*;/...;/'
    rm -r twin
done
for model in mxfp4 fp8-odd-qwen3 fp8-odd-glm5 int4-odd-dsv3 united-odd-dsv3 fp8-odd-dsv3; do
    echo "== $model"
    fm-rank -n -m $model -t $model/tokens.npy 2>/dev/null | grep -E '^(stored|plain|codes)'
    family $model 0.15 | grep -E '^(stored|plain|codes)'
    fm-pack -q --export uniform --budget 0.5 --layout uniform -f family.fm | grep -v '^all'
    python3 "$here/compare.py" export $model family.fm uniform
    verify --function -m $model -t $model/tokens.npy family.fm | sed 's/loss.*//'
    verify --function -t $model/tokens.npy --against family.fm uniform | sed 's/loss.*//'
    fm-pack -q -m $model -T 3 trained 2>/dev/null | cmp - family.fm && echo "pipe: same bytes"
    fm-pack -q --export out --budget 0.5 --layout padded -f family.fm >/dev/null
    verify --function -t $model/tokens.npy --against family.fm out | tail -n 1
    for layout in native ragged elastic layer padded uniform; do
        fm-pack -q --export out --budget 0.5 --layout $layout --weights bf16 -f family.fm >/dev/null
        verify --function -t $model/tokens.npy --against family.fm out | tail -n 1
        grep -lE 'quantization_config|hf_quant' out/*.json
    done
    fm-pack --list --json family.fm | grep -oE '"(storage|bytes_(stored|plain))":[^,]*'
    fm-pack --list --json family.fm | tr -d ' \n' | grep -oE '"[a-z-]*":\{[^{}]*"codes":true' |
        sed 's/{.*"as_m/{"as_m/' | sort -u
done
echo "== the values of a bundle of bfloat16 are those of its codes, rounded"
fm-pack -q -m fp8-odd-dsv3 -f --weights bf16 -o plain.fm trained | grep codes
fm-pack -q --export plain --budget 0.5 --layout ragged -f plain.fm >/dev/null
fm-pack -q --export out --budget 0.5 --layout ragged --weights bf16 -f family.fm >/dev/null
for file in out/*.safetensors; do
    cmp "$file" "plain/$(basename "$file")" && echo same
done
echo "== sizes compared with the checkpoint's"
for budget in 0.15 0.45; do
    for layout in ragged layer padded; do
        fm-pack -q --export out --budget $budget --layout $layout -f plain.fm | grep -E '^(export|removes|larger)'
        sed -n "/of the original's/p" out/README.md
    done
done
fm-pack --list plain.fm | grep -E '^smaller' | tr ',' '\n'
echo "== widths for two devices"
fm-pack -q --export out --budget 0.7 --layout uniform --tp 2 -f family.fm | grep width
fm-pack -q --export out --budget 0.7 --layout uniform --tp 4 -f family.fm
echo "status $?"
echo "== not kept"
fm-rank -q -m mxfp4 -t mxfp4/tokens.npy --channel-group 1 -f -o single >/dev/null
fm-rank -n -m mxfp4 -t mxfp4/tokens.npy --channel-group 16 2>/dev/null | grep codes
fm-train -q -m mxfp4 -t mxfp4/tokens.npy --method saliency --budget-step 0.3 -f -o masks single \
    >/dev/null 2>&1
fm-pack -q -m mxfp4 -f -o other.fm masks | grep codes
said fm-pack -q -m mxfp4 -f -o none.fm --weights keep masks
said fm-pack -q --export none --budget 0.5 --layout layer --for vllm --weights keep family.fm
said fm-pack -q --export none --budget 0.5 --layout uniform --weights keep plain.fm
fm-recover -q -m fp8-odd-dsv3 -t fp8-odd-dsv3/tokens.npy --budget 0.3 --steps 1 --batch 2 -f -o adapted \
    trained >/dev/null 2>&1
said fm-pack -q -m fp8-odd-dsv3 -o none.fm adapted
fm-pack -q -m fp8-odd-dsv3 --weights bf16 -f -o merged.fm adapted | grep -oE '^codes.*|adapter merged'
echo "== experts of a layer that are not all stored in one way"
for other in 'mxfp4 .*experts.*down_proj' 'plain .*layers\.1\..*experts\.2\.'; do
    read -r name expression <<<"$other"
    if [ "$name" = plain ]; then
        python3 "$here/recode.py" ease "$GOLDEN/packed/nvfp4" "$expression" joined
    else
        python3 "$here/recode.py" join "$GOLDEN/packed/nvfp4" "$GOLDEN/packed/$name" "$expression" joined
    fi
    python3 "$here/recode.py" plain joined twin
    fm-rank -n -m joined -t twin/tokens.npy 2>/dev/null | grep -E '^(stored|codes)'
    family joined 0.15 | grep codes
    mv family.fm joined.fm
    fm-rank -q -m twin -t twin/tokens.npy --precision f32 -f -o twin.fm >/dev/null
    cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) &&
        echo "scores of the float32 twin"
    fm-pack -q -m joined --weights keep -f -o none.fm trained
    fm-pack -q --export out --budget 0.5 --layout uniform -f joined.fm | grep -E '^(export|codes)'
    verify --function -m joined -t twin/tokens.npy joined.fm | tail -n 1
    verify --function -t twin/tokens.npy --against joined.fm out | tail -n 1
    fm-pack --list joined.fm | grep 'stored as'
    rm -r joined joined.fm twin
done
echo "== one scale for a whole matrix: in experts, and in attention only"
python3 "$here/recode.py" quantise "$GOLDEN/odd-qwen3" whole fp8-modelopt
python3 "$here/recode.py" join "$GOLDEN/packed/mxfp4" "$GOLDEN/packed/fp8-static" '.*self_attn\.[qkvo]_proj' joined
for model in "$GOLDEN/packed/fp8-static" whole joined; do
    echo "-- ${model##*/}"
    python3 "$here/recode.py" plain "$model" twin
    group=1
    [ "$model" != joined ] || group=32
    fm-rank -n -m "$model" -t twin/tokens.npy 2>/dev/null | grep -E '^(stored|codes)'
    family "$model" 0.15 | grep codes
    fm-rank -q -m twin -t twin/tokens.npy --precision f32 --channel-group $group -f -o twin.fm >/dev/null
    cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) &&
        echo "scores of the float32 twin"
    verify --function -m "$model" -t twin/tokens.npy family.fm | tail -n 1
    fm-pack -q --export uniform --budget 0.5 --layout uniform -f family.fm | grep -E '^(export|codes)'
    verify --function -t twin/tokens.npy --against family.fm uniform | tail -n 1
    python3 "$here/compare.py" export "$model" family.fm uniform
    rm -r twin
done
rm -r whole joined
echo "== a scheme that one expert uses, and one that no expert uses"
python3 "$here/recode.py" join "$GOLDEN/packed/nvfp4" "$GOLDEN/packed/fp8-channel" '.*experts\.3\.' joined
fm-rank -n -m joined -t joined/tokens.npy 2>/dev/null | grep codes
rm -r joined
python3 "$here/recode.py" ease "$GOLDEN/packed/mixed" '.*experts.*_proj' joined
fm-rank -n -m joined -t joined/tokens.npy 2>/dev/null | grep codes
family joined 0.15 | grep codes
rm -r joined
echo "== against the checkpoint"
family "$GOLDEN/packed/w4a16" 0.15 >/dev/null
fm-pack -q --export out --budget 0.5 --layout uniform -f family.fm >/dev/null
verify -m "$GOLDEN/packed/w4a16" family.fm
verify -m "$GOLDEN/packed/w4a16" --against family.fm out | tail -n 1
python3 "$here/forge.py" family.fm liar.fm 'b.poke("weights/layers-00001.safetensors", "layers.1.gate_up", 2, 4, 2)
b.poke("weights/rest.safetensors", "model.layers.0.self_attn.q_proj.weight_scale")'
verify liar.fm
verify -m "$GOLDEN/packed/w4a16" liar.fm
echo "status $?"
python3 "$here/forge.py" family.fm liar.fm 'groups = b.config["quantization_config"]["config_groups"]
groups["group_1"] = json.loads(json.dumps(groups["group_0"]))
groups["group_1"]["weights"]["group_size"] = 16
groups["group_1"]["targets"] = ["re:.*experts.3.*"]'
said fm-pack -q --export none --budget 0 --layout ragged liar.fm
said fm-verify -q liar.fm
fm-verify -q -m "$GOLDEN/packed/nvfp4" family.fm >/dev/null 2>&1
echo "status $?"
family mxfp4 0.15 >/dev/null
NVFP4=$GOLDEN/packed/nvfp4/config.json python3 "$here/forge.py" family.fm liar.fm 'import os
b.config["quantization_config"] = json.load(open(os.environ["NVFP4"]))["quantization_config"]
b.manifest["model"].update(storage="nvfp4", scales="F8_E4M3")'
said fm-pack -q --export none --budget 0 --layout uniform --weights bf16 liar.fm
said fm-verify -q liar.fm
family fp8-odd-dsv3 0.15 >/dev/null
fm-pack -q --export uniform --budget 0.5 --layout uniform -f family.fm >/dev/null
echo "== ModelOpt's own file says how weights are stored, and config.json does not"
cp -r "$GOLDEN/packed/nvfp4-modelopt" own
quant() { # quant TEXT: write hf_quant_config.json, and remove quantization_config from config.json
    python3 -c 'import json
config = json.load(open("own/config.json"))
config.pop("quantization_config", None)
json.dump(config, open("own/config.json", "w"))'
    echo "$1" >own/hf_quant_config.json
}
quant '{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16,
 "kv_cache_quant_algo": null, "exclude_modules": ["lm_head", "*mlp.gate", "*self_attn*"]}}'
family "$GOLDEN/packed/nvfp4-modelopt" 0.15 >/dev/null
mv ranked said.fm
family own 0.15 | grep codes
cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf said.fm ranking.safetensors) && echo "same ranking"
fm-pack -q --export out --budget 0.5 --layout uniform -f family.fm >/dev/null
grep -oE '"quant_method.*|"ignore.*' out/config.json
verify -m own --against family.fm out | tail -n 1
for text in '{"quantization": {"quant_algo": "NVFP4", "exclude_modules": [], "ignore": []}}' \
    '{"quantization": {"quant_algo": "FP8"}}' '{"quantization": 3}' '{' '[]'; do
    quant "$text"
    said fm-rank -q -m own -t own/tokens.npy -f -o none.fm
done
cp -r "$GOLDEN/odd-qwen3" cached
echo '{"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}}' >cached/hf_quant_config.json
said fm-rank -q -m cached -t cached/tokens.npy -f -o none.fm
family fp8-odd-dsv3 0.15 >/dev/null
fm-pack -q --export uniform --budget 0.5 --layout uniform -f family.fm >/dev/null
echo "== damage"
python3 - <<'PYTHON'
import tarfile
from pathlib import Path
data = bytearray(Path("family.fm").read_bytes())
with tarfile.open("family.fm") as tar:
    layer = tar.getmember("weights/layers-00001.safetensors")
data[layer.offset_data + layer.size // 2] ^= 1
Path("damaged.fm").write_bytes(data)
PYTHON
said fm-verify -q damaged.fm
said fm-pack -q --export none --budget 0 --layout uniform damaged.fm
said fm-pack -q --export none --budget 0 --layout ragged damaged.fm
python3 - <<'PYTHON'
from pathlib import Path
file = sorted(Path("uniform").glob("*.safetensors"))[0]
data = bytearray(file.read_bytes())
data[-1] ^= 1
file.write_bytes(data)
PYTHON
said fm-verify -q --against family.fm uniform
ls
