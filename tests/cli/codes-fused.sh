# Codes in tensors that have all experts of a layer are kept in bundles, and in exports of every layout.
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
for of in 'odd-step fp8:8x4' 'odd-mistral4 fp8:8x4' 'odd-q35 fp8:8x4' 'odd-mistral4 fp8-static' 'odd-step mixed-modelopt'; do
    echo "== $of"
    read -r name kind <<<"$of"
    python3 "$here/recode.py" inner "$GOLDEN/$name" inner
    case "$kind" in
    fp8:8x4) python3 "$here/recode.py" resize inner wide 24 && group=8 ;;
    fp8-static) mv inner wide && group=1 ;;
    *)
        python3 "$here/recode.py" grow inner grown 48
        python3 "$here/recode.py" resize grown wide 32
        group=16
        ;;
    esac
    python3 "$here/recode.py" quantise wide model "$kind"
    python3 "$here/recode.py" plain model twin
    fm-rank -n -m model -t twin/tokens.npy 2>/dev/null | grep -E '^(stored|plain|codes)'
    family model 0.15 | grep codes
    fm-pack -q -m model -T 3 trained 2>/dev/null | cmp - family.fm && echo "pipe: same bytes"
    fm-rank -q -m twin -t twin/tokens.npy --precision f32 --channel-group "$group" -f -o twin.fm >/dev/null
    cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) &&
        echo "scores of the float32 twin"
    verify --function -m model -t twin/tokens.npy family.fm | numbers
    for layout in native ragged elastic layer padded uniform; do
        plain=
        if [ $layout != native ]; then
            fm-pack -q --export plain --budget 0.45 --layout $layout --weights bf16 -f family.fm >/dev/null
            plain=plain
        fi
        fm-pack -q --export out --budget 0.45 --layout $layout -f family.fm | grep codes
        case $name-$layout in
        odd-q35-padded | odd-q35-uniform) ;; # these have a tensor for each expert
        *-padded) python3 "$here/compare.py" blank model family.fm out ;;
        *-uniform) python3 "$here/compare.py" export model family.fm out ;;
        *) python3 "$here/compare.py" flat model family.fm out $plain ;;
        esac
        verify --function -t twin/tokens.npy --against family.fm out | tail -n 1
        verify -m model --against family.fm out | tail -n 1
        verify out | tail -n 1
    done
    rm -rf inner grown wide model twin
done
echo "== the whole checkpoint, as released"
python3 "$here/recode.py" inner "$GOLDEN/odd-mistral4" inner
python3 "$here/recode.py" quantise inner text fp8-static
python3 "$here/recode.py" quantise "$GOLDEN/odd-mistral4" model fp8-static
family text 0.15 >/dev/null
mv ranked text.fm
family model 0.15 | grep codes
cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf text.fm ranking.safetensors) && echo "scores of its text part"
for layout in uniform 'padded --keep-extra'; do
    # shellcheck disable=SC2086 # an option
    fm-pack -q --export out --budget 0.45 --layout $layout -f family.fm | grep codes
    verify --function -t model/tokens.npy --against family.fm out | tail -n 1
    verify -m model --against family.fm out | tail -n 1
    grep -oE '"(weight_block_size|activation_scheme)".*' out/config.json
done
rm -r inner text model
echo "== not kept: a scale for each expert of one tensor, where exports have a tensor for each"
python3 "$here/recode.py" inner "$GOLDEN/odd-q35" inner
python3 "$here/recode.py" quantise inner model fp8-static
python3 "$here/recode.py" plain model twin
fm-rank -n -m model -t twin/tokens.npy 2>/dev/null | grep codes
family model 0.15 | grep codes
fm-rank -q -m twin -t twin/tokens.npy --precision f32 -f -o twin.fm >/dev/null
cmp <(tar -xOf ranked ranking.safetensors) <(tar -xOf twin.fm ranking.safetensors) &&
    echo "scores of the float32 twin"
verify --function -m model -t twin/tokens.npy family.fm | numbers
said fm-pack -q -m model --weights keep -f -o none.fm trained
python3 "$here/forge.py" family.fm liar.fm 'b.manifest["model"].update(storage="fp8", scales="BF16")'
said fm-verify -q liar.fm
echo "== an export that sets 19 keys of config.json"
rm -rf inner wide model
python3 "$here/recode.py" inner "$GOLDEN/odd-step" inner
python3 "$here/recode.py" resize inner wide 24
python3 "$here/recode.py" quantise wide model fp8:8x4
python3 - <<'PYTHON'
import json
with open("model/config.json") as f:
    config = json.load(f)
config |= {"dtype": "bfloat16", "mlp_layer_types": ["dense"] + 4 * ["sparse"]}
with open("model/config.json", "w") as f:
    json.dump(config, f)
PYTHON
family model 0.15 | grep codes
for weights in '' '--weights bf16'; do
    # shellcheck disable=SC2086 # an option
    fm-pack -q --export out --budget 0.45 --layout elastic --load-cap 0.3 $weights -f family.fm >/dev/null
    verify --against family.fm out | tail -n 1
done
