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
for layout in padded uniform ragged; do # servers' own code for stock names ignores the head's bias
    echo "$layout, commands for servers: $(grep -cE '^ +vllm serve' "$layout/README.md") vLLM," \
        "$(grep -c sglang.launch_server "$layout/README.md") SGLang," \
        "$(grep -c PACKAGE=fm_sglang "$layout/README.md") of it by the package"
done
echo "llama.cpp, which computes something else, in the card: $(grep -c llama.cpp uniform/README.md)"
for layout in padded uniform; do # if config.json already has that name, only the width changes
    diff "$phi/config.json" "$layout/config.json"
done
