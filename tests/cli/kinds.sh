# Each --eval-text and --eval-tokens is a kind of text.  Its loss is the same as if it were measured alone: in
# the manifest, in the list, which names the worst kind, and in fm-bench quality.  fm-recover
# reports every kind.
tiny=$GOLDEN/tiny-mixtral
calib=(--model "$tiny" --tokens "$tiny/calib.npy" --seq-len 32 --max-tokens 2048 --precision f32)
mkdir in
head -n 40 "$GOLDEN/README" >in/prose.txt
cat "$GOLDEN"/../lib/masks/*.h >in/code.h
cp "$GOLDEN/text/rows.jsonl" "in/odd name.jsonl"
kinds=(--eval-text in/prose.txt --eval-text in/code.h --eval-text "in/odd name.jsonl" --max-eval-tokens 768)
fm-rank -q "${calib[@]}" "${kinds[@]}" -o ranked >/dev/null 2>&1
fm-train -q "${calib[@]}" "${kinds[@]}" --method saliency --budget-step 0.2 --measure-step 0.4 -o trained ranked |
    sed 's/ [0-9.]*\.[0-9]* at/ CE at/g'
fm-pack -q --model "$tiny" -o family.fm trained >/dev/null
fm-verify -q family.fm | sed 's/:.*:/:/'
fm-pack --list family.fm | grep '^budget  method' | tr -s ' '
fm-pack --list family.fm | grep -Ec '[+-][0-9]\.[0-9]{4} (prose|code|odd_name)'
quality() { # quality OPTION...: measure the bundle's members
    fm-bench quality -q --seq-len 32 --budgets 0,0.4,0.8 --precision f32 --json "$@" family.fm
}
quality "${kinds[@]}" >all.json
for text in in/*; do
    quality --eval-text "$text" --max-eval-tokens 256 >"$(basename "${text%.*}" | tr ' ' _).json"
done
quality --eval-tokens "$tiny/heldout.npy" --max-eval-tokens 256 >heldout.json
quality --eval-text in/prose.txt --eval-tokens "$tiny/heldout.npy" --max-eval-tokens 512 >two.json
fm-pack --list --json family.fm >list.json
fm-recover -q "${calib[@]}" "${kinds[@]}" --steps 2 --json -o recovered trained >recovered.json
python3 - <<'PYTHON'
import json

load = lambda name: json.load(open(name + ".json"))
rows, list_ = load("all")["rows"], load("list")["budgets"]
names = ["prose", "code", "odd_name"]
for name in names:
    own = load(name)["rows"]
    same = all(abs(a[k]["kinds"][name] - b[k]["ce"]) < 1e-5 for a, b in zip(rows, own) for k in a if k != "mask")
    print(name, "as measured alone in", len(own), "members and their controls:", same)
for name in ["heldout", "prose"]:
    pairs = zip(load("two")["rows"], load(name)["rows"])
    print(name, "in tokens and a text:", all(abs(a["family"]["kinds"][name] - b["family"]["ce"]) < 1e-5 for a, b in pairs))
mean = lambda q: sum(q["kinds"].values()) / 3
print("all is their mean:", all(abs(mean(r["family"]) - r["family"]["ce"]) < 1e-9 for r in rows))
print("list:", all(abs(list_[r["mask"]]["quality"]["kinds"][n] - r["family"]["kinds"][n]) < 1e-5 for r in rows for n in names))
first, between, third = (list_[i]["quality"]["kinds"] for i in (0, 1, 2))
print("between:", all(min(first[n], third[n]) < between[n] < max(first[n], third[n]) for n in names))
for b in list_:
    q = b["quality"]
    lost = {n: q["kinds"][n] - first[n] for n in names}
    assert q["worst_lost"] == max(lost.values()) and lost[q["worst"]] == q["worst_lost"], q
after = load("recovered")["budgets"]
print("recovered:", all(list(b["recovered"]["kinds"]) == names for b in after if b["recovered"]))
PYTHON
fm-pack -q --export out --budget 0.4 family.fm >/dev/null
fm-bench quality -q "${kinds[@]}" --seq-len 32 --precision f32 out | sed 's/[0-9]*\.[0-9]*/N/g' | tr -s ' ' | grep -v ' are predicted; '
echo "-- a renamed kind; kinds with equally many sequences"
changed=("${calib[@]}" --method uniform --budget-step 0.4 --max-eval-tokens 700 -o named ranked)
cp in/code.h in/source.h
fm-train -q "${changed[@]}" --eval-text in/prose.txt --eval-text in/source.h | grep -o '^  [a-z]* CE'
rm in/source.h
tar -xOf named manifest.json | grep -c '"sequences": 20,'
head -c 200 in/prose.txt >in/short.txt
fm-train "${changed[@]}" --force --eval-text in/short.txt --eval-text in/code.h 2>&1 | grep -o "'in/short.txt' is the shortest.*sequences"
echo "-- refused"
try() {
    "$@" 2>&1 >/dev/null | sed "s|$GOLDEN|GOLDEN|g"
    echo "status ${PIPESTATUS[0]}"
}
cp in/code.h in/code.txt
try fm-train -q "${calib[@]}" "${kinds[@]}" --eval-text in/code.txt -n ranked
try fm-train -q "${calib[@]}" "${kinds[@]}" --max-eval-tokens 64 -n ranked
many=()
for i in {1..17}; do many+=(--eval-text "in/$i.txt"); done
try fm-train -q "${calib[@]}" "${many[@]}" -n ranked
echo "-- false kinds of text"
for lie in "b.manifest['budgets'][4]['quality']['kinds'] = {'prose': 1, 'code': 2}" \
    "b.manifest['budgets'][4]['quality']['kinds'] = {'prose': 1, 'code': 2, 'other': 3}" \
    "b.manifest['budgets'][0]['quality']['kinds'] = {'a b': 1}" \
    "b.manifest['budgets'][0]['quality']['kinds'] = {str(i): 1 for i in range(17)}" \
    "b.manifest['budgets'][0]['quality']['kinds'] = {'prose': -1, 'code': 2, 'odd_name': 3}" \
    "b.manifest['budgets'][0]['quality']['kinds'] = []"; do
    python3 "$(dirname "$0")/forge.py" family.fm lie.fm "$lie"
    try fm-pack --list lie.fm
done
