# fm-rank --blend: with --device ref, weights that are the shares of batches give the ranking of all tokens, whatever the
# criterion; different models and options, and broken streams, are refused.
odd=$GOLDEN/odd-qwen2
python3 - "$odd/tokens.npy" <<'END'
import struct
import sys

data = open(sys.argv[1], "rb").read()
(header,) = struct.unpack("<H", data[8:10])
assert b"'<i4'" in data[10 : 10 + header]
ids = struct.unpack(f"<{(len(data) - 10 - header) // 4}i", data[10 + header :])
for name, part in {"a": ids[:96], "b": ids[96:128]}.items():
    open(name + ".u16", "wb").write(struct.pack(f"<{len(part)}H", *part))
END
cat a.u16 b.u16 >both.u16
rank() { fm-rank -q -m "$odd" --seq-len 8 --device ref --eval-tokens "$odd/tokens.npy" -f "$@" 2>&1; }
compare() {
    for stream; do tar xOf "$stream" ranking.safetensors >"$stream.st"; done
    python3 - "$@" <<'END'
import struct
import sys
from tensors import unpack

one, other = (unpack(open(path + ".st", "rb").read()) for path in sys.argv[1:])
assert one.keys() == other.keys()
for name, (dtype, shape, data) in one.items():
    kind = {"F64": "d", "I32": "i", "I64": "q"}[dtype]
    x, y = (struct.unpack(f"<{len(d) // struct.calcsize(kind)}{kind}", d) for d in (data, other[name][2]))
    limit = 1e-12 * max(x) if dtype == "F64" else 0
    assert all(abs(p - q) <= limit for p, q in zip(x, y, strict=True)), name
print("the same scores to 1e-12, order and tokens")
END
}
for criterion in taylor energy activation; do
    rank --criterion "$criterion" -t a.u16 -o a.fm >/dev/null
    rank --criterion "$criterion" -t b.u16 -o b.fm --seed 7 >/dev/null
    rank --criterion "$criterion" -t both.u16 -o both.fm >/dev/null
    fm-rank -q --blend a.fm:12 --blend b.fm:4 -f -o blended.fm | sed 's/loss.*/loss/' | head -3
    compare both.fm blended.fm
done
fm-verify blended.fm >/dev/null && echo "valid"
tar xOf blended.fm manifest.json | python3 -c '
import json, sys
entry = json.load(sys.stdin)["history"][-1]
print(len(entry["tokens"]["sources"]), "sources,", entry["result"]["batches"], "batches,", sorted(entry))
for part in entry["blend"]:
    print(part["weight"], part["tokens"]["sequences"], "seed", part["options"]["seed"], sorted(part))
print("shared", sorted(entry["options"]))'
echo "== a blend of blends, from a pipe, and the next stage"
fm-rank -q --blend - --blend blended.fm:0.5 <a.fm 2>/dev/null | fm-train -m "$odd" -t a.u16 --seq-len 8 \
    --method uniform --until 0.2 --precision f32 -f -o family.fm 2>&1 >/dev/null |
    grep -o 'not those that fm-rank held out'
fm-verify family.fm >/dev/null && echo "valid"
fm-rank -q --blend family.fm --blend blended.fm --json -f -o again.fm | grep -e blended -e '"sequences"'
echo "== refused"
refused() { fm-rank -q -f -o no.fm "$@" 2>&1; echo "status $?"; }
refused --blend a.fm
refused --blend a.fm:0 --blend b.fm
refused --blend a.fm --blend missing.fm
refused --blend a.fm --blend b.fm --seq-len 8 
refused --blend a.fm --blend b.fm -m "$odd"
refused --blend a.fm --blend b.fm -n
refused --blend a.fm --blend b.fm b.fm
rank --criterion energy -t b.u16 -o energy.fm >/dev/null
refused --blend a.fm --blend energy.fm
rank --criterion activation --batch 2 -t b.u16 -o batch.fm >/dev/null
refused --blend a.fm --blend batch.fm
rank --criterion activation --channel-group 3 -t b.u16 -o group.fm >/dev/null
refused --blend a.fm --blend group.fm
fm-rank -q -m "$odd" --criterion activation --seq-len 10 -t b.u16 --eval-tokens a.u16 --device ref -o length.fm >/dev/null 2>&1
refused --blend a.fm --blend length.fm
fm-rank -q -m "$GOLDEN/odd-mixtral" --criterion activation --seq-len 8 -t "$GOLDEN/odd-mixtral/tokens.npy" -o other.fm >/dev/null 2>&1
refused --blend a.fm --blend other.fm
head -c 5000 b.fm >cut.fm
refused --blend a.fm --blend cut.fm
echo "not a stream" >text.fm
refused --blend text.fm --blend a.fm
fm-rank -q -f --blend a.fm --blend b.fm -o a.fm 2>&1
# Blends of blends are refused before they are nested too deeply for a reader.
cp a.fm nested.fm
for generation in 1 2 3 4 5 6; do
    fm-rank -q --blend nested.fm --blend a.fm -f -o next.fm >/dev/null || {
        echo "generation $generation: status $?"
        break
    }
    fm-verify -q next.fm >/dev/null && mv next.fm nested.fm
done
