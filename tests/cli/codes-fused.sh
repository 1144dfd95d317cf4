# Codes in tensors that have all experts of a layer are kept in bundles, and in exports of every layout.
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
for name in odd-step odd-mistral4 odd-q35; do
    echo "== $name"
    python3 "$here/recode.py" inner "$GOLDEN/$name" inner
    python3 "$here/recode.py" resize inner wide 24
    python3 "$here/recode.py" quantise wide model fp8:8x4
    python3 "$here/recode.py" plain model twin
    fm-rank -n -m model -t twin/tokens.npy 2>/dev/null | grep -E '^(stored|plain|codes)'
    family model 0.15 | grep codes
    fm-pack -q -m model -T 3 trained 2>/dev/null | cmp - family.fm && echo "pipe: same bytes"
    fm-rank -q -m twin -t twin/tokens.npy --precision f32 --channel-group 8 -f -o twin.fm >/dev/null
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
    rm -r inner wide model twin
done
