# kimi_k2 is deepseek_v3 with another model_type: outputs record which it was; the modelling file
# has one class for both.
model=$GOLDEN/odd-moonlight
mkdir model
cp "$model"/* model
sed -i 's/"deepseek_v3"/"kimi_k2"/' model/config.json
fm-rank -q --model model --tokens "$model/tokens.npy" -o ranked >/dev/null 2>&1
fm-train -q --model model --tokens "$model/tokens.npy" --method saliency --budget-step 0.1 \
    -o trained ranked >/dev/null 2>&1
fm-pack -q --model model -o family.fm trained >/dev/null
fm-pack --list --json family.fm | grep '"family"'
tar -xOf family.fm manifest.json | grep -E '"(schema|family)"'
for layout in ragged padded; do
    fm-pack -q --export $layout --budget 0.4 --layout $layout family.fm >/dev/null
    grep -A1 -E '"(architectures|model_type)"' $layout/config.json
    fm-verify -q --function --tokens "$model/tokens.npy" --against family.fm $layout |
        sed 's/^function:.*/function: the same/; s/budget 0[.0-9]*/budget B/; s/, [0-9.]* kB:/, N kB:/'
done
echo "== a stage of one is refused for the other"
cp -r "$model" stock
fm-pack -q --model stock -o other.fm trained
echo "status $?"
echo "== another architecture under that name is refused"
sed -i 's/DeepseekV3ForCausalLM/KimiForCausalLM/' model/config.json
fm-rank -q --model model --tokens "$model/tokens.npy" -o refused
echo "status $?"
echo "== Kimi-K2.5 to K2.7 wrap it: INT4 in groups of 32, described inside text_config as published"
here=$(dirname "$0")
export PYTHONDONTWRITEBYTECODE=1
python3 "$here/recode.py" grow "$GOLDEN/odd-dsv3" grown 64
python3 "$here/recode.py" resize grown wide 64
python3 "$here/recode.py" quantise wide all w4a16:32
python3 "$here/recode.py" ease all '.*shared_experts' int4
PYTHONPATH=$here python3 - <<'PYTHON'
from tensors import read, write

IGNORED = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
           "re:vision_tower.*", "re:mm_projector.*"]
WEIGHTS = {"actorder": None, "block_structure": None, "dynamic": False, "group_size": 32, "num_bits": 4,
           "observer": "minmax", "observer_kwargs": {}, "strategy": "group", "symmetric": True, "type": "int"}
QUANT = {"config_groups": {"group_0": {"input_activations": None, "output_activations": None, "targets": ["Linear"],
                                       "weights": WEIGHTS}},
         "format": "pack-quantized", "global_compression_ratio": None, "ignore": IGNORED, "kv_cache_scheme": None,
         "quant_method": "compressed-tensors", "quantization_status": "compressed"}

def wrap(config):
    text = config | {"model_type": "kimi_k2", "tie_word_embeddings": False, "quantization_config": QUANT}
    config.clear()
    config.update(architectures=["KimiK25ForConditionalGeneration"], model_type="kimi_k25", tie_word_embeddings=True)
    config["text_config"] = text

other = {"vision_tower.a.weight": ("BF16", [3], bytes(6)), "mm_projector.b.weight": ("BF16", [3], bytes(6))}
write("int4", "whole", {"language_model." + n: t for n, t in read("int4").items()} | other, wrap)
write("int4", "llm", {n.replace("model.", "model.llm.", 1): t for n, t in read("int4").items()} | other, wrap)
PYTHON
tokens=int4/tokens.npy
for of in int4 whole llm; do
    fm-rank -q -m $of -t $tokens --precision f32 -o ranked-$of >/dev/null
done
for of in whole llm; do
    cmp <(tar -xOf ranked-int4 ranking.safetensors) <(tar -xOf ranked-$of ranking.safetensors) && echo "$of: the same scores"
done
fm-train -q -m whole -t $tokens --precision f32 --method saliency --budget-step 0.3 -o trained-whole ranked-whole >/dev/null 2>&1
fm-pack -q -m whole -o whole.fm trained-whole | grep '^extra'
for extra in "" --keep-extra; do
    fm-pack -q --export out --layout padded --budget 0.3 -f $extra whole.fm >/dev/null
    fm-verify -q --function -t $tokens --against whole.fm out | sed -n 's/.* items, .*: ok/ok/p'
    python3 - <<'PYTHON'
import json
config = json.load(open("out/config.json"))
text = config.get("text_config", config)
print(config["model_type"], config["architectures"], text["model_type"], text["architectures"])
print(text["quantization_config"]["ignore"])
PYTHON
done
fm-rank -q -m out -t $tokens --precision f32 -o again | grep -c '^ranked'
echo "== a family is not a wrapper"
sed -i 's/"kimi_k25"/"deepseek_v3"/' whole/config.json
fm-rank -q -m whole -t $tokens -o refused
echo "status $?"
