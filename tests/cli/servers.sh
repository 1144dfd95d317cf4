# Commands for servers in the cards of families that need the servers' own code or the suite's package:
# attention with sinks, windows, heads that differ between layers, linear and latent attention.  Also
# SGLang's own Qwen3-MoE with tied embeddings, and Mixtral.
cp -r "$GOLDEN/odd-qwen3" tied
python3 - <<'PYTHON'
import json
from pathlib import Path
config = json.loads(Path("tied/config.json").read_text())
config["tie_word_embeddings"] = True
Path("tied/config.json").write_text(json.dumps(config))
weights = Path("tied/model.safetensors")
data = bytearray(weights.read_bytes())
first = 8 + int.from_bytes(data[:8], "little")
header = json.loads(data[8:first])
embed, head = (slice(*(first + at for at in header[name]["data_offsets"]))
               for name in ("model.embed_tokens.weight", "lm_head.weight"))
data[head] = data[embed]
weights.write_bytes(data)
PYTHON
for model in "$GOLDEN"/odd-{gptoss,exaone,laguna,mimo,q3next,mixtral,dsv2,glm5} tied; do
    name=${model##*/}
    fm-rank -q --model "$model" --tokens "$model/tokens.npy" -o ranked -f >/dev/null
    fm-train -q --model "$model" --tokens "$model/tokens.npy" --method saliency --budget-step 0.3 \
        --until 0.6 -o trained -f ranked >/dev/null
    fm-pack -q --model "$model" -o family.fm -f trained >/dev/null
    for layout in ragged elastic uniform; do
        fm-pack -q --export out --force --budget 0.3 --layout $layout family.fm >/dev/null
        echo "$name $layout: $(grep -cE '^ +vllm serve' out/README.md) vLLM," \
            "$(grep -c sglang.launch_server out/README.md) SGLang," \
            "$(grep -c PACKAGE=fm_sglang out/README.md) of it by the package," \
            "$(grep -c 'experts.budget' out/README.md) switch in servers"
        sed -n '/^Not in /,/^$/p; /^SGLang, with/,/refuses to run/p; /^GptOss: /,/^$/p' out/README.md
    done
done
