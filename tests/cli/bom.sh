# Bills of materials of bundles and exports: their contents, which do not depend on the directory in
# which they are made, and refusals.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
said() { # sizes differ between CPUs
    sed 's/, [0-9.]* [kM]*B\([,:]\)/, SIZE\1/'
}
try() { # try ARGUMENT...: print fm-pack's messages and status
    fm-pack "$@" >printed 2>complained </dev/null
    local status=$?
    said <printed
    sed "s:$PWD/::; s:${GOLDEN%/*}/::" complained
    echo "status $status"
}
outline() { # outline BILL: print its structure without figures and digests
    python3 - "$1" <<'END'
import json, re, sys
b = json.load(open(sys.argv[1]))
c = b["metadata"]["component"]
p = c["pedigree"]["ancestors"][0]
print(b["bomFormat"], b["specVersion"], re.sub("[0-9a-f]", "x", b["serialNumber"].removeprefix("urn:uuid:")), "timestamp" in b["metadata"])
print("component:", c["type"], re.sub(r"\d\.\d+", "B", c["name"]), json.dumps(c.get("licenses")))
print("parent:", p["name"], p.get("version"), p.get("purl"), [f["name"] for f in p["components"]])
print("files:", *(f["name"] + " " + f["hashes"][0]["alg"] for f in b["components"]))
m = c["modelCard"]
print("datasets:", *(d["name"] + " (" + d["description"].split(";")[0] + ")" for d in m["modelParameters"]["datasets"]), sep="\n  ")
print("measured:", *sorted({re.sub(r"\d\.\d+|[0-9a-f]{32}", "N", x["type"] + ": " + x["slice"])
                            for x in m["quantitativeAnalysis"]["performanceMetrics"]}), sep="\n  ")
for t in b["formulation"][0]["workflows"][0]["tasks"]:
    print("stage:", t["name"], len(t["properties"]) > 1)
END
}
hub=$PWD/hub/models--me--mine/snapshots/0123abc
mkdir -p "$hub" && cp "$odd"/* "$hub"
printf -- '---\nlicense: other\nlicense_name: mine\nlicense_link: https://example.org/license\n---\n# Mine\n' >"$hub/README.md"
odd=$hub
family saliency --until 0.5 --eval-tokens "$odd/tokens.npy"
fm-pack -q --export out --budget 0.4 family.fm >/dev/null
fm-bench quality -q --eval-tokens "$odd/tokens.npy" --seq-len 8 --max-eval-tokens 80 --record out >/dev/null

echo "== a bundle, an export"
try --bom --model "$odd" family.fm
outline family.fm.bom.cdx.json
try --bom --from family.fm out
outline out/bom.cdx.json
HF_HUB_CACHE=$PWD/hub try --bom --force --from family.fm --model me/mine out # refs/main is missing
mkdir "$hub/../../refs" && printf 0123abc >"$hub/../../refs/main"
HF_HUB_CACHE=$PWD/hub try --bom --force --from family.fm --model me/mine out
outline out/bom.cdx.json | grep parent
try --bom --force --from family.fm --base-model you/yours out
outline out/bom.cdx.json | grep parent
fm-pack --bom --force --json --from family.fm out | grep -v -e seconds -e bytes

echo "== the same bytes"
cp out/bom.cdx.json first
mkdir elsewhere && cp -r out elsewhere/other && rm elsewhere/other/bom.cdx.json
head -c "$(($(tar -tRf family.fm | sed -n 's/^block \([0-9]*\): weights.*/\1/p' | head -n 1) * 512))" family.fm >first.fm
(cd elsewhere && TZ=Asia/Tokyo LC_ALL=C.UTF-8 fm-pack -q -T 1 --bom --from ../first.fm other >/dev/null)
cmp first elsewhere/other/bom.cdx.json && echo "in another directory, from the first members"
echo >>out/README.md && fm-pack -q --bom --force --from family.fm out >/dev/null
cmp -s first out/bom.cdx.json || echo "a different file has a different bill"
grep -h serial first out/bom.cdx.json | sort -u | wc -l

echo "== next to other files of an export"
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem 2>/dev/null
fm-verify -q --record out | said
fm-pack -q --bom --force --from family.fm out | said
fm-verify -q --sign key.pem out | sed 's/key [0-9a-f]*/key KEY/' | said
fm-verify -q out | figures
fm-verify -q --against family.fm out | figures
try --bom --force --from family.fm out
fm-pack -q --force -x out --budget 0.2 family.fm >/dev/null && ls out

echo "== refused"
try --bom
try --bom out
try --bom --from family.fm family.fm
try --bom absent.fm
try --bom trained
try --bom --from absent.fm out
mkdir empty && try --bom --from family.fm empty
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --method saliency --budget-step 0.25 -o other ranked >/dev/null
fm-pack -q --model "$odd" -o other.fm other >/dev/null
try --bom --from other.fm out 2>&1 | sed 's/is [0-9]*, but mask [0-9]*/is N, but mask N/; s/removes [0-9]*/removes N/'
try --bom --model "$GOLDEN/tiny-mixtral" family.fm | figures
try --bom --base-model nonsense family.fm
try --bom --list family.fm
try --bom --export x family.fm
try --bom --budget 0.4 family.fm
try --from family.fm out
try --bom family.fm
rm -f family.fm.bom.cdx.json && mkdir family.fm.bom.cdx.json && try --bom --force family.fm
sed -i 's/"index": /"index": 99/' out/fm-export.json && try --bom --from family.fm out | figures
sed -i 's/"ranking": "./"ranking": "z/' out/fm-export.json && try --bom --from family.fm out
echo '{' >out/fm-export.json && try --bom --from family.fm out
