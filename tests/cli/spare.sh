# An unused tensor of published checkpoints: A.X-K1's norm after the experts in a layer without experts.  It is
# carried if it exists, and not required.
model=$GOLDEN/odd-axk1
cat >drop.py <<'END'
import json, struct, sys
from pathlib import Path
data = (Path(sys.argv[1]) / "model.safetensors").read_bytes()
(n,) = struct.unpack("<Q", data[:8])
head, out, at = json.loads(data[8 : 8 + n]), b"", 0
for name, t in list(head.items()):
    if name == "model.layers.0.post_mlp_layernorm.weight":
        del head[name]
    elif name != "__metadata__":
        first, end = t["data_offsets"]
        out += data[8 + n + first : 8 + n + end]
        t["data_offsets"] = [at, at + end - first]
        at += end - first
text = json.dumps(head).encode()
(Path(sys.argv[2]) / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + out)
END
mkdir without
cp "$model"/*.json "$model/tokens.npy" without
python3 drop.py "$model" without
for from in "$model" without; do
    echo "== ${from##*/}"
    fm-rank -q --model "$from" --tokens "$from/tokens.npy" -f -o ranked >/dev/null 2>&1
    tar -xOf ranked ranking.safetensors | xxhsum -H2 - | sed 's/ .*//' >>scores
    fm-train -q --model "$from" --tokens "$from/tokens.npy" --method saliency --budget-step 0.2 \
        -f -o trained ranked >/dev/null 2>&1
    fm-pack -q --model "$from" -f -o family.fm trained >/dev/null
    tar -xOf family.fm manifest.json | grep -A1 '"unread"' | tr -d ' \n'
    echo
    fm-verify -q --model "$from" family.fm | sed 's/items, .*B:/items:/'
    for layout in padded ragged; do
        fm-pack -q --export out --layout $layout --budget 0.4 --force family.fm >/dev/null
        echo "$layout: $(grep -ao 'layers\.0\.[a-z_.]*post_mlp_layernorm' out/model.safetensors)"
    done
done
uniq scores | wc -l | sed 's/^1$/the same scores/'
