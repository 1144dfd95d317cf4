# An export without its bundle: fm-verify DIR compares its files with the table in fm-export.json.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency --until 0.5
pack() { fm-pack -q --budget 0.4 --base-model me/mine "$@" family.fm 2>/dev/null; }
with() { # with PYTHON: make a copy, `bad`, whose fm-export.json is edited as the object f
    rm -rf bad && cp -r ragged bad
    python3 - "$1" <<'END'
import json, sys
f = json.load(open("bad/fm-export.json"))
t = f.get("files")
exec(sys.argv[1])
json.dump(f, open("bad/fm-export.json", "w"), indent=2)
END
    check "$1" bad
}
for layout in native ragged elastic layer uniform padded; do
    pack -x $layout --layout $layout >/dev/null
    check "$layout" $layout
    pack -x - --layout $layout >tar
    mkdir un && tar xf tar -C un && diff -r un $layout && tar tf tar | tail -n 1
    rm -r un
done
pack -x fused --layout layer --for vllm >/dev/null
check "layer for vLLM" fused
pack -x shards --layout uniform --shard-size 60KB >/dev/null
check "uniform, several files" shards
fm-verify -q -n ragged | sed 's/, .*B:/:/'
fm-verify -q -n --record ragged | sed 's/, .*B:/:/'
jq -r '.files | to_entries[] | "\(.value.digest)  ragged/\(.key)"' ragged/fm-export.json | xxhsum -c -

echo "== files that changed"
cp -r shards bad && flip bad/model-00002-of-00003.safetensors 9000
check "a byte of a weight file" bad
truncate -s -1 bad/model-00001-of-00003.safetensors
check "a file cut short, too" bad
rm bad/model-00003-of-00003.safetensors
check "a file removed, too" bad
fm-verify -q --json bad 2>/dev/null | sed -n '/findings/,/\]/p' | grep -c item
rm -rf bad && cp -r shards bad && touch bad/notes.txt bad/.gitattributes && mkdir bad/more
check "added files" bad
fm-verify -q --json bad | grep -e not_listed -e not_compared
cp bad/model-00001-of-00003.safetensors bad/model.safetensors
check "an added weight file" bad
check "an added weight file, recorded" --record bad
rm -rf bad && cp -r shards bad
sed -i 's/norm.weight": "model-00003/norm.weight": "model-00001/' bad/model.safetensors.index.json
cp bad/fm-export.json before
check "an index that contradicts the headers, recorded" --record bad
cmp before bad/fm-export.json
python3 - <<'END'
import json, subprocess
name = "model.safetensors.index.json"
data = "bad/" + name
digest = subprocess.run(["xxhsum", "-H2", data], capture_output=True, text=True).stdout.split()[0]
f = json.load(open("bad/fm-export.json"))
f["files"][name] = {"bytes": len(open(data).read()), "digest": digest}
json.dump(f, open("bad/fm-export.json", "w"))
END
check "the same, listed" bad

echo "== --record"
rm -rf bad && cp -r ragged bad && check "nothing changed" --record bad && cmp bad/fm-export.json ragged/fm-export.json
echo mine >>bad/README.md && touch bad/notes.txt
check "README.md" bad
check "README.md recorded" --record bad
check "and checked" bad
rm bad/README.md && echo >>bad/modeling_fm.py
fm-verify -q --json --record bad | grep -e dropped -e recorded -e '"ok"'
check "without README.md" bad
sed -i 's/"hidden_size": /"hidden_size": 1/' bad/config.json
check "config.json" bad
cp bad/fm-export.json before
check "config.json recorded" --record bad
cmp before bad/fm-export.json
fm-pack -q --force -x bad --budget 0.2 family.fm 2>complained >/dev/null
cat complained
rm bad/notes.txt
fm-pack -q --force -x bad --budget 0.2 family.fm >/dev/null && check "replaced" bad
fm-bench quality -q --eval-tokens "$odd/tokens.npy" --seq-len 8 --max-eval-tokens 80 --record bad >/dev/null
check "with figures of fm-bench" bad
check "against its bundle" bad --against family.fm

echo "== tables"
with 'f["files"] = sorted(t)'
with 'del f["files"]'
with 't["../config.json"] = t["config.json"]'
with 't["/etc/passwd"] = t["config.json"]'
with 't[".."] = t["config.json"]'
with 't[""] = t["config.json"]'
with 't["fm-export.json"] = t["config.json"]'
with 't["a" * 300] = t["config.json"]'
with 't["config.json"] = 7'
with 't["config.json"]["bytes"] = -1'
with 't["config.json"]["bytes"] = 2**60'
with 't["config.json"]["bytes"] = 1.5'
with 't["config.json"]["bytes"] = "1"'
with 't["config.json"]["bytes"] = 2**53'
with 'del t["config.json"]["bytes"]'
with 't["config.json"]["digest"] = "00"'
with 't["config.json"]["digest"] = t["config.json"]["digest"].upper()'
with 't["config.json"]["digest"] = 5'
with 't["config.json"]["digest"] = "0" * 32'
with 'f["schema"] = 2'
with 'f["layout"] = "x"'
with 'f["budget"] = "x"'
with 'del t["model.safetensors"]'
with 'f["files"] = {}'
with 'f = []'
rm -rf bad && cp -r ragged bad
sed -i 's/"files": {/&"config.json": {"bytes": 1},/' bad/fm-export.json
check "a name twice" bad
rm bad/fm-export.json
check "no fm-export.json" bad

echo "== options"
check "--record of a bundle" --record family.fm
check "--record with a bundle" --record ragged --against family.fm
check "--model" --model "$odd" ragged
check "--function" --function -t "$odd/tokens.npy" ragged
