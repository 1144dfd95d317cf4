# Missing inputs, and a missing directory for the output: the messages and statuses; nothing is written.
odd=$GOLDEN/odd-mixtral
try() {
    echo "\$ $*" | sed "s|$GOLDEN|GOLDEN|g"
    "$@" 2>&1 | sed "s|$GOLDEN|GOLDEN|g"
    echo "status ${PIPESTATUS[0]}"
}
try fm-rank --model nowhere --tokens "$odd/tokens.npy" -o out
try fm-rank --model "$odd" --tokens nowhere.npy -o out
try fm-train --model "$odd" --tokens "$odd/tokens.npy" -o out nowhere
try fm-recover --model "$odd" --tokens "$odd/tokens.npy" -o out nowhere
try fm-pack --model "$odd" -o out nowhere
try fm-pack --list nowhere
try fm-pack --export out --budget 0 nowhere
try fm-verify nowhere
try fm-verify nowhere --against "$odd/tokens.npy"
try fm-verify --dry-run nowhere --against "$odd/tokens.npy"
try fm-verify "$odd/tokens.npy" --against nowhere
try fm-rank --model "$odd" --tokens "$odd/tokens.npy" -o no/such/directory/out
ls -A
echo "a text" >text
try fm-rank --model "$odd" --text text -o out # which has no tokenizer.json
python3 - "$GOLDEN/odd-granite" <<'PYTHON'
import sys
from tensors import read, write
separate = {}
for name, (dtype, shape, data) in read(sys.argv[1]).items():
    part = [(name, shape)]
    if "_linear" in name:
        experts, rows, columns = shape
        names = ("gate_proj", "up_proj") if "input" in name else ("down_proj",)
        base = name.partition(".input" if "input" in name else ".output")[0]
        part = [(f"{base}.experts.{e}.{n}.weight", [rows // len(names), columns]) for e in range(experts) for n in names]
    size = len(data) // len(part)
    for i, (n, shape) in enumerate(part):
        separate[n] = dtype, shape, data[i * size : (i + 1) * size]
write(sys.argv[1], "separate", separate)
PYTHON
for model in separate "$GOLDEN/odd-granite"; do # both are read
    fm-rank -q --precision f32 --model "$model" --tokens "$GOLDEN/odd-granite/tokens.npy" -o "ranked-${model##*/}" >/dev/null
done
cmp <(tar -xOf ranked-separate ranking.safetensors) <(tar -xOf ranked-odd-granite ranking.safetensors) && echo "the same scores"
for model in separate "$GOLDEN/odd-granite"; do # and exported as transformers saves them
    fm-train -q --precision f32 --model "$model" --tokens "$GOLDEN/odd-granite/tokens.npy" --method saliency \
        --budget-step 0.2 --until 0.4 -f -o trained "ranked-${model##*/}" >/dev/null 2>&1
    fm-pack -q --model "$model" -f -o family.fm trained >/dev/null
    fm-pack -q --export "out-${model##*/}" --layout uniform --budget 0.4 family.fm >/dev/null
done
cmp out-separate/model.safetensors out-odd-granite/model.safetensors && echo "the same export"
mkdir apart
cp "$GOLDEN"/odd-gptoss/* apart
sed -i 's/experts\.gate_up_proj"/experts.0.gate_up_pr"/g' apart/model*
try fm-rank --model apart --tokens apart/tokens.npy -o out
