# Channel groups: neighbouring channels are ranked together, masks keep or remove whole groups, and an
# invalid group size is reported in one sentence.
model=$GOLDEN/odd-qwen2 # 27 channels
rank() { fm-rank -q --model "$model" --tokens "$model/tokens.npy" --precision f32 -f "$@" 2>&1; }
train() { fm-train -q --model "$model" --tokens "$model/tokens.npy" --precision f32 -f "$@" 2>&1; }
verify() { # omit sizes: those of members with measured figures differ between CPUs
    fm-verify -q "$@" | sed 's/ items, .*B:/ items:/'
    return "${PIPESTATUS[0]}"
}
rank -o single.fm >/dev/null
rank -o one.fm --channel-group 1 >/dev/null
cmp single.fm one.fm && echo "1 is the default"
rank -o ranked.fm --channel-group 9 | sed 's/loss.*/loss/'
rank --json -o ranked.fm --channel-group 9 | grep channel_group
tar xOf ranked.fm manifest.json | grep channel_group
echo "== each group in the order of the checkpoint, by the sum of its scores"
tar xOf single.fm ranking.safetensors >single.st
tar xOf ranked.fm ranking.safetensors >ranked.st
python3 - <<'END'
import struct
from tensors import unpack

def tensors(path):
    for name, (dtype, shape, data) in unpack(open(path, "rb").read()).items():
        kind = {"F64": "d", "I32": "i", "I64": "q"}[dtype]
        yield name, shape, struct.unpack(f"<{len(data) // struct.calcsize(kind)}{kind}", data)

single = {name: values for name, _, values in tensors("single.st")}
ranked = {name: (shape, values) for name, shape, values in tensors("ranked.st")}
for name, (shape, order) in ranked.items():
    if not name.endswith(".order"):
        assert order == single[name], name
        continue
    scores, (experts, channels) = ranked[name.replace("order", "scores")][1], shape
    for e in range(experts):
        s, o = scores[e * channels : (e + 1) * channels], order[e * channels : (e + 1) * channels]
        sums = [sum(s[g : g + 9]) for g in range(0, channels, 9)]
        want = sorted(range(len(sums)), key=lambda g: (-sums[g], g))
        assert o == tuple(9 * g + j for g in want for j in range(9)), (name, e)
print("yes, and the scores are those of single channels")
END
echo "== widths"
for method in exchange saliency uniform "learned --steps 3"; do
    # shellcheck disable=SC2086 # words of options
    train --method $method --budget-step 0.1 --until 0.6 -o "masks.fm" ranked.fm >/dev/null
    tar xOf masks.fm manifest.json | tr -d ' \n' | grep -o '"widths":\[[0-9,]*\],"multiple":[0-9]*'
    verify masks.fm
done
train --method saliency --width-multiple 18 -o masks.fm ranked.fm | tail -n 1 | sed 's/CE .*/CE/'
train --method saliency --width-multiple 6 -o masks.fm ranked.fm
echo "status $?"
train -n --width-multiple 6 -o masks.fm ranked.fm
echo "status $?"
echo "== to the end of the pipeline"
train --method saliency --budget-step 0.1 --until 0.6 -o masks.fm ranked.fm >/dev/null
fm-pack -q --model "$model" -f -o family.fm masks.fm >/dev/null && verify family.fm
fm-pack -q --export cut --budget 0.4 family.fm >/dev/null && verify cut --against family.fm
echo "== group sizes that do not fit"
for n in 0 2 28 -9 2147483647 9.0; do
    rank -o none.fm --channel-group $n
    echo "status $?"
done
rank -n -o none.fm --channel-group 4
echo "status $?"
ls
