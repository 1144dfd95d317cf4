# A shared expert whose width config.json gives as a number of experts.  If a stock layout makes the experts
# narrower, that number grows, and zeros follow the shared expert's own channels.  fm-verify checks the
# zeros and the channels, and fm-pack's forecast of the export's size is exact.
model=$GOLDEN/odd-glm4 # 38 channels, as many as two experts of 19
fm-rank -q --model "$model" --tokens "$model/tokens.npy" -o ranked >/dev/null 2>&1
fm-train -q --model "$model" --tokens "$model/tokens.npy" --method saliency --budget-step 0.1 \
    -o trained ranked >/dev/null 2>&1
fm-pack -q --model "$model" -o family.fm trained >/dev/null
numbers() {
    sed 's/^function:.*/function: the same/; s/budget 0[.0-9]*/budget B/; s/, [0-9.]* kB:/, N kB:/'
}
shared=model.layers.2.mlp.shared_experts
entry() { # entry FILE TENSOR: print its entry of the header
    head -c 100000 "$1" | tr '{' '\n' | grep -a -A 1 "\"$2\":" | tail -n 1
}
place() { # place FILE TENSOR: print where its bytes begin and end in the file
    local header ends
    header=$(od -A n -t u8 -N 8 "$1")
    ends=$(entry "$1" "$2" | grep -a -o '"data_offsets":\[[0-9,]*' | cut -d '[' -f 2)
    echo $((8 + header + ${ends%,*})) $((8 + header + ${ends#*,}))
}
flip() { # flip FILE PLACE: flip a bit; a second call restores it
    printf '%b' "\\$(printf %o $((128 ^ $(od -A n -t u1 -j "$2" -N 1 "$1"))))" |
        dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
for budget in 0 0.4; do
    fm-pack -q --export "uniform-$budget" --budget $budget --layout uniform family.fm >/dev/null
    grep -E '"(moe_intermediate_size|n_shared_experts)"' "uniform-$budget/config.json"
    for part in gate up down; do
        entry "uniform-$budget/model.safetensors" $shared.${part}_proj.weight | grep -o '"shape":[^]]*]'
    done
    fm-verify -q --function --tokens "$model/tokens.npy" --against family.fm "uniform-$budget" |
        numbers
done
fm-pack -q --export - --budget 0.4 --layout uniform family.fm | (mkdir stream && tar xf - -C stream)
diff -r stream uniform-0.4 && echo "a stream has the same files"
echo "== zeros and channels are checked separately"
file=uniform-0.4/model.safetensors
for part in gate down; do
    # shellcheck disable=SC2046 # two words
    set -- $(place $file $shared.${part}_proj.weight)
    for at in "$1" $(($2 - 1)); do
        flip $file "$at"
        fm-verify -q --against family.fm uniform-0.4 | numbers
        flip $file "$at"
    done
done
fm-verify -q --against family.fm uniform-0.4 | numbers
echo "== the first members of a bundle are enough"
end=$(tar tRf family.fm | grep -m 1 weights/ | tr -d -c '0-9 ' | cut -d ' ' -f 2)
head -c $((512 * end)) family.fm >head.fm
fm-verify -q --against head.fm uniform-0 | numbers
fm-verify -q --against head.fm uniform-0.4 2>&1 | numbers
echo "== other keys for vLLM's form, where the width is a list"
fm-pack -q --export fused --budget 0.4 --layout layer --for vllm family.fm >/dev/null
grep -E '"(moe_intermediate_size|n_shared_experts|fm_shared)"' fused/config.json
