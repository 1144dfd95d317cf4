# FP8 in blocks: the values are those of the format, bundles and exports store them in bfloat16, and
# broken files and other schemes are refused.
# shellcheck source=tests/cli/least.bash
. "$(dirname "$0")/least.bash"
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
model=$GOLDEN/odd-fp8
tokens=(--tokens "$model/tokens.npy")
# same MODEL TOKENS: compare the ranking of a model with that of the float32 model of its values
same() {
    python3 "$here/recode.py" plain "$1" wide
    for x in "$1" wide; do
        fm-rank -q --model "$x" --tokens "$2" --device ref -f -o ranked >/dev/null 2>&1
        tar -xOf ranked ranking.safetensors | xxhsum -H2 -
    done | uniq | wc -l | sed 's/^1$/same/'
    rm -r wide
}
echo "== the same ranking as the plain float32 model of these values, to the last bit"
same "$model" "$model/tokens.npy"
echo "== other families, in blocks of 16 x 24"
for name in odd-dsv3 odd-minimax odd-glm4 odd-hy3 odd-glm5 odd-axk1 odd-afmoe odd-laguna odd-mimo \
    odd-step odd-mistral4 odd-q35; do
    from=$GOLDEN/$name
    if grep -q text_config "$from/config.json"; then
        python3 "$here/recode.py" inner "$from" inner
        from=inner
    fi
    python3 "$here/recode.py" quantise "$from" made fp8:16x24
    echo "$name: $(same made made/tokens.npy)"
    fm-rank -q --model made --tokens made/tokens.npy -o ranked -f >/dev/null 2>&1
    fm-train -q --model made --tokens made/tokens.npy --method saliency --budget-step 0.2 \
        -f -o trained ranked >/dev/null 2>&1
    fm-pack -q --model made -f -o family.fm trained >/dev/null
    python3 "$here/compare.py" values made family.fm
    fm-verify -q --function --model made --tokens made/tokens.npy family.fm | numbers
    rm -rf made inner
done
echo "== layers for multi-token prediction stay as they are stored"
python3 "$here/recode.py" quantise "$GOLDEN/odd-glm4" made fp8:16x24
python3 "$here/ahead.py" made ahead 4 1 fp8 scaled
fm-rank -q --model ahead --tokens ahead/tokens.npy -f -o ranked >/dev/null 2>&1
fm-train -q --model ahead --tokens ahead/tokens.npy --method saliency --budget-step 0.2 -f \
    -o trained ranked >/dev/null 2>&1
fm-pack -q --model ahead -f -o family.fm trained | grep -E '^(extra|stored|plain)'
fm-pack --list family.fm | grep -E '^(extra|checkpoint)'
tar -xOf family.fm weights/extra.safetensors | grep -aoE 'F8_E4M3'
fm-pack -q --model ahead --weights bf16 -f -o plain.fm trained >/dev/null
for family in family.fm plain.fm; do
    tar -xOf "$family" weights/extra.safetensors >extra
    python3 -c 'from tensors import unpack; read = lambda name: unpack(open(name, "rb").read())
print("byte for byte:", read("extra") == read("ahead/z-ahead.safetensors"))'
done
fm-verify -q --function --model ahead --tokens made/tokens.npy family.fm | numbers
fm-pack -q --export out --budget 0.4 --layout padded family.fm >/dev/null
fm-verify -q --function --tokens made/tokens.npy --against family.fm out | numbers
fm-pack -q --export kept --budget 0.4 --layout padded --keep-extra family.fm
echo "status $?"
rm -rf ahead made out extra ranked trained family.fm plain.fm
echo "== bytes do not depend on threads, memory or the kind of output"
stages() { # stages NAME WITH OPTION...: run the stages through the command WITH (env, little)
    local name=$1 with=$2
    shift 2
    "$with" fm-rank -q --model "$model" "${tokens[@]}" "$@" -o "$name.rank" >/dev/null 2>&1
    "$with" fm-train -q --model "$model" "${tokens[@]}" --method saliency --budget-step 0.1 "$@" \
        -o "$name.train" "$name.rank" >/dev/null 2>&1
    "$with" fm-recover -q --model "$model" "${tokens[@]}" --budget 0.3 --steps 3 --batch 2 "$@" \
        -o "$name.recover" "$name.train" >/dev/null 2>&1
    fm-pack -q --model "$model" --threads "$2" -o "$name.fm" "$name.recover" >/dev/null
}
stages one env --threads 1
stages three little --threads 3
fm-pack -q --model "$model" --threads 2 one.recover 2>/dev/null >piped.fm
for stage in rank train recover fm; do
    cmp one.$stage three.$stage && echo "$stage: same"
done
cmp one.fm piped.fm && echo "pipe: same"
echo "== a bundle has the values rounded once, and computes with them; with an adapter too"
fm-pack -q --model "$model" -o plain.fm one.train >/dev/null
python3 "$here/compare.py" values "$model" plain.fm
for bundle in plain one; do
    fm-verify -q --function --model "$model" "${tokens[@]}" $bundle.fm | numbers
done
echo "== exports are plain bfloat16"
for layout in native ragged elastic layer uniform padded; do
    fm-pack -q --export out --budget 0.4 --layout $layout --force one.fm >/dev/null
    fm-verify -q --function "${tokens[@]}" --against one.fm out | numbers
    grep -cE 'quantization|scale_inv|F8_E' out/*.json
    grep torch_dtype out/config.json
done
diff "$model/config.json" out/config.json
echo "== the bytes of stored and of plain weights"
fm-rank --model "$model" "${tokens[@]}" --dry-run 2>&1 | grep -E '^(stored|plain)'
fm-pack --model "$model" --dry-run one.recover | grep -E '^(weights|stored|plain)'
fm-pack --model "$model" --dry-run --json one.recover | grep -E '"(storage|bytes_(in|stored|plain))"'
fm-pack --list one.fm | grep stored
fm-pack --list --json one.fm | grep -E '"(storage|bytes_stored|bytes_plain)"'
echo "== a stage stream does not fit the plain model of the same values"
fm-train -q --model wide "${tokens[@]}" --method saliency -o refused one.rank 2>&1 |
    sed 's/digest [0-9a-f]*/digest D/; s/has [0-9a-f]*;/has D;/'
