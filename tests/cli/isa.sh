# Results with every limit of FM_ISA agree with those of --device ref, and so with each other, within
# the tolerances that fm(7) states.  Every step starts from the rankings and masks of ref, so that only
# its own difference is measured.  The largest differences are in the file `figures`.
set -o pipefail
isa=(base avx2 avx512 amx)

# make MODEL TRAIN STEPS OPTION...: rank, train and recover with ref, then with each limit.
make() {
    local model=$GOLDEN/$1 train as device
    read -ra train <<<"$2"
    local common=(-q -f --json --precision f32 --model "$model" "${@:4}")
    for as in ref "${isa[@]}"; do
        device=cpu
        [ "$as" != ref ] || device=ref
        (
            [ "$as" = ref ] || export FM_ISA=$as
            fm-rank "${common[@]}" --device $device -o "$as.rank" >"$as.rank.json" &&
                fm-train "${common[@]}" --device $device "${train[@]}" -o "$as.train" ref.rank >"$as.train.json" &&
                fm-recover "${common[@]}" --device $device --steps "$3" -o "$as.recover" ref.train >"$as.recover.json"
        ) || return
    done
}

# agree MODEL: print the largest differences, and whether they are within their tolerances.
agree() {
    python3 - "$1" "${isa[@]}" <<'PYTHON'
import json, struct, sys
from tensors import members, unpack

def scores(name):
    found = sorted(unpack(members(name)["ranking.safetensors"]).items())
    return [x for n, t in found if n.endswith(".scores") for x, in struct.iter_unpack("<d", t[2])]

def losses(name, key):
    report = json.load(open(name))
    return [report[k] for k in ("loss_first", "loss_last") if k in report] + \
        [b[key]["ce"] for b in report["budgets"] if b.get(key)]

def worst(got, want):
    assert len(got) == len(want) > 2, (len(got), len(want))
    return max(0 if a == b else abs(a - b) / abs(b) if a == a else float("inf") for a, b in zip(got, want))

kinds = [("scores", 1e-4, lambda a: scores(a + ".rank")),
         ("train", 1e-5, lambda a: losses(a + ".train.json", "quality")),
         ("recover", 1e-5, lambda a: losses(a + ".recover.json", "recovered"))]
with open("figures", "a") as figures:
    for kind, most, read in kinds:
        ref, base, bad = read("ref"), read("base"), 0
        for isa in sys.argv[2:]:
            mine = read(isa)
            of_ref, of_base = worst(mine, ref), worst(mine, base)
            figures.write(f"{sys.argv[1]} {kind} {isa} {of_ref:.1e} {of_base:.1e}\n")
            if not max(of_ref, of_base) <= most:
                bad = 1
                print(f"{kind} with {isa} differ by {of_ref:.1e} from ref, {of_base:.1e} from base; limit {most}")
        if not bad:
            print(f"{sys.argv[1]}: {kind} within {most:g} with each")
PYTHON
}

make odd-qwen2 "--method learned --steps 10" 10 --tokens "$GOLDEN/odd-qwen2/tokens.npy" && agree odd-qwen2
make tiny-mixtral "--method saliency --budget-step 0.4" 2 --tokens "$GOLDEN/tiny-mixtral/calib.npy" \
    --seq-len 32 --max-tokens 96 && agree tiny-mixtral

echo "== the limit is obeyed"
for as in base avx2; do
    FM_ISA=$as fm-rank -q -n --precision bf16 --model "$GOLDEN/odd-qwen2" --tokens "$GOLDEN/odd-qwen2/tokens.npy"
    echo "bf16 with $as: status $?"
done
