# fm-bench loops: the forms of answers, the table, JSON, and input that is refused.
{
    printf '{"text": "The cat sat on the mat.%s"}\n' "$(printf ' The cat sat on the mat.%.0s' {1..12}) The c"
    printf '{"text": ""}\n{"generated_text": "one"}\n\n'
    printf '{"content": "Paris is the capital of France.", "stop_type": "eos"}\n'
    printf '{"choices": [{"message": {"content": "A short answer."}, "finish_reason": "stop"},'
    printf ' {"message": {"content": "%s"}, "finish_reason": "length"}]}\n' "$(printf 'no %.0s' {1..100})"
    printf '{"id": "x", "response": {"body": {"choices": [{"text": "%s"}]}}, "error": null}\n' \
        "$(printf '\\u54c8\\u54c8\\ud83d\\ude00%.0s' {1..60})"
    printf '{"id": "y", "response": null, "error": {"message": "too long"}}\n'
    printf '{"choices": [{"message": {"content": null}, "finish_reason": "tool_calls"}]}\n'
} >answers.jsonl
printf '{"text": "a\\u202e\\u001b[31m%s"}\n' "$(printf '\\n%.0s' {1..200})" >lines.jsonl
fm-bench loops answers.jsonl lines.jsonl
cp answers.jsonl original.jsonl
cp lines.jsonl family40.jsonl
python3 "$GOLDEN/../tests/pages.py" take fm-bench.1 cli/loops >commands
# shellcheck source=/dev/null
. ./commands | cmp - <(fm-bench loops original.jsonl family40.jsonl) && echo "the page's command runs"
fm-bench loops --json - <answers.jsonl
refused() {
    fm-bench loops "${1--}" 2>&1
    echo "status $?"
}
echo 'not JSON' | refused
printf '' | refused
printf '{"text": 1}\n' | refused
printf '{"text": "a"}\n{"text": "\\ud83d"}\n' | refused
printf '{"text": "a\\u0000"}\n' | refused
printf '{"text": "a"}\n[1]\n' | refused
printf '{"choices":\n[]}\n' | refused
printf '{"choices": [{"index": 0}]}\n' | refused
printf '{"choices": []}\n' | refused
{ printf '{"text": "' && head -c 5000000 /dev/zero | tr '\0' a && printf '"}\n'; } | refused
{ printf '{"text": "a"}\n{"text": "' && head -c 100000000 /dev/zero | tr '\0' a && printf '"}\n'; } | refused
refused missing.jsonl
fm-bench loops
fm-bench loops --seq-len 5 answers.jsonl
# The command of fm-bench(1).
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
cp answers.jsonl original.jsonl && cp lines.jsonl family40.jsonl
examples fm-bench.1
