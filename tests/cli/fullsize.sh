# The shapes of tests/measure/fullsize.py are valid checkpoints: dry runs on sparse files without weights, and
# the pipeline on a few narrow layers that have all experts.
measure=$(dirname "$0")/../measure
run() {
    (cd "$GOLDEN/.." && BUILD=${PATH%%/bin:*} python3 "$measure/fullsize.py" "$@" --dir "$OLDPWD/made")
}
run olmoe mixtral qwen1.5-moe qwen3-30b moonlight gpt-oss-20b gpt-oss-120b glm-4.7 deepseek-v3-bf16 \
    deepseek-v3 kimi-k2 kimi-k2-thinking kimi-k2.5 mimo-v2.5 mimo-v2.6-pro qwen3.8-2.4t step-3.5-flash \
    mistral-small-4 gemma-4-26b \
    --plan-only --layers 5 --method saliency --tokens 4096 |
    grep -E 'tensors$|^codes|^\(status'
for shape in gpt-oss-20b kimi-k2-thinking; do
    run $shape --layers 4 --narrow 64 --stop 0 --tokens 256 --seq-len 32 --memory 1GB |
        sed -n 's/^| \([a-z].*\) | forecast |.*/\1/p; /tensors$/p' | paste -sd ';'
done
echo "-- fm-pack's forecast has the ranking twice: as a member, and its values"
python3 - "$measure" <<'PYTHON'
import sys
sys.path.insert(0, sys.argv[1])
import fullsize
c = {**fullsize.SHAPES["olmoe"], "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
     "num_hidden_layers": 8, "vocab_size": 256}
fullsize.make("wide", c, False)
fullsize.make_tokens("tokens.npy", 64, 256)
PYTHON
fm-rank -q --model wide --tokens tokens.npy --seq-len 16 --precision f32 -o ranked >/dev/null
fm-train -q --model wide --tokens tokens.npy --seq-len 16 --precision f32 --method uniform --budget-step 0.5 --until 0.5 \
    -o trained ranked >/dev/null
python3 - "$(tar -tvf trained ranking.safetensors | awk '{ print $3 }')" \
    "$(fm-pack -q -n --json --model wide -o family.fm trained | sed -n 's/.*"bytes_memory": \(.*\),/\1/p')" <<'PYTHON'
import sys
member, planned = map(int, sys.argv[1:])
print(member > 6e6, (18 << 20) + 2 * member <= planned <= (19 << 20) + 2 * member)
PYTHON
echo "-- fm-recover spills nothing where its forecast says so"
fm-train -q --model wide --tokens tokens.npy --seq-len 16 --precision f32 --method saliency --budget-step 0.5 --until 0.5 \
    -f -o trained ranked >/dev/null
recover() {
    fm-recover -q --model wide --tokens tokens.npy --seq-len 16 -T 2 --precision f32 --budget 0.5 --steps 2 --batch 1 \
        --memory 1GB -o recovered trained "$@"
}
recover -n --json | grep '"spill"'
recover -n --state kept | grep -E '^(read|state)' | sed 's/; storage slower.*//'
TMPDIR=nowhere recover >/dev/null && echo recovered
echo "-- and moments give way before it is refused: the bytes are the same"
mv recovered usual
least=$(recover --memory 1MB -n 2>&1 | sed -n 's/.*; use --memory \(.*\) or more/\1/p')
python3 -c 'import sys; print(float(sys.argv[1].removesuffix("MB")) < 160)' "$least" # moments and gradients take 161
recover --memory "$least" >/dev/null && cmp usual recovered && echo the same
rm -r wide tokens.npy ranked trained recovered usual
echo "-- fm-pack's forecast has the memory of the code that merges an adapter"
odd=$GOLDEN/odd-phimoe
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 -o ranked >/dev/null
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --method uniform --budget-step 0.5 \
    -o trained ranked >/dev/null
fm-recover -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --steps 1 -o recovered trained >/dev/null
python3 - "$odd" <<'PYTHON'
import json, os, resource, subprocess, sys
pack = ["fm-pack", "-q", "-T", "1", "--json", "--model", sys.argv[1], "-o", "family.fm", "recovered"]
planned = json.loads(subprocess.check_output([*pack, "-n"]))["bytes_memory"]
subprocess.run(pack, stdout=subprocess.DEVNULL, check=True)
peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(peak <= planned or bool(os.environ.get("SAN")))
PYTHON
rm ranked trained recovered family.fm
ls -A
