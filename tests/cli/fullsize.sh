# The shapes of tests/measure/fullsize.py are valid checkpoints: plans with holes as weights, and
# the pipeline with a few narrow layers that have all experts.
measure=$(dirname "$0")/../measure
run() {
    (cd "$GOLDEN/.." && BUILD=${PATH%%/bin:*} python3 "$measure/fullsize.py" "$@" --dir "$OLDPWD/made")
}
run olmoe mixtral qwen1.5-moe qwen3-30b moonlight gpt-oss-20b gpt-oss-120b glm-4.7 deepseek-v3-bf16 \
    deepseek-v3 kimi-k2 kimi-k2-thinking --plan-only --layers 5 --method saliency --rate 1000 --tokens 4096 |
    grep -E 'tensors$|^codes|^\(status'
for shape in gpt-oss-20b kimi-k2-thinking; do
    run $shape --layers 4 --narrow 64 --stop 0 --tokens 256 --seq-len 32 --memory 1GB |
        sed -n 's/^| \([a-z].*\) | forecast |.*/\1/p; /tensors$/p' | paste -sd ';'
done
ls -A
