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
between() { # between DIRECTORY: print the part of a card that has a digest
    sed '1,/^<!-- fm-pack: begin/d; /^<!-- fm-pack: end/,$d' "$1/README.md"
}
between ragged >card
jq -r '.files | to_entries[] | "\(.value.digest)  ragged/\(.key)"' ragged/fm-export.json | sed "s:ragged/README.md:card:" | xxhsum -c -

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
rm -rf bad && cp -r shards bad
sed -i 's/norm.weight": "model-00003/norm.weight": "model-00001/' bad/model.safetensors.index.json
check "an index that contradicts the headers" bad
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

echo "== README.md"
rm -rf bad && cp -r ragged bad
{
    echo "# Mine"
    cat ragged/README.md
    echo mine
} >bad/README.md
touch bad/notes.txt
check "outside of its marks" bad
check "outside of its marks, against its bundle" bad --against family.fm
sed -i 's/| mask /| mask 1/' bad/README.md
check "between its marks" bad
sed 's/^<!-- fm-pack: end -->/& &/' ragged/README.md >bad/README.md
check "a mark" bad
cat ragged/README.md ragged/README.md >bad/README.md
check "twice" bad
{
    cat ragged/README.md
    printf 'a\0b'
} >bad/README.md
check "not text" bad
head -c 5000000 /dev/zero | tr '\0' x | cat ragged/README.md - >bad/README.md
check "too large" bad
rm bad/README.md
check "gone" bad
fm-pack -q --force -x bad --budget 0.2 family.fm 2>complained >/dev/null
cat complained
rm bad/notes.txt
fm-pack -q --force -x bad --budget 0.2 family.fm >/dev/null && check "replaced" bad

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
check "--model" --model "$odd" ragged
check "--function" --function -t "$odd/tokens.npy" ragged
