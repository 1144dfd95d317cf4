# Layouts that store experts in flat tensors keep a bundle's codes.  Layout native also keeps all other
# tensors as they are in the bundle; the layouts with our modelling file store them as plain values.
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
python3 "$here/recode.py" gptoss "$GOLDEN/odd-gptoss" gpt-oss
for name in odd-qwen3 odd-dsv3; do
    python3 "$here/recode.py" resize "$GOLDEN/$name" wide 24
    python3 "$here/recode.py" quantise wide fp8-$name fp8:8x4
    [ $name = odd-qwen3 ] || python3 "$here/recode.py" quantise wide int4-$name w4a16:8
    rm -r wide
done
for name in fp8-channel fp8-static w4a16 nvfp4 nvfp4-modelopt mxfp4 mxfp8 mixed; do
    cp -r "$GOLDEN/packed/$name" $name
done
keep() { # keep LAYOUT DIR [OPTION...]
    fm-pack -q --export "$2" --budget 0.45 --layout "$1" -f "${@:3}" family.fm
}
for model in fp8-channel fp8-static w4a16 nvfp4 nvfp4-modelopt mxfp4 mxfp8 mixed gpt-oss fp8-odd-qwen3 \
    fp8-odd-dsv3 int4-odd-dsv3; do
    echo "== $model"
    family $model 0.15 >/dev/null
    for layout in native ragged elastic layer; do
        plain=
        if [ $layout != native ]; then
            keep $layout plain --weights bf16 >/dev/null
            plain=plain
        fi
        keep $layout out | grep -E '^(export|codes)'
        python3 "$here/compare.py" flat $model family.fm out $plain | tail -n +2
        fm-verify -q --function -t $model/tokens.npy --against family.fm out | sed 's/ items, .*B:/ items:/' | tail -n 1
        fm-verify -q out | sed -n 's/ items, .*B:/ items:/p' | tail -n 1
        keep $layout - -T 1 | tar -xf - --one-top-level=stream
        diff -r out stream && echo "a stream on one thread: same bytes"
        rm -r stream
    done
done
echo "== of a family of INT4"
sed -n '/"fm_codes"/,/^  }/p' out/config.json | cut -c 1-100
grep -cE '"quantization_config"' out/config.json
sed -n '/stored as/p; /^Quantised experts are decoded/,/^$/p; /fm-pack --export/p' out/README.md
keep elastic out --load-cap 0.3:0.6 | grep -E '^(export|freed|codes)'
fm-verify -q --against family.fm out | tail -n 1 | sed 's/ items.*:/:/'
keep ragged out --pad-multiple 16 | grep -E '^(export|padding|codes)'
fm-verify -q --against family.fm out | tail -n 1 | sed 's/ items.*:/:/'
fm-pack -n --export none --budget 0.45 --layout ragged family.fm 2>/dev/null | grep codes
keep ragged out --json | grep -E '"(storage|codes_kept)"'
keep layer out --for vllm | grep -E '^codes'
said keep layer out --for vllm --weights keep
fm-pack --list family.fm | grep -o 'bytes: [^;]*'
echo "== measured"
keep native native >/dev/null
keep ragged ragged >/dev/null
fm-bench -q quality --eval-tokens int4-odd-dsv3/tokens.npy native ragged | awk '/codes/ { print $3, $NF }'
python3 - <<'PYTHON'
from pathlib import Path
for name in "native", "ragged":
    file = sorted(Path(name).glob("*.safetensors"))[0]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
PYTHON
said fm-verify -q --against family.fm native
said fm-verify -q --against family.fm ragged
said fm-verify -q ragged
echo "== faults"
family nvfp4 0.15 >/dev/null
keep ragged out >/dev/null
cp nvfp4/tokens.npy out
python3 "$here/faults.py" twists | while read -r fault; do
    python3 "$here/faults.py" twist out twisted "$fault"
    cp out/fm-export.json twisted
    fm-bench -q quality --eval-tokens out/tokens.npy twisted 2>&1 >/dev/null | sed "s/^/$fault: /"
    rm -r twisted
done
