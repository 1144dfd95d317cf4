# --measure-step: which masks have figures after fm-train and fm-recover, and what lists and cards say about
# the others.  A mask's figures do not depend on which other masks are measured.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
on=(--model "$odd" --tokens "$odd/tokens.npy" --precision f32 --threads 1 -q)
fm-rank "${on[@]}" -o ranked >/dev/null
train() { # train OUT OPTION...
    fm-train "${on[@]}" --method saliency --until 0.4 -f -o "$1" "${@:2}" ranked >/dev/null
}
cat >figures.py <<'E2'
# For each file print the budgets that were measured; then whether figures of the same budget are equal.
import json, subprocess, sys
seen = []
for path in sys.argv[1:]:
    rows = json.loads(subprocess.check_output(["fm-pack", "--list", "--json", path]))["budgets"]
    measured = {r["budget"]: r["quality"] for r in rows if r["quality"] and not r["quality"]["interpolated"]}
    between = [r for r in rows if r["quality"] and r["quality"]["interpolated"]]
    print(path, len(rows), "masks;", *("%.2f" % b for b in measured), "measured,", len(between), "between")
    seen.append(measured)
both = set(seen[0]).intersection(*seen[1:])
print("equal:", all(s[b] == seen[0][b] for s in seen for b in both))
E2
train few
train all --measure-step 0.01
train ends --measure-step 1
python3 figures.py few all ends
flops() { fm-recover "${on[@]}" --steps 1 --dry-run "$@" | awk '$1 == "flops" { print $2 }'; }
awk -v few="$(flops few)" -v ends="$(flops ends)" -v all="$(flops all)" \
    'BEGIN { print "forecasts of a recovery rise with the measured masks:", (ends < few && few < all ? "yes" : "no") }'
fm-recover "${on[@]}" --steps 1 --budget 0.2 -o recovered few >/dev/null
python3 figures.py recovered
echo "-- a member between two that were measured"
fm-pack -q -m "$odd" -o family.fm few >/dev/null
fm-verify -q family.fm >/dev/null && echo "verified"
fm-pack --list --json family.fm | grep -c '"interpolated": true'
# The table leaves out most members that were not measured.
fm-pack --list family.fm | grep -c 'members are shown; --json has all'
for budget in 0.1 0.12; do
    fm-pack -q --export at --layout ragged --budget $budget -f family.fm >/dev/null 2>&1
    grep -o 'held-out cross-entropy[a-z ,]*|' at/README.md
done
echo "-- not a step"
for step in 0 2 x; do
    fm-train "${on[@]}" --measure-step $step -o out ranked 2>&1
    echo "status $?"
done
