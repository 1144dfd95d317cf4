# fm-recover --train router: only routers differ in the bundle, by the adapter's differences; quantised
# experts keep their codes.
# shellcheck source=tests/cli/coded.bash
. "$(dirname "$0")/coded.bash"
# shellcheck source=tests/cli/least.bash
. "$(dirname "$0")/least.bash"
figures() { # omit figures, whose last digits differ between CPUs, and sizes of members that contain them
    sed -E 's/loss [.0-9]*, want [.0-9]*;/loss:/; s/differ by [-e.0-9]* at most/differ by D at most/
        s/items, .*B:/items:/; s/budget 0[.0-9]*/budget B/; s/^bundle .*  /bundle  /'
}
compare() { # compare BARE ROUTED: compare their weights; adapter.safetensors is ROUTED's
    python3 - "$@" <<'PYTHON'
import sys
from codes import numbers, to_f32, words
from tensors import members, unpack

bare, routed = members(sys.argv[1]), members(sys.argv[2])
change = {n: numbers(t) for n, t in unpack(routed["adapter.safetensors"]).items()}
print(f"{len(change)} tensors of differences", "that are not all zero" if all(map(any, change.values())) else "")
same = routers = 0
for name in sorted(x for x in bare if x.startswith("weights/")):
    new = unpack(routed[name])
    for tensor, old in unpack(bare[name]).items():
        if new[tensor] == old:
            same += 1
            continue
        layer = tensor.split("layers.")[1].split(".")[0]
        key = f"layers.{layer}.router" + ("_bias" if tensor.endswith("bias") else "")
        sums = [to_f32(a + b) for a, b in zip(numbers(old), change.pop(key), strict=True)]
        if new[tensor] != (*old[:2], words(old[0], sums)):
            print(f"{tensor}: is not the sum, rounded once")
        routers += 1
print(f"{routers} tensors are the sums, {same} as they were; {len(change)} differences left over")
PYTHON
}
recover() { # recover MODEL OUT [OPTION...]
    fm-recover -q -m "$1" -t "$1/tokens.npy" --precision f32 --train router --steps 3 --lr 0.02 --batch 2 \
        -f -o "$2" "${@:3}" trained >/dev/null 2>&1
}
for model in odd-mixtral odd-gptoss odd-dsv3 packed/w4a16 packed/nvfp4; do
    echo "== $model"
    from=$GOLDEN/$model
    fm-rank -q -m "$from" -t "$from/tokens.npy" --precision f32 -f -o ranked >/dev/null
    fm-train -q -m "$from" -t "$from/tokens.npy" --precision f32 --method saliency --budget-step 0.15 -f \
        -o trained ranked >/dev/null 2>&1
    recover "$from" routed --budget 0.3
    fm-pack -q -m "$from" -f -o bare.fm trained >/dev/null
    fm-pack -q -m "$from" -f -o routed.fm routed | grep -E '^(bundle|codes)' | figures
    compare bare.fm routed.fm
    fm-verify -q --function -m "$from" -t "$from/tokens.npy" routed.fm | figures
    fm-pack -q --export out --budget 0.3 --layout uniform -f routed.fm >/dev/null
    fm-verify -q --function -t "$from/tokens.npy" --against routed.fm out | figures
done
echo "== the same bytes"
little=$(least fm-recover -q -m "$from" -t "$from/tokens.npy" --precision f32 --train router --steps 3 \
    --batch 2 --budget 0.3 --threads 3 -o other trained)
recover "$from" other --budget 0.3 --threads 3 --memory "$little"
cmp routed other && echo "any threads and memory"
fm-pack -q -m "$from" routed 2>/dev/null | cmp - routed.fm && echo "a pipe"
recover "$from" cross --strategy cross
fm-pack -q -m "$from" -f -o cross.fm cross | grep -oE 'adapter merged'
echo "== refused"
said fm-recover -q -m "$from" -t "$from/tokens.npy" --train router --lora-rank 4 -o none trained
said fm-recover -q -m "$from" -t "$from/tokens.npy" --train bias -o none trained
echo "== quantised routers, into which no adapter can be merged: the dry run reports that, too"
python3 "$(dirname "$0")/recode.py" quantise "$GOLDEN/odd-qwen2" coded fp8-routers:9x9
fm-rank -q -m coded -t coded/tokens.npy --precision f32 -f -o ranked >/dev/null
fm-train -q -m coded -t coded/tokens.npy --precision f32 --method saliency --budget-step 0.15 -f -o trained \
    ranked >/dev/null 2>&1
recover coded routed --budget 0.3
said fm-pack -q -n -m coded -o none routed
said fm-pack -q -m coded -o none routed
said fm-pack -q -n --weights bf16 -m coded -o none routed
said fm-pack -q -n -m coded -o none trained
