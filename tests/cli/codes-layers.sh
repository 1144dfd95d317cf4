# Checkpoints whose layers are stored in different ways keep their codes, each layer in its own form;
# plain layers, like the first and the last layers of many releases, stay plain.
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
layer='.*layers\.1\..*experts\.\d+\.(?:gate|up|down)_proj'
for both in 'nvfp4 fp8-channel' 'fp8-block nvfp4' 'mxfp4 w4a16' 'fp8-channel mxfp8' 'nvfp4-modelopt' 'mxfp4' 'mixed'; do
    echo "== $both"
    read -r name other <<<"$both"
    rm -rf joined
    if [ "$other" ]; then
        python3 "$here/recode.py" join "$GOLDEN/packed/$name" "$GOLDEN/packed/$other" "$layer" joined
    else
        python3 "$here/recode.py" ease "$GOLDEN/packed/$name" "$layer" joined
    fi
    python3 "$here/recode.py" plain joined twin
    fm-rank -n -m joined -t twin/tokens.npy 2>/dev/null | grep -E '^(stored|codes)' | tee said
    family joined 0.15 | grep codes
    group=$(sed -n 's/^codes.*groups of \([0-9]*\).*/\1/p' said)
    fm-rank -q -m twin -t twin/tokens.npy --precision f32 --channel-group "$group" -f -o twin.fm >/dev/null
    cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) &&
        echo "scores of the float32 twin"
    fm-pack -q -m joined -T 3 trained 2>/dev/null | cmp - family.fm && echo "pipe: same bytes"
    fm-pack -q --export uniform --budget 0.5 --layout uniform -f family.fm | grep -E '^(export|codes)'
    python3 "$here/compare.py" export joined family.fm uniform
    verify -m joined family.fm
    verify --function -m joined -t twin/tokens.npy family.fm | tail -n 1
    verify -m joined --against family.fm uniform | tail -n 1
    verify --function -t twin/tokens.npy --against family.fm uniform | tail -n 1
    fm-pack -q --export out --budget 0.45 --layout padded -f family.fm | grep -E '^(export|codes)'
    verify --function -t twin/tokens.npy --against family.fm out | tail -n 1
    for form in ragged native 'uniform --weights bf16'; do
        read -ra form <<<"$form"
        fm-pack -q --export out --budget 0.5 --layout "${form[@]}" -f family.fm | grep codes
        verify --function -t twin/tokens.npy --against family.fm out | tail -n 1
    done
    rm -r twin
done
fm-pack --list family.fm | grep 'stored as'
grep 'stored as' uniform/README.md
said fm-pack -q --export none --budget 0.5 --layout ragged --weights keep family.fm
said fm-pack -q --export none --budget 0.5 --layout native --weights keep family.fm
for edit in 'model["storage"][0] = None' 'model["scales"][0] = None' 'model["storage"].pop()' 'model["storage"] = 3' \
    'model["storage"][1] = "nvfp4"' 'model["scales"][0] = "F32"' 'model["scales"][0] = "X"' \
    'model["storage"] = model["scales"] = [None, None]'; do
    python3 "$here/forge.py" family.fm liar.fm "model = b.manifest[\"model\"]; $edit"
    said fm-pack -q --export none --budget 0 --layout uniform liar.fm
done
