#!/usr/bin/env bash
# In layout ragged, exports of further budgets add at most 5 % of their bytes to a store that keeps each
# content-defined chunk once (tests/measure/chunks.c); so does the first export if the store has the bundle.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
[ -z "${SAN:-}" ] || { echo "sanitizers do not change the bytes" && exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
PATH=$root/${BUILD:-build}/bin:$PATH
python3 -B - "$work" <<'PYTHON' || exit 1
import math, random, sys
sys.path.insert(0, "tests/measure")
import fullsize

def write(_weights, out, name, _dtype, shape):
    """Other values in each part of each tensor, so that no two parts are stored once."""
    data = bytearray(random.randbytes(2 * math.prod(shape)))
    data[1::2] = data[1::2].translate(HIGH)
    out.write(b"\x80\x3f" * shape[0] if name.endswith("norm.weight") else data)

HIGH = bytes(0x3C if i & 1 else 0xBC for i in range(256))  # of bfloat16: about 1 / 64, of both signs
random.seed(33)
fullsize.Weights.write = write
config = {**fullsize.SHAPES["mixtral"], "vocab_size": 256, "hidden_size": 2048, "intermediate_size": 768,
          "num_hidden_layers": 1, "num_local_experts": 6, "num_attention_heads": 8, "num_key_value_heads": 2,
          "head_dim": 64}
fullsize.make(sys.argv[1] + "/model", config, False)
fullsize.make_tokens(sys.argv[1] + "/tokens.npy", 512, 256)
PYTHON
python3 -B tests/pages.py take fm-guide.7 unit/test_dedup >"$work/command.sh" || exit 1
cd "$work" && ln -s "$root/tests" tests || exit 1
fm-rank -q --model model --tokens tokens.npy --seq-len 64 -o ranked >/dev/null 2>&1 &&
    fm-train -q --model model --tokens tokens.npy --seq-len 64 --method saliency --budget-step 0.1 \
        --until 0.5 --measure-step 1 -o trained ranked >/dev/null 2>&1 &&
    fm-pack -q --model model -o family.fm trained >/dev/null || exit 1
mkdir ragged
for percent in 00 10 20 30 40 50; do
    fm-pack -q --export ragged/$percent --layout ragged --budget 0.$percent family.fm \
        >/dev/null 2>&1 || exit 1
done

# The command of fm-guide(7), with the bundle and two exports; then all six exports.
bash -e command.sh >beside && ./chunks ragged/*/model.safetensors >six || exit 1
cat beside six
# All files except the first of each store, which shares no chunks with an earlier one.
awk 'FNR > 1 && !/ all$/ { n++; bad += $2 > 0.05 * $1 } END { exit n != 7 || bad }' beside six ||
    { echo "an export adds more than 5 %" && exit 1; }
