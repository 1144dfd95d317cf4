# Exports whose experts are rounded to a format that servers load.
here=$(dirname "$0")
# shellcheck source=tests/cli/coded.bash
. "$here/coded.bash"
export_as() { # export_as FORMAT DIR [OPTION...]
    fm-pack -q -x "$2" -b 0.5 --layout uniform --weights "$1" -f "${@:3}" family.fm
}
for dtype in F32 F16 BF16; do
    echo "== from $dtype"
    python3 "$here/recode.py" qwen3 $dtype $dtype
    family $dtype 0.25 >/dev/null
    for format in fp8-block fp8 w4a16 w4a16:32 nvfp4 nvfp4:ct mxfp4 mxfp8; do
        export_as $format out >/dev/null
        width=$(sed -n 's/.*"moe_intermediate_size": *\([0-9]*\).*/\1/p' out/config.json)
        fm-pack -q -x plain -b 0.5 --layout uniform --pad-multiple "$width" -f family.fm >/dev/null
        python3 "$here/compare.py" rounded plain out
        fm-verify -q -a family.fm out | sed -n 's/:.*ok/: ok/p'
        export_as $format - -T 1 | tar -xf - --one-top-level=stream
        diff -r out stream && echo "a stream on one thread: same bytes"
        rm -r stream
        fm-bench -q quality --eval-tokens $dtype/tokens.npy out | grep -c uniform
    done
done
echo "== experts one after another"
flat() { # flat LAYOUT FORMAT: compare the export with one of plain weights and the same widths
    local multiple
    fm-pack -q -x out -b 0.5 --layout "$1" --weights "$2" -f family.fm >/dev/null
    multiple=$(sed -n 's/.*"block".*"group": \([0-9]*\),.*/\1/p' out/config.json)
    fm-pack -q -x plain -b 0.5 --layout "$1" --pad-multiple "$multiple" -f family.fm >/dev/null
    python3 "$here/compare.py" rounded-flat plain out
    fm-verify -q -a family.fm out | sed -n 's/:.*ok/: ok/p'
    fm-pack -q -x - -b 0.5 --layout "$1" --weights "$2" -T 1 family.fm | tar -xf - --one-top-level=stream
    diff -r out stream && echo "a stream on one thread: same bytes"
    rm -r stream
    fm-bench -q quality --eval-tokens BF16/tokens.npy out >/dev/null && echo measured
}
for format in fp8-block fp8 w4a16 w4a16:32 nvfp4 nvfp4:ct mxfp4 mxfp8; do
    flat ragged $format
done
flat elastic nvfp4
flat layer w4a16:32
sed -n '/^| routed/p; /transformers 5\|^transformers/p; /fm-pack --export/p; /^Quantised experts/p' out/README.md
sed -n '/"fm_codes"/,/^  }/p' out/config.json
printf '\1' | dd of=out/model.safetensors bs=1 seek=20000 conv=notrunc status=none
said fm-verify -q -a family.fm out
for layout in native padded 'layer --for vllm' 'ragged --for sglang'; do
    # shellcheck disable=SC2086 # several words
    said fm-pack -q -x none -b 0.5 --layout $layout --weights fp8 family.fm
done
echo "== messages"
export_as nvfp4 out | grep -vE '^(weights|all)'
export_as nvfp4 out --for vllm | grep -E '^(width|padding)'
export_as nvfp4 out --for sglang --tp 2 | grep -E '^(width|padding)'
fm-verify -q -a family.fm out | tail -n 1 | sed 's/ items.*:/:/'
sed -n '/^| routed/p; /transformers 5\|^transformers/p; /fm-pack --export/p' out/README.md
export_as fp8 out --json | grep -E '"(weights|width_uniform)"'
sed -n '/^| routed/p; /transformers 5\|^transformers/p; /^llama/p; /fm-pack --export/p' out/README.md
fm-pack -l family.fm | sed -n '/export with --weights FORMAT/,$p'
fm-pack -l --json family.fm | tr -d ' \n' | grep -oE '"formats":\{.{90}' | sed -n 3p
echo "== several exports, by bytes"
export_as mxfp4 small >/dev/null
fm-pack -q -x plain -b 0.5 --layout uniform -f family.fm >/dev/null
fm-bench -q quality --precision f32 --eval-tokens BF16/tokens.npy -m BF16 plain out small | sed -E 's/[0-9.]+ [kM]?B/SIZE/; s/ +[-+]?[0-9]+\.[0-9]{2,4}\b/ N/g'
fm-bench -q quality --eval-tokens BF16/tokens.npy --json plain out small | grep -E '"(directory|weights)"'
fm-bench -q quality --eval-tokens BF16/tokens.npy --json plain out small >figures.json
fm-bench report -q --figures figures.json -f -o page.html family.fm >/dev/null
grep -oE '"name":"uniform [a-z0-9:]*","role"' page.html
fm-bench report -q -f -o page.html family.fm >/dev/null
python3 "$here/report.py" page.html family.fm
sed -i 's/"exports"/"rows"/' figures.json
said fm-bench report --figures figures.json -f -o page.html family.fm
echo '{"tool": "fm-bench quality", "exports": [3]}' >figures.json
said fm-bench report --figures figures.json -f -o page.html family.fm
said fm-bench -q quality --eval-tokens BF16/tokens.npy out family.fm
cp -r small short
sed -i 's/"max_position_embeddings": 512/"max_position_embeddings": 9/' short/config.json
python3 -c 'import sys
sys.stdout.buffer.write(b"".join((i * i % 61).to_bytes(2, "little") for i in range(600)))' >flat.u16
said fm-bench -q quality --eval-tokens flat.u16 out short
said fm-bench -q quality --eval-tokens BF16/tokens.npy --budgets 0.2 out small
echo "== a changed byte"
for format in nvfp4 w4a16; do
    export_as $format out >/dev/null
    for end in weight weight_packed weight_scale weight_scale_2 input_scale weight_shape; do
        cp -r out liar
        python3 - $end <<'PYTHON' || continue
import sys
from pathlib import Path
from tensors import span
file, name = Path("liar/model.safetensors"), "model.layers.0.mlp.experts.1.up_proj." + sys.argv[1]
data = bytearray(file.read_bytes())
first, _ = span(data, name)
data[first] ^= 1
file.write_bytes(data)
PYTHON
        fm-verify -q -a family.fm liar 2>&1 | grep -o 'model.layers.*'
        rm -r liar
    done
    rm -rf liar
done
said fm-verify -q --function -t BF16/tokens.npy -a family.fm out
echo "== refused"
said fm-pack -q -m BF16 -o none.fm --weights fp8 trained
said fm-pack -q -x none -b 0.5 --layout uniform --weights w4a16 --tp 2 family.fm
said fm-pack -q -x none -b 0.5 --layout uniform --for sglang family.fm
said fm-pack -q -x none -b 0.5 --layout uniform --weights int8 family.fm
python3 - <<'PYTHON'
import tarfile
from pathlib import Path
from tensors import span
data = bytearray(Path("family.fm").read_bytes())
with tarfile.open("family.fm") as tar:
    at = tar.getmember("weights/layers-00000.safetensors").offset_data
first, _ = span(data[at:], "layers.0.down")
data[at + first:at + first + 2] = b"\xc0\x7f"
Path("nan.fm").write_bytes(data)
PYTHON
for format in fp8 nvfp4 mxfp4; do
    said fm-pack -q -x none -b 0.5 --layout uniform --weights $format --no-check nan.fm
done
said fm-pack -q -x none -b 0.5 --layout ragged --weights nvfp4 --no-check nan.fm
for name in odd-qwen3 odd-gptoss; do
    family "$GOLDEN/$name" 0.25 >/dev/null
    said fm-pack -q -x none -b 0.5 --layout uniform --weights fp8 family.fm
done
echo "== gpt-oss"
python3 "$here/recode.py" gptoss "$GOLDEN/odd-gptoss" mxfp4
python3 "$here/recode.py" plain mxfp4 bf16 BF16
family bf16 0.25 >/dev/null
fm-pack -q -x out -b 0 --layout uniform --weights mxfp4 -f family.fm | grep -E '^(width|experts)'
python3 "$here/compare.py" blocks mxfp4 out
grep -o '"quant_method.*' out/config.json
fm-verify -q -a family.fm out | tail -n 1 | sed 's/ items.*:/:/'
fm-pack -q -x out -b 0.5 --layout ragged --weights mxfp4 -f family.fm | grep -E '^experts'
fm-verify -q -a family.fm out | tail -n 1 | sed 's/ items.*:/:/'
fm-bench -q quality --eval-tokens bf16/tokens.npy out >/dev/null && echo measured
echo "== codes that are rounded a second time"
family "$GOLDEN/packed/fp8-channel" 0.25 >/dev/null
export_as w4a16:32 out >/dev/null
sed -n '/^| routed/p' out/README.md
fm-verify -q -a family.fm out | tail -n 1 | sed 's/ items.*:/:/'
grep -c '"quant_method"' out/config.json
echo "== with an adapter"
family BF16 0.25 >/dev/null
fm-recover -q -m BF16 -t BF16/tokens.npy --budget 0.5 --steps 1 --batch 2 -f -o adapted trained >/dev/null 2>&1
fm-pack -q -m BF16 -f -o family.fm adapted >/dev/null
export_as fp8 out >/dev/null
fm-verify -q -a family.fm out | tail -n 1 | sed 's/ items.*:/:/'
