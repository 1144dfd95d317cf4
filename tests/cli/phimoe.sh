# Features specific to PhiMoE: sequences are limited to the range of longrope's short factors, and stock
# exports have the class name that servers use, whichever version of transformers wrote the checkpoint.
phi=$GOLDEN/odd-phimoe
fm-rank -q --model "$phi" --tokens "$phi/tokens.npy" --seq-len 33 -o none
echo "status $?"
fm-rank -q --model "$phi" --tokens "$phi/tokens.npy" -o ranked >/dev/null
fm-train -q --model "$phi" --tokens "$phi/tokens.npy" --method saliency --budget-step 0.1 \
    -o trained ranked >/dev/null
fm-pack -q --model "$phi" -o family.fm trained >/dev/null
for layout in native ragged elastic padded uniform; do
    fm-pack -q --export "$layout" --budget 0.4 --layout "$layout" family.fm >/dev/null
    fm-verify -q "$layout" --against family.fm >/dev/null
    echo "$layout: status $?, $(grep -A 1 architectures "$layout/config.json" | tail -n 1)"
done
for layout in padded uniform; do # if config.json already has that name, only the width changes
    diff "$phi/config.json" "$layout/config.json"
done
