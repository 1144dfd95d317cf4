# Layers for multi-token prediction: the ranking, the masks and all other weights are as without them;
# bundles keep them byte for byte, exports leave them out or keep them.  Also layers that only resemble them.
set -o pipefail
ahead=$(dirname "$0")/ahead.py
forge=$(dirname "$0")/forge.py
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
glm=$GOLDEN/odd-glm4

# pack MODEL TO: a family by saliency
pack() {
    fm-rank --model "$1" --tokens "$1/tokens.npy" -f -o ranked 2>&1 >/dev/null | grep config.json
    fm-train -q --model "$1" --tokens "$1/tokens.npy" --method saliency --budget-step 0.2 \
        --until 0.6 -f -o trained ranked >/dev/null 2>&1
    fm-pack --model "$1" -o "$2" trained
}

echo "== they are kept"
python3 "$ahead" "$glm" plain "" 0
python3 "$ahead" "$glm" one 4 1
python3 "$ahead" "$glm" eight 4,5 2 fp8
pack plain plain.fm | grep extra
pack one one.fm | grep extra
pack eight eight.fm | grep extra
fm-pack -q --model eight --dry-run -o dry.fm trained | grep extra
fm-pack --list one.fm | grep extra
fm-pack --list --json eight.fm | grep -A 4 '"extra"'
tar -xOf one.fm manifest.json | grep -E '"schema"|weights/extra'
fm-verify -q --function --model one --tokens one/tokens.npy one.fm >/dev/null && echo verified
# shellcheck disable=SC2002
cat eight.fm | fm-verify -q - >/dev/null && echo verified
fm-pack -q --model eight trained | cmp - eight.fm && echo "the same to a pipe"

echo "== nothing else is changed by them"
tar -xOf one.fm ranking.safetensors | cmp - <(tar -xOf plain.fm ranking.safetensors) && echo same
tar -xOf one.fm masks.zst | cmp - <(tar -xOf plain.fm masks.zst) && echo same
tar -xOf one.fm weights/rest.safetensors | cmp - <(tar -xOf plain.fm weights/rest.safetensors) && echo same
python3 - <<'PYTHON'
from tensors import members, unpack
kept = unpack(members("eight.fm")["weights/extra.safetensors"])
print("byte for byte:", kept == unpack(open("eight/z-ahead.safetensors", "rb").read()), len(kept))
PYTHON

echo "== exports leave them out"
for layout in native ragged elastic layer padded; do
    fm-pack -q --export out --budget 0.2 --layout $layout one.fm | grep extra
    grep -h num_nextn out/config.json
    grep -h multi-token out/README.md
    fm-verify -q --function --tokens one/tokens.npy --against one.fm out >/dev/null && echo verified
    rm -r out
done

echo "== and keep them if their width can be determined"
for layout in native ragged elastic layer uniform padded; do
    fm-pack -q --export out-$layout --budget 0.2 --keep-extra --layout $layout one.fm |
        grep extra || continue
    grep -h num_nextn out-$layout/config.json
    grep -hE 'multi-token|fm-pack --export' out-$layout/README.md
    fm-verify -q --function --tokens one/tokens.npy --against one.fm out-$layout >/dev/null &&
        echo verified
done
fm-rank -q --model out-padded --tokens one/tokens.npy -o again >/dev/null 2>&1 && echo "ranked again"
weights=$(tar -xOf one.fm manifest.json | grep -A 2 -m 1 '"weights/' | grep offset | tr -dc 0-9)
head -c "$weights" one.fm >begun
fm-verify -q --against begun out-padded >/dev/null && echo "verified by the first members"
fm-pack -q --export out --budget 0.2 --keep-extra --layout padded eight.fm
fm-pack -q --export out --budget 0.2 --keep-extra --layout padded plain.fm
fm-pack -q --export out --budget 0.2 --keep-extra --layout padded --dry-run --json one.fm |
    grep -A 5 '"extra"'

echo "== config.json and the checkpoint disagree"
python3 "$ahead" "$glm" more 4,5 1
python3 "$ahead" "$glm" unsaid 4 0
python3 "$ahead" "$glm" gone "" 1
for name in more unsaid gone; do
    pack $name $name.fm 2>&1 | grep -E 'warning|extra'
done
fm-pack -q --export out --budget 0.2 --layout padded gone.fm >/dev/null
grep -h num_nextn out/config.json
rm -r out

echo "== layers that only resemble them"
python3 "$ahead" "$glm" unmarked 4 1 unmarked
python3 "$ahead" "$glm" far 4,20 1
python3 "$ahead" "$glm" many 4 17
python3 "$ahead" "$glm" index 4 1 index
python3 "$ahead" "$glm" sparse 4 1 index_topk=4
python3 "$ahead" "$GOLDEN/odd-qwen3" qwen 3 1
for name in unmarked far many index sparse qwen; do
    fm-rank -q --model $name --tokens $name/tokens.npy -f -o refused
    echo "status $?"
done

echo "== other names, other keys"
python3 "$ahead" "$GOLDEN/odd-ernie" ernie 0 1 ernie
python3 "$ahead" "$GOLDEN/odd-minimax" minimax "" 0 num_mtp_modules=3 use_mtp=true
for name in ernie minimax; do
    pack $name $name.fm 2>&1 | grep -E 'warning|extra'
    fm-pack -q --export out --budget 0.2 --layout padded $name.fm >/dev/null
    grep -hE 'nextn|mtp' out/config.json
    fm-verify -q --against $name.fm out >/dev/null && echo verified
    rm -r out
done

echo "== layers without experts have nothing to rank or narrow"
python3 "$ahead" "$GOLDEN/odd-exaone" exaone 0 1 beside
fm-rank -q --keep-extra --model exaone --tokens exaone/tokens.npy -f -o ranked | head -1
fm-train -q --model exaone --tokens exaone/tokens.npy --method saliency --budget-step 0.2 --until 0.6 -f \
    -o trained ranked >/dev/null 2>&1
fm-pack -q --model exaone -o exaone.fm trained >/dev/null
fm-pack -q --export out --budget 0.2 --layout uniform --keep-extra exaone.fm | grep extra
fm-verify -q --against exaone.fm out >/dev/null && echo verified
rm -r out

echo "== unused tensors, and tensors of other types, are reported if there are any"
python3 "$ahead" "$GOLDEN/odd-mixtral" buffer "" 0 buffer
pack buffer buffer.fm >/dev/null
tar -xOf buffer.fm manifest.json | grep -A 6 '"others"'
tar -xOf one.fm manifest.json | grep -A 2 '"others"'
fm-verify -q trained >/dev/null && fm-verify -q buffer.fm >/dev/null && echo verified

echo "== damage and false statements are found"
at=$(tar -xOf one.fm manifest.json | grep -A 3 'weights/extra' | grep offset | tr -dc 0-9)
cp one.fm damaged.fm
flip damaged.fm $((at + 9000))
check "a byte" damaged.fm
fm-pack -q --export out --budget 0.2 --keep-extra --layout padded damaged.fm
cp -r out-padded edited
flip edited/model.safetensors $(($(stat -c %s edited/model.safetensors) - 5))
check "a byte of an export" edited --against one.fm
# lie TITLE CODE
lie() {
    python3 "$forge" one.fm lie.fm "$2"
    check "$1" lie.fm
}
lie "the manifest lists none" 'b.manifest["model"].pop("extra")'
lie "other bytes in the manifest" 'b.manifest["model"]["extra"]["bytes"] += 1'
lie "another layer" 'b.manifest["model"]["extra"]["layers"] = [5]'
lie "a decoder layer" 'b.manifest["model"]["extra"]["layers"] = [3]'
lie "layers not in order" 'b.manifest["model"]["extra"]["layers"] = [5, 4]'
lie "the member is gone" 'b.member.pop("weights/extra.safetensors")'
