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
    for n, shape in part:
        separate[n] = dtype, shape, data[: len(data) // len(part)] # only the names matter
write(sys.argv[1], "separate", separate)
PYTHON
try fm-rank --model separate --tokens "$GOLDEN/odd-granite/tokens.npy" -o out
