# llama.cpp's base-logits file: it is written from the original; exports and masks have the same figures
# relative to it as relative to the original; what cannot be written or read is refused.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency --until 0.5
fm-pack -q --export out --layout ragged --budget 0.3 family.fm >/dev/null
cp "$odd/tokens.npy" .
eval=(--eval-tokens tokens.npy --seq-len 8 --max-eval-tokens 400)
run=(fm-bench quality -q --device ref)
"${run[@]}" "${eval[@]}" --model "$odd" --kl-base-out base.kld --dry-run out | sed '/^memory/,$d'
ls base.kld 2>&1
"${run[@]}" "${eval[@]}" --model "$odd" --kl-base-out base.kld --json out >beside.json
wc -c <base.kld
"${run[@]}" "${eval[@]}" --model "$odd" --kl-base-out two.kld --kl-chunks 2 --threads 1 --json out |
    grep kl_base_bytes
"${run[@]}" "${eval[@]}" --model "$odd" --kl-base-out again.kld --threads 1 out >/dev/null
cmp base.kld again.kld && echo "the same bytes"
python3 - base.kld two.kld <<'END'
import struct, sys

def parts(path):
    data = open(path, "rb").read()
    n_ctx, n_vocab, n_chunk = struct.unpack_from("<3i", data, 8)
    tokens, row = 20 + 4 * n_ctx * n_chunk, 8 + 2 * (n_vocab + n_vocab % 2)
    print(data[:8], n_ctx, n_vocab, n_chunk, (len(data) - tokens) / row / n_chunk, "rows of a chunk")
    return n_ctx, data[20:tokens], data[tokens:]

(n, ids, rows), (_, ids2, rows2) = map(parts, sys.argv[1:])
print("the first two chunks:", ids.startswith(ids2) and rows.startswith(rows2))
given = struct.unpack("<138i", open("tokens.npy", "rb").read()[-4 * 138 :])  # (6, 23), cut to 8 each
print("the tokens as they were given:", struct.unpack("<48i", ids) == tuple(x for i in range(6) for x in given[23 * i :][:8]))
END

echo "-- compared with the file"
"${run[@]}" --kl-base base.kld --json out >from.json
"${run[@]}" --kl-base base.kld --kl-chunks 2 --json out >few.json
"${run[@]}" --kl-base two.kld --json out >two.json
"${run[@]}" --kl-base base.kld --budgets 0.3 --json family.fm >masks.json
"${run[@]}" --kl-base base.kld --budgets 0.3 --model "$odd" --json trained >stage.json
"${run[@]}" --kl-base base.kld --json out out >each.json
python3 - <<'END'
import json

def near(what, a, b):
    """The file stores 16 bits for each log-probability, so its figures are off by up to 1.2e-4 nats."""
    keys = ["ce", "kl", "agree", "agree_five", "dp_mean", "dp_rms", "kl_tokens", "dp_tokens", "ce_interval"]
    flat = lambda x: [v for k in keys for v in (x[k] if isinstance(x[k], list) else [x[k]])]
    print(what, "agree" if max(abs(x - y) for x, y in zip(flat(a), flat(b))) < 3e-4 else "DIFFER")

read = lambda name: json.load(open(name + ".json"))
beside, file = read("beside"), read("from")
near("file and original", file, beside)
print("original_ce", abs(file["original_ce"] - beside["original_ce"]) < 3e-4, file["convention"])
print("the digest of the tokens", file["digest"] == beside["digest"])
near("masks and export", read("masks")["rows"][0]["family"], beside)
near("a stage stream and export", read("stage")["rows"][0]["family"], beside)
few, two = read("few"), read("two")
print("two chunks", few["tokens"], few["kl"] == two["kl"] != file["kl"])
END

echo "-- refused"
say() {
    echo "\$ $*" >&2
    "$@" >/dev/null
    echo "status $?" >&2
}
model=(--model "$odd")
write() { say fm-bench quality -q "${eval[@]}" --kl-base-out "$@" 2>&1 | sed "s|$odd|ODD|"; }
read_base() { say fm-bench quality -q --kl-base "$@" 2>&1 | sed "s|$odd|ODD|"; }
write base.kld "${model[@]}" out
write tokens.npy "${model[@]}" --force out
write - "${model[@]}" out
write new.kld out
write new.kld family.fm
write new.kld "${model[@]}" out out
write new.kld "${model[@]}" --convention papers out
write new.kld "${model[@]}" --seq-len 2 out
write new.kld "${model[@]}" --kl-base base.kld out
say fm-bench quality -q "${eval[@]}" --kl-chunks 2 out 2>&1
read_base base.kld "${model[@]}" out
read_base base.kld "${eval[@]}" out
read_base base.kld --record out
read_base missing.kld out
read_base "$GOLDEN/bad/good-kl.kld" out 2>&1 | sed "s|$GOLDEN|GOLDEN|g"
head -c 3000 base.kld >cut.kld
read_base cut.kld out
python3 - <<'END'
import struct
data = bytearray(open("base.kld", "rb").read())
struct.pack_into("<i", data, 20 + 4 * 9, 1 << 20)
open("token.kld", "wb").write(data)
data = bytearray(open("base.kld", "rb").read())
n_ctx, n_vocab, n_chunk = struct.unpack_from("<3i", data, 8)
struct.pack_into("<f", data, 20 + 4 * n_ctx * n_chunk, float("nan"))
open("row.kld", "wb").write(data)
END
read_base token.kld family.fm
read_base row.kld --budgets 0.3 family.fm
ls
