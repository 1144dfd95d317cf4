# MXFP4 as published for gpt-oss: results are exactly those of the same values in BF16, and faulty
# tensors are refused.
# shellcheck source=tests/cli/least.bash
. "$(dirname "$0")/least.bash"
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
python3 "$here/recode.py" gptoss "$GOLDEN/odd-gptoss" model
python3 "$here/recode.py" plain model plain BF16
tokens=(--tokens model/tokens.npy)
echo "== scores, masks, adapter and weights are those of the same values as BF16, without channel groups"
for x in model plain; do
    fm-rank -q --model $x "${tokens[@]}" --precision f32 --channel-group 1 -o $x.rank >/dev/null 2>&1
    fm-train -q --model $x "${tokens[@]}" --precision f32 --method saliency --budget-step 0.2 \
        -o $x.train $x.rank >/dev/null 2>&1
    fm-recover -q --model $x "${tokens[@]}" --precision f32 --budget 0.4 --steps 3 --batch 2 \
        -o $x.recover $x.train >/dev/null 2>&1
    fm-pack -q --model $x -o $x.fm $x.recover >/dev/null
    fm-pack -q --model $x -o $x.bare.fm $x.train >/dev/null
done
for stage in rank train recover fm bare.fm; do
    for member in $(tar -tf model.$stage | grep -E '^(ranking|masks|adapter|segments|weights)'); do
        cmp <(tar -xOf model.$stage "$member") <(tar -xOf plain.$stage "$member") &&
            echo "$stage $member: same"
    done
done
fm-pack --list model.fm | grep -E '^checkpoint'
echo "== the bundle computes what the checkpoint does, and so does every export"
fm-verify -q --function --model model "${tokens[@]}" model.fm | numbers
for layout in native ragged elastic layer padded uniform; do
    fm-pack -q --export out --budget 0.4 --layout $layout --force model.fm >/dev/null
    fm-verify -q --function "${tokens[@]}" --against model.fm out | numbers
done
grep -cE '"quantization_config"' out/config.json
echo "== a thread adds at most the memory of the largest tensor and of two of its blocks"
python3 - model.fm <<'PYTHON'
import json, subprocess, sys
from tensors import read
def planned(threads):
    command = ["fm-pack", "--export", "none", "--layout", "uniform", "--budget", "0.4", "--dry-run", "--json", "--quiet"]
    return json.loads(subprocess.check_output([*command, "--threads", str(threads), sys.argv[1]]))["bytes_memory"]
most = max(len(data) + (2 * len(data) // shape[0] if ".experts." in name else 0)
           for name, (_, shape, data) in read("out").items())
print(planned(3) - planned(2) <= most)
PYTHON
echo "== bytes do not depend on threads, memory or the kind of output"
little fm-rank -q --model model "${tokens[@]}" --precision f32 --threads 3 \
    --channel-group 1 -o other.rank >/dev/null 2>&1
fm-pack -q --export out --budget 0.4 --layout layer --for vllm --force model.fm
echo "fused for vLLM: status $?"
cmp <(tar -xOf model.rank ranking.safetensors) <(tar -xOf other.rank ranking.safetensors) && echo same
fm-pack -q --model model --threads 3 model.recover 2>/dev/null >piped.fm
cmp model.fm piped.fm && echo same
echo "== another checkpoint's values are reported"
cp -r model spoilt
python3 - <<'PYTHON'
from pathlib import Path
file = Path("spoilt/model.safetensors")
data = bytearray(file.read_bytes())
data[-1] ^= 1 # a code of the last tensor in the file
file.write_bytes(data)
PYTHON
fm-pack -q --model spoilt -o refused model.train 2>&1 | sed 's/digest .*)/digest D)/'
rm -r spoilt
