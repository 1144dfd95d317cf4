# Every family except Mixtral, which most tests use: the pipeline in one pipe, and exports of every layout,
# which compute the bundle's function.  Also models in which some layers have no experts.
set -o pipefail
numbers() {
    sed 's/[0-9]* items, .*B:/items:/; s/budget 0[.0-9]*/budget B/; s/loss [.0-9]*, want [.0-9]*;/loss:/
        s/differ by [-e.0-9]* at most/differ by D at most/'
}
for model in "$GOLDEN"/odd-*; do
    name=${model##*/}
    case $name in odd-mixtral | odd-fp8) continue ;; esac
    echo "== $name"
    fm-rank -q --model "$model" --tokens "$model/tokens.npy" 2>/dev/null |
        fm-train -q --model "$model" --tokens "$model/tokens.npy" --eval-tokens "$model/tokens.npy" \
            --method saliency --budget-step 0.1 2>/dev/null |
        fm-recover -q --model "$model" --tokens "$model/tokens.npy" --steps 3 --batch 2 \
            --eval-tokens "$model/tokens.npy" 2>/dev/null |
        fm-pack -q --model "$model" -o family.fm >/dev/null
    echo "pipeline: ${PIPESTATUS[*]}"
    fm-pack --list --json family.fm | grep -E '"(family|layers|experts|channels)"'
    fm-verify -q --function --model "$model" --tokens "$model/tokens.npy" family.fm | numbers
    for export in native:0.4 native:0.8 ragged:0.8 elastic:0.4 layer:0.8 padded:0.4 uniform:0.8; do
        fm-pack -q --export out --layout "${export%:*}" --budget "${export#*:}" --force family.fm >/dev/null
        fm-verify -q --function --tokens "$model/tokens.npy" --against family.fm out | numbers
    done
    for budget in 0.4 0.6; do
        fm-pack -q --export capped --budget $budget --layout elastic --load-cap 0.35:0.65 --force \
            family.fm | grep -c '^freed *[1-9]'
        fm-verify -q --function --tokens "$model/tokens.npy" --against family.fm capped | numbers
    done
    rm -r capped
    grep -E '"(architectures|model_type|intermediate_size|(moe_|expert_)[a-z_]*(size|dim))"' out/config.json
    rm -r family.fm out
done
echo "== layers without experts have no widths, no scores, no file"
model=$GOLDEN/odd-qwen2
fm-rank -q --model "$model" --tokens "$model/tokens.npy" -o ranked >/dev/null 2>&1
fm-train -q --model "$model" --tokens "$model/tokens.npy" --method saliency -o trained ranked >/dev/null 2>&1
fm-pack -q --model "$model" -o family.fm trained >/dev/null
tar -xOf family.fm manifest.json | grep moe_layers
fm-pack -q --export out --budget 0.4 --layout native family.fm >/dev/null
(cd out && ls layers-*)
grep -A7 '"widths"' out/fm-export.json | tr -d '0-9, '
fm-pack -q --export fused --budget 0.4 --layout layer --for vllm --shard-size 30KB \
    --pad-multiple 4 family.fm >/dev/null
fm-verify -q --against family.fm fused | numbers
grep '"moe_intermediate_size"' fused/config.json | sed 's/[1-9][0-9]*/K/g'
fm-pack -q --export cut --budget 0.6 --layout ragged family.fm >/dev/null
fm-rank -q --model cut --tokens "$model/tokens.npy" -o refused 2>&1 |
    sed 's/expert [0-9]* has [0-9]*/expert E has N/'
echo "== other families and quantized checkpoints are refused before any work"
mkdir model
cp "$model"/* model
sed -i 's/"qwen2_moe"/"deepseek_v4"/' model/config.json
fm-rank -q --model model --tokens model/tokens.npy -o refused 2>said
echo "status $?"
sed 's/\(supported: mixtral,\).*/\1 and more/' said >&2
rm said
cp "$model/config.json" model
sed -i 's/^{/{\n  "quantization_config": {"quant_method": "mxfp4"},/' model/config.json
fm-rank -q --model model --tokens model/tokens.npy -o refused
echo "status $?"
cp "$model/config.json" model
sed -i 's/"use_sliding_window": false/"use_sliding_window": true/' model/config.json
fm-rank -q --model model --tokens model/tokens.npy -o refused
echo "status $?"
