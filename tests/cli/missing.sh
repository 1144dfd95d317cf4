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
import glob, json, os, shutil, struct, sys
os.mkdir("separate")
shutil.copy(sys.argv[1] + "/config.json", "separate")
header, data = {}, b""
for path in glob.glob(sys.argv[1] + "/model*.safetensors"):
    with open(path, "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        tensors, body = json.loads(f.read(size)), f.read()
    tensors.pop("__metadata__", None)
    for name, t in tensors.items():
        x, part = body[slice(*t["data_offsets"])], [(name, t["shape"])]
        if "_linear" in name:
            experts, rows, columns = t["shape"]
            names = ("gate_proj", "up_proj") if "input" in name else ("down_proj",)
            base = name.partition(".input" if "input" in name else ".output")[0]
            part = [(f"{base}.experts.{e}.{n}.weight", [rows // len(names), columns]) for e in range(experts) for n in names]
        for n, shape in part:
            header[n] = {"dtype": t["dtype"], "shape": shape, "data_offsets": [len(data), len(data) + len(x) // len(part)]}
            data += x[: len(x) // len(part)] # only the names matter
text = json.dumps(header).encode()
open("separate/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON
try fm-rank --model separate --tokens "$GOLDEN/odd-granite/tokens.npy" -o out
