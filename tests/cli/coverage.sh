# fm-pack --coverage prints the share of a ranking's scores that each member keeps, and names the least; other
# models, other criteria and broken streams are refused.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
rank() { fm-rank -q -m "$odd" --seq-len 8 --eval-tokens "$odd/tokens.npy" --device ref "$@" >/dev/null 2>&1; }
rank -t "$odd/tokens.npy" --max-tokens 64 -o prose.fm
rank -t "$odd/tokens.npy" --max-tokens 64 --shuffle --seed 3 -o 'code;2.fm'
fm-pack --list --json --coverage prose.fm --coverage 'code;2.fm' family.fm >list.json
python3 - <<'END'
import json
import struct
from tensors import members, unpack


def ranking(path):
    tensors = unpack(members(path)["ranking.safetensors"])
    parts = sorted(x.split(".")[1] for x in tensors if x.endswith("order"))
    for layer in parts:
        experts, channels = tensors[f"layers.{layer}.order"][1]
        scores, order = (struct.unpack(f"<{experts * channels}{kind}", tensors[f"layers.{layer}.{name}"][2])
                         for name, kind in (("scores", "d"), ("order", "i")))
        for e in range(experts):
            part = slice(e * channels, (e + 1) * channels)
            yield scores[part], order[part]


own = list(ranking("family.fm"))
kinds = {name: list(ranking(path)) for name, path in (("prose", "prose.fm"), ("code_2", "code;2.fm"))}
for member in json.load(open("list.json"))["budgets"]:
    width = member["widths"]["max"]
    assert member["widths"]["min"] == width
    for name, scored in kinds.items():
        kept = sum(scores[j] for (scores, _), (_, order) in zip(scored, own) for j in order[:width])
        share = kept / sum(sum(scores) for scores, _ in scored)
        assert abs(member["coverage"][name] - share) < 1e-12, (member, share)
    assert member["least_covered"] == min(kinds, key=member["coverage"].get)
print("each share is that of the kept scores")
END
fm-pack --list --coverage prose.fm --coverage 'code;2.fm' trained | sed -n '/share of the scores/,$p' |
    sed -E 's/ +0\.[0-9]{4}/ 0.x/g; s/ +1\.0000/ 1/g; s/ (prose|code_2)$/ one/'
echo "== one ranking, and the family from a pipe"
fm-pack --list --coverage trained - <family.fm | sed -n '/share of the scores/,$p' | sed -n '2,3p'
echo "== refused"
refused() {
    fm-pack "$@" 2>&1
    echo "status $?"
}
refused --list --coverage missing.fm family.fm
refused --list --coverage prose.fm ranked
mkdir other && cp prose.fm other
refused --list --coverage prose.fm --coverage other/prose.fm family.fm
fm-rank -q --criterion energy -m "$odd" -t "$odd/tokens.npy" --seq-len 8 -o energy.fm >/dev/null 2>&1
refused --list --coverage energy.fm family.fm
fm-rank -q -m "$GOLDEN/odd-qwen2" -t "$GOLDEN/odd-qwen2/tokens.npy" --seq-len 8 -o model.fm >/dev/null 2>&1
refused --list --coverage model.fm family.fm
head -c 5000 prose.fm >cut.fm
refused --list --coverage cut.fm family.fm
python3 "$(dirname "$0")/forge.py" prose.fm zero.fm 'tree, data = unpack_safetensors(b.member["ranking.safetensors"])
data = bytearray(data)
for name, tensor in tree.items():
    at, end = tensor.get("data_offsets", (0, 0))
    if name.endswith("scores"):
        data[at:end] = bytes(end - at)
    if name.endswith("order"):
        experts, channels = tensor["shape"]
        data[at:end] = struct.pack(f"<{channels}i", *range(channels)) * experts
b.member["ranking.safetensors"] = pack_safetensors(tree, bytes(data))'
refused --list --coverage zero.fm family.fm
refused --coverage prose.fm --export out --budget 0.2 family.fm
