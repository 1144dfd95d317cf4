# An unused tensor of published checkpoints: A.X-K1's norm after the experts in a layer without experts.  It is
# carried if it exists, and not required.
model=$GOLDEN/odd-axk1
cat >drop.py <<'END'
import sys
from tensors import read, write
tensors = read(sys.argv[1])
del tensors["model.layers.0.post_mlp_layernorm.weight"]
write(sys.argv[1], sys.argv[2], tensors)
END
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
