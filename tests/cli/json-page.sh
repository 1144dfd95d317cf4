# fm-json(5): every key that the tools print is in its section of the page, and nearly every key in the page
# is printed by some run here.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
odd=$GOLDEN/odd-mixtral
data=(-q -m "$odd" -t "$odd/tokens.npy" --eval-tokens "$odd/tokens.npy" --precision f32 --json)
held=(-q --eval-tokens "$odd/tokens.npy" --precision f32 --json)
mkdir plan rank train recover pack export list verify quality baselines loops
fm-rank "${data[@]}" -n >plan/rank 2>/dev/null
fm-rank -q -n -m "$GOLDEN/tiny-mixtral" --text "$GOLDEN/text/rows.jsonl" --json >plan/text 2>/dev/null
fm-rank "${data[@]}" -o ranked >rank/rank 2>/dev/null
fm-train "${data[@]}" --method saliency --budget-step 0.2 -n ranked >plan/train
fm-train "${data[@]}" --method saliency --budget-step 0.2 -o trained ranked >train/train
fm-train "${data[@]}" --method saliency --actions 0.5,1 -o short ranked >train/short 2>/dev/null
fm-recover "${data[@]}" --budget 0.4 --steps 1 -n --state state trained >plan/recover
fm-recover "${data[@]}" --budget 0.4 --steps 1 -o adapted trained >recover/recover 2>/dev/null
fm-recover "${data[@]}" --train down -o solved trained >recover/down 2>/dev/null
fm-rank -q --json --blend ranked --blend ranked -o blended >rank/blend
yes no | head -n 99 | paste -sd ' ' | sed 's/.*/{"text": "&"}/' | fm-bench loops --json - >loops/one
fm-pack -q -m "$odd" --json -o family.fm adapted >pack/pack
fm-pack -q -m "$odd" --json -n --part-size 400kB -o parts.fm adapted >pack/parts
fm-pack -q -l --json --coverage ranked family.fm >list/list
fm-pack -q -l --json solved >list/solved
fm-pack -q -x ragged -b 0.4 --json family.fm >export/ragged 2>/dev/null
fm-pack -q -x fused -b 0.4 --layout layer --for vllm --json family.fm >export/fused 2>/dev/null
fm-pack -q -x uniform --budget 0.2 --layout uniform --json family.fm >export/uniform
fm-pack -q -x elastic --layout elastic --load-cap 0.2:0.5 --json family.fm >export/elastic
fm-verify -q --json family.fm >verify/bundle
fm-verify -q --json --function -t "$odd/tokens.npy" -a family.fm ragged >verify/function
cp -r ragged changed && echo >>changed/config.json
fm-verify -q --json -a family.fm changed >verify/changed 2>/dev/null
fm-verify -q --json ragged >verify/table
cp -r ragged copy && touch copy/notes
fm-verify -q --json copy >verify/added
fm-verify -q --json -n ragged >verify/plan
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem 2>/dev/null
openssl pkey -in key.pem -pubout -out key.pub
fm-verify -q --json --sign key.pem copy >verify/sign
fm-verify -q --json --trusted key.pub copy >verify/trusted
fm-verify -q --sign key.pem family.fm >/dev/null && cp family.fm renamed.fm && cp family.fm.sig renamed.fm.sig
fm-verify -q --json --trusted key.pub renamed.fm >verify/renamed
rm renamed.fm renamed.fm.sig family.fm.sig
fm-bench quality "${held[@]}" --budgets 0.4 family.fm >quality/family
grep -e reference -e recovered quality/family # no original is given; the adapter is in the weights
fm-bench quality "${held[@]}" -m "$odd" ragged >quality/one
fm-bench quality "${held[@]}" -n -m "$odd" ragged >quality/plan
fm-bench quality "${held[@]}" -m "$odd" elastic >quality/elastic
fm-bench quality "${held[@]}" -m "$odd" ragged uniform >quality/several
fm-bench quality "${held[@]}" --weights bf16,fp8-block --budgets 0.4 family.fm >quality/planned
fm-bench baselines "${data[@]}" --budgets 0.4 >baselines/two
# With several kinds of held-out text.
tiny=$GOLDEN/tiny-mixtral
kinds=(-q -m "$tiny" -t "$tiny/calib.npy" --seq-len 32 --max-tokens 1024 --eval-text "$GOLDEN/README"
    --eval-text "$GOLDEN/text/rows.jsonl" --max-eval-tokens 128 --precision f32)
fm-rank "${kinds[@]}" -f -o ranked >/dev/null 2>&1
fm-train "${kinds[@]}" --method uniform --budget-step 0.4 -f -o trained ranked >/dev/null
fm-pack -q -l --json trained >list/kinds
# With attention that is complete only up to a certain length.
fm-rank -q -n -m "$GOLDEN/odd-dsv32" -t "$GOLDEN/odd-dsv32/tokens.npy" --json >plan/longest
# With codes: additional keys.
code=$GOLDEN/packed/fp8-channel
fm-rank -q -m "$code" -t "$code/tokens.npy" --json -n >plan/codes
fm-rank -q -m "$code" -t "$code/tokens.npy" -f -o ranked >/dev/null 2>&1
fm-train -q -m "$code" -t "$code/tokens.npy" --method saliency -f -o trained ranked >/dev/null 2>&1
fm-pack -q -m "$code" --json -f -o codes.fm trained >pack/codes
fm-pack -q -x coded -b 0.4 --layout uniform --json codes.fm >export/coded
fm-pack -q -x small -b 0.4 --layout uniform --weights fp8 --json codes.fm >export/small
fm-pack -q -l --json codes.fm >list/codes
# With a layer for multi-token prediction.
python3 "$(dirname "$0")/mtp.py" make "$GOLDEN" glm4 ahead
fm-rank -q -m ahead -t ahead/tokens.npy --keep-extra --json -f -o ranked >rank/ahead 2>/dev/null
python3 - "$GOLDEN/../man/fm-json.5" <<'PYTHON'
import json
import re
import sys
from pathlib import Path

SECTION = {"plan": "DRY RUNS", "export": "FM-PACK --EXPORT", "list": "FM-PACK --LIST"}
SECTION |= {k: "FM-BENCH " + k.upper() for k in ("quality", "baselines", "loops")}

MAYBE = {"halved", "options"}  # depend on the speed of this machine

def keys(o):
    for k, v in o.items() if isinstance(o, dict) else ((None, v) for v in o) if isinstance(o, list) else ():
        if k:
            yield k
        if k not in ("kinds", "coverage"):  # names of files
            named = k in ("layouts", "formats") and isinstance(v, dict)
            yield from keys([*v.values()] if named else v)

words, section = {}, ""
for line in Path(sys.argv[1]).read_text().splitlines():
    if line.startswith(".Sh "):
        section = line[4:]
    cm = re.match(r"\.(?:It |Pq )?Cm (.*)", line)
    if cm:
        words.setdefault(section, set()).update(re.findall(r"[a-z_]+(?:-[a-z]+)?", cm[1]))
shared = words["DESCRIPTION"] | words["QUALITY"]
printed, everywhere = {}, set()
for path in sorted(Path(".").glob("[a-z]*/*")):
    if path.parent.name in SECTION or ("FM-" + path.parent.name.upper()) in words:
        name = SECTION.get(path.parent.name, "FM-" + path.parent.name.upper())
        printed.setdefault(name, set()).update(keys(json.loads(path.read_text())))
for name, have in printed.items():
    everywhere |= have
    print(f"{name}: not in the page:", *sorted(have - words[name] - shared - MAYBE))
    print("  never printed:", *sorted(words[name] - have - MAYBE))
print("shared, never printed:", *sorted(shared - everywhere))
PYTHON
examples fm-json.5
cat said
