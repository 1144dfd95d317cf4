# fm-recover --train down: only down projections differ in the bundle, and they are the stream's.
# shellcheck source=tests/cli/coded.bash
. "$(dirname "$0")/coded.bash"
# shellcheck source=tests/cli/least.bash
. "$(dirname "$0")/least.bash"
compare() { # compare BARE SOLVED: compare their weights
    python3 - "$@" <<'PYTHON'
import sys
from tensors import members, unpack

bare, solved = members(sys.argv[1]), members(sys.argv[2])
down = unpack(solved["adapter.safetensors"])
same, stray, experts, kept = 0, 0, 0, 0
for name in sorted(x for x in bare if x.startswith("weights/")):
    new = unpack(solved[name])
    for tensor, old in unpack(bare[name]).items():
        if tensor not in down:
            same += new[tensor] == old
            stray += new[tensor] != old
            continue
        stray += new[tensor][2] != down[tensor][2]
        E, size = old[1][0], len(old[2]) // old[1][0]
        for e in range(E):
            experts += 1
            kept += new[tensor][2][e * size:(e + 1) * size] == old[2][e * size:(e + 1) * size]
print(f"{same} tensors as they were, {stray} that are neither; {experts} experts, {kept} with the ranked down")
PYTHON
}
solve() { # solve MODEL OUT [OPTION...]
    fm-recover -q -m "$1" -t "$1/tokens.npy" --device ref --train down -f -o "$2" "${@:3}" trained
}
spent() { # PID: print the processor time of all its threads in hundredths of a second
    sed 's/.*) //' "/proc/$1/stat" | (IFS=' ' read -r -a field && echo $((field[11] + field[12])))
}
figures() {
    sed -E 's/differ by [-e.0-9]* at most/differ by D at most/; s/loss [.0-9]*, want [.0-9]*;/loss:/
        s/items, .*B:/items:/; s/budget 0[.0-9]*/budget B/; /^not compared|^code:/d'
}
for model in odd-mixtral odd-gptoss odd-dsv3; do
    echo "== $model"
    from=$GOLDEN/$model
    fm-rank -q -m "$from" -t "$from/tokens.npy" --device ref -f -o ranked >/dev/null
    fm-train -q -m "$from" -t "$from/tokens.npy" --device ref --method saliency --budget-step 0.15 -f \
        -o trained ranked >/dev/null 2>&1
    fm-pack -q -m "$from" -f -o bare.fm trained >/dev/null
    solve "$from" solved
    fm-pack -q -m "$from" -f -o solved.fm solved | grep -o 'adapter merged'
    fm-pack --list solved.fm | grep ^down
    compare bare.fm solved.fm
    fm-verify -q --model "$from" solved.fm | figures
    fm-verify -q --function -m "$from" -t "$from/tokens.npy" solved.fm | figures
    for layout in uniform ragged elastic; do
        fm-pack -q --export out --budget 0.3 --layout "$layout" -f solved.fm >/dev/null
        fm-verify -q --function -t "$from/tokens.npy" --against solved.fm out | figures
    done
done
echo "== one mask; the full one, which loses nothing"
solve "$from" one --budget 0.45 | grep -v '^held'
solve "$from" full --budget 0 | grep -v '^held'
fm-pack -q -m "$from" -f -o full.fm full >/dev/null
compare bare.fm full.fm
echo "== the same bytes"
little=$(least fm-recover -q -m "$from" -t "$from/tokens.npy" --train down --threads 3 -o other trained)
fm-recover -q -m "$from" -t "$from/tokens.npy" --train down --threads 1 -f -o some trained >/dev/null
fm-recover -q -m "$from" -t "$from/tokens.npy" --train down --threads 3 --memory "$little" -f -o other \
    trained >/dev/null
cmp some other && echo "any threads and memory"
fm-pack -q -m "$from" solved 2>/dev/null | cmp - solved.fm && echo "a pipe"
(
    exec fm-recover -q -m "$from" -t "$from/tokens.npy" --device ref --train down --state state -f -o stopped \
        trained >/dev/null 2>&1
) &
while kill -0 $! && [ ! -e state ] && [ "$(spent $!)" -lt 30 ]; do sleep 0.02; done 2>/dev/null
kill -TERM $! 2>/dev/null
wait $!
solve "$from" stopped --state state >/dev/null
cmp solved stopped && echo "interrupted and resumed"
echo "== refused"
said fm-recover -q -m "$from" -t "$from/tokens.npy" --train down --steps 4 -o none trained
said fm-recover -q -m "$from" -t "$from/tokens.npy" --train down --strategy cross -o none trained
python3 "$(dirname "$0")/recode.py" quantise "$GOLDEN/odd-qwen2" coded fp8:9x9
fm-rank -q -m coded -t coded/tokens.npy --precision f32 -f -o ranked >/dev/null
fm-train -q -m coded -t coded/tokens.npy --precision f32 --method saliency --budget-step 0.15 -f -o trained \
    ranked >/dev/null 2>&1
fm-recover -q -m coded -t coded/tokens.npy --precision f32 --train down -f -o solved-codes trained >/dev/null
said fm-pack -q -m coded -o none solved-codes
echo "== the values of a quantised checkpoint"
fm-pack -q -m coded --weights bf16 -f -o coded.fm solved-codes | grep -o 'adapter merged'
fm-verify -q --model coded coded.fm | figures
fm-verify -q --function -m coded -t coded/tokens.npy coded.fm | figures
echo "== another list of served masks than a run can have"
for edit in 'pop("served")' '__setitem__("served", [])' '["served"][1].update(budget_index=99)' \
    '["served"][0].update(weight=-1)' '["served"][1].update(budget_index=0)' 'update(strategy="single")'; do
    [[ $edit == \[* ]] || edit=.$edit
    python3 "$(dirname "$0")/forge.py" solved.fm liar.fm "b.manifest[\"adapter\"]$edit"
    said fm-verify -q liar.fm
done
echo "== another recovery in the history than in the adapter; an index for several masks"
for edit in 'history"][-2]["options"].pop("train")' 'history"][-2]["options"].update(train="router")' \
    'adapter"].pop("train")' 'adapter"].update(budget_index=1)'; do
    python3 "$(dirname "$0")/forge.py" solved.fm liar.fm "b.manifest[\"$edit"
    fm-verify -q liar.fm 2>/dev/null || echo "  status $?"
done
echo "== a member that the model's layers do not have"
for edit in 'd = b"\377" * 4 + d[4:]' 't["layers.0.down"] = t.pop(k[0])' 'd = d[: t.pop(k[-1])["data_offsets"][0]]' \
    't[k[0]]["shape"].reverse()' 't[k[0]]["dtype"] = {"F32": "I32", "BF16": "F16"}[t[k[0]]["dtype"]]' \
    't["__metadata__"]["train"] = "up"'; do
    python3 "$(dirname "$0")/forge.py" solved liar "m = 'adapter.safetensors'
t, d = unpack_safetensors(b.member[m])
k = [x for x in t if x != '__metadata__']
$edit
b.member[m] = pack_safetensors(t, d)"
    said fm-pack -q -m "$from" -o none liar
done
