# uniform --drop-experts: experts of width 0 are replaced by constants in vLLM's format, and the tools read
# such a directory.  They refuse one whose tensors and config.json contradict each other.
here=$(dirname "$0")
# shellcheck source=tests/cli/family.bash
. "$here/family.bash"
# shellcheck source=tests/cli/least.bash
. "$here/least.bash"
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here
family saliency --actions 0,1 --until 0.6
said() {
    "$@" 2>&1 >/dev/null | sed "s|$GOLDEN|GOLDEN|; s/^/  /"
    echo "  status ${PIPESTATUS[0]}"
}
drop=(--export out -f --layout uniform --drop-experts)
echo "== whole experts"
fm-pack -q "${drop[@]}" --budget 0.4 family.fm | grep -v '^all '
python3 - out "$odd" <<'END'
import json, sys
from fp8 import read
out, model = sys.argv[1:]
config = json.load(open(out + "/config.json"))
tensors, whole = read(out), read(model)
removed = {(int(l), e) for l, experts in config["approximate_experts"].items() for e in experts}
print("removed:", sorted(removed))
prefix = "model.layers.%d.block_sparse_moe.experts.%d."
for at in sorted(removed):
    names = [n for n in tensors if n.startswith(prefix % at)]
    dtype, shape, data = tensors[prefix % at + "approx_value"]
    print(at, names == [prefix % at + "approx_value"], dtype, shape, "zeros" if not any(data) else "other")
left = {n for n in whole if not n.startswith(tuple(prefix % at for at in removed))}
print("all other tensors are there:", left == {n for n in tensors if not n.endswith("approx_value")})
gates = [n for n in whole if n.endswith("gate.weight")]
print("routers are the original's:", all(tensors[n] == whole[n] for n in gates))
END
fm-pack -q --export ragged --budget 0.4 family.fm >/dev/null
fm-verify -q out --against family.fm --function --tokens "$odd/tokens.npy" | sed -n 's/:.*differ by .* at most/: same/p; s/:.*ok/: ok/p'
for dir in out ragged; do
    fm-bench -q quality $dir --model "$odd" --eval-tokens "$odd/tokens.npy" --precision f32 --json |
        python3 -c 'import json, sys; x = json.load(sys.stdin); print(x["ce"], x["kl"])' >$dir.quality
done
cmp out.quality ragged.quality && echo "the same losses as layout ragged"
fm-pack -q --export - --layout uniform --drop-experts --budget 0.4 -T 1 family.fm 2>/dev/null | tar xf - --one-top-level=stream
diff -r out stream && echo "a stream on one thread: same bytes"
grep -A 1 '^## Making' -A 2 out/README.md
echo "== mean outputs as constants"
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --means -o means 2>/dev/null | head -n 1
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --means --criterion energy -o forward >/dev/null 2>&1
little fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --means -T 1 -o one >/dev/null 2>&1
cmp means one && echo "on one thread, with little memory: same bytes"
for name in ranked means forward; do tar xf $name ranking.safetensors && mv ranking.safetensors $name.st; done
python3 - <<'END'
import struct
from fp8 import unpack
plain, means, forward = (unpack(open(x + ".st", "rb").read()) for x in ("ranked", "means", "forward"))
print("all other tensors are as without --means:", plain == {n: t for n, t in means.items() if not n.endswith("means")})
new = sorted(n for n in means if n.endswith("means"))
print(new, means[new[0]][:2])
values = lambda t: struct.unpack("<%df" % (len(t[2]) // 4), t[2])
far = [abs(a - b) for n in new for a, b in zip(values(means[n]), values(forward[n]))]
print("a forward pass gives the same means:", max(far) < 1e-5 * max(abs(x) for n in new for x in values(means[n])))
END
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --method saliency --actions 0,1 \
    --budget-step 0.1 --until 0.6 -f -o trained.m means >/dev/null
fm-pack -q --model "$odd" -o means.fm trained.m >/dev/null
fm-pack -q --export mean --layout uniform --drop-experts --substitute mean --budget 0.4 means.fm | grep -v '^all '
fm-verify -q mean --against means.fm | sed -n 's/:.*ok/: ok/p'
grep 'experts replaced' mean/README.md
grep -A 1 '^## Making' -A 2 mean/README.md
python3 - <<'END'
import struct
from fp8 import read, unpack
ranking, tensors, right = unpack(open("means.st", "rb").read()), read("mean"), []
for name, (dtype, shape, data) in tensors.items():
    if name.endswith("approx_value"):
        layer, e = int(name.split(".")[2]), int(name.split(".")[5])
        row = ranking["layers.%d.means" % layer][2][4 * 48 * e : 4 * 48 * (e + 1)]
        right.append(struct.pack("<48e", *struct.unpack("<48f", row)) == data)
print("constants are the means, rounded:", right)
END
for dir in out mean; do
    fm-bench -q quality $dir --model "$odd" --eval-tokens "$odd/tokens.npy" --precision f32 --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["kl"])' >$dir.kl
done
[ "$(cat out.kl)" != "$(cat mean.kl)" ] && echo "the divergence differs from that with zeros"
said fm-verify -q mean --against means.fm --function --tokens "$odd/tokens.npy"
said fm-pack -q --export no --layout uniform --drop-experts --substitute mean --budget 0.4 family.fm
said fm-pack -q --export no --layout uniform --substitute zero --budget 0.4 means.fm
echo "== narrow experts, too"
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --method saliency --actions 0,0.3,1 \
    --budget-step 0.1 --until 0.5 -f -o narrow ranked >/dev/null
fm-pack -q --model "$odd" -o narrow.fm narrow >/dev/null
fm-pack -q --export mixed --layout uniform --drop-experts --budget 0.5 narrow.fm | grep -v '^all '
fm-verify -q mixed --against narrow.fm | sed -n 's/:.*ok/: ok/p'
echo "== experts without channels are zeros in layout padded"
for mask in 1 2 3 4 5; do
    fm-pack -q --export zeros --layout padded --mask $mask --force narrow.fm >/dev/null
    fm-verify -q zeros --against narrow.fm | sed -n 's/:.*ok/: ok/p'
done
echo "== refused"
said fm-pack -q --export no --layout ragged --drop-experts --budget 0.4 family.fm
said fm-pack -q --export no --layout uniform --drop-experts --budget 0.4 --weights fp8-block family.fm
said fm-pack -q --export no --layout uniform --drop-experts --budget 0.6 family.fm
said fm-rank -q --model out --tokens "$odd/tokens.npy" -o no
said fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --actions 0,0,1 -o no ranked
fm-rank -q --model "$GOLDEN/odd-gptoss" --tokens "$GOLDEN/odd-gptoss/tokens.npy" --precision f32 -o fused >/dev/null 2>&1
fm-train -q --model "$GOLDEN/odd-gptoss" --tokens "$GOLDEN/odd-gptoss/tokens.npy" --method saliency \
    --actions 0,1 --budget-step 0.2 --until 0.2 -o fused.t fused >/dev/null 2>&1
fm-pack -q --model "$GOLDEN/odd-gptoss" -o fused.fm fused.t >/dev/null
said fm-pack -q --export no --layout uniform --drop-experts --budget 0.2 fused.fm
said fm-rank -q --model "$GOLDEN/odd-gptoss" --tokens "$GOLDEN/odd-gptoss/tokens.npy" --means -o no
echo "== directories that were changed"
python3 - out <<'END'
import json, shutil, struct, sys
from fp8 import pack, read
tensors, config = read(sys.argv[1]), json.load(open(sys.argv[1] + "/config.json"))
removed = config["approximate_experts"]
layer = next(iter(removed))
name = "model.layers.%s.block_sparse_moe.experts.%d.approx_value" % (layer, removed[layer][0])
dtype, shape, data = tensors[name]
other = next(e for e in range(5) if e not in removed[layer])

def case(title, change):
    shutil.copytree(sys.argv[1], title)
    t, c = dict(tensors), json.loads(json.dumps(config))
    change(t, c)
    open(title + "/model.safetensors", "wb").write(pack(t))
    json.dump(c, open(title + "/config.json", "w"))

case("missing", lambda t, c: t.pop(name))
case("short", lambda t, c: t.update({name: (dtype, [shape[0] - 1], data[:-2])}))
case("matrix", lambda t, c: t.update({name: (dtype, [1, shape[0]], data)}))
case("integers", lambda t, c: t.update({name: ("U8", shape, data[: shape[0]])}))
case("nan", lambda t, c: t.update({name: (dtype, shape, struct.pack("<H", 0x7FC0) + data[2:])}))
case("stray", lambda t, c: t.update({name.replace("experts.%d." % removed[layer][0], "experts.%d." % other): (dtype, shape, data)}))
case("list", lambda t, c: c.update(approximate_experts=[[0]]))
case("nolayer", lambda t, c: c.update(approximate_experts={"03": [0]}))
case("twice", lambda t, c: c["approximate_experts"][layer].append(removed[layer][0]))
def drop_all(t, c):
    c["approximate_experts"][layer] = [0, 1, 2, 3, 4]
    for e in range(5):
        t[name.replace("experts.%d." % removed[layer][0], "experts.%d." % e)] = (dtype, shape, data)

case("none-left", drop_all)
case("outside", lambda t, c: c["approximate_experts"][layer].append(5))
case("fraction", lambda t, c: c["approximate_experts"][layer].append(0.5))
case("text", lambda t, c: c["approximate_experts"].update({layer: "0"}))
case("storage", lambda t, c: c.update(quantization_config={"quant_method": "fp8", "weight_block_size": [8, 8]}))
case("value", lambda t, c: t.update({name: (dtype, shape, b"\1" + data[1:])}))
END
for dir in missing short matrix integers nan stray list nolayer twice none-left outside fraction text; do
    echo "-- $dir"
    said fm-bench -q quality $dir --eval-tokens "$odd/tokens.npy" --precision f32
done
echo "-- two lists for one layer, which together would remove all its experts"
cp -r storage lists
sed -i "s/\"approximate_experts\": {/&\"1\": [0], /" lists/config.json
said fm-bench -q quality lists --eval-tokens "$odd/tokens.npy" --precision f32
echo "-- storage: a quantization_config for plain tensors, and stored codes"
cp "$odd/tokens.npy" storage
python3 "$here/fp8.py" quantise storage codes 8 8
cp out/fm-export.json codes
for dir in storage codes; do
    said fm-bench -q quality $dir --model $dir --eval-tokens "$odd/tokens.npy" --precision f32
    said fm-rank -q --model $dir --tokens "$odd/tokens.npy" -o no
done
echo "-- value"
check "a constant that is not the bundle's" value --against family.fm
sed 's/"substitute": "zero"/"substitute": "mean"/' out/fm-export.json >lie.json
cp -r out lie && cp lie.json lie/fm-export.json
check "zeros that are said to be means" lie --against means.fm
