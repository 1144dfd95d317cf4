# kimi_k2 is deepseek_v3 with another model_type: outputs record which it was; the modelling file
# has one class for both.
model=$GOLDEN/odd-moonlight
mkdir model
cp "$model"/* model
sed -i 's/"deepseek_v3"/"kimi_k2"/' model/config.json
fm-rank -q --model model --tokens "$model/tokens.npy" -o ranked >/dev/null 2>&1
fm-train -q --model model --tokens "$model/tokens.npy" --method saliency --budget-step 0.1 \
    -o trained ranked >/dev/null 2>&1
fm-pack -q --model model -o family.fm trained >/dev/null
fm-pack --list --json family.fm | grep '"family"'
tar -xOf family.fm manifest.json | grep -E '"(schema|family)"'
for layout in ragged padded; do
    fm-pack -q --export $layout --budget 0.4 --layout $layout family.fm >/dev/null
    grep -A1 -E '"(architectures|model_type)"' $layout/config.json
    fm-verify -q --function --tokens "$model/tokens.npy" --against family.fm $layout |
        sed 's/^function:.*/function: the same/; s/budget 0[.0-9]*/budget B/; s/, [0-9.]* kB:/, N kB:/'
done
echo "== a stage of one is refused for the other"
cp -r "$model" stock
fm-pack -q --model stock -o other.fm trained
echo "status $?"
echo "== another architecture under that name is refused"
sed -i 's/DeepseekV3ForCausalLM/KimiForCausalLM/' model/config.json
fm-rank -q --model model --tokens "$model/tokens.npy" -o refused
echo "status $?"
