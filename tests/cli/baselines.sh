# fm-bench baselines: refusals, plans, and the form of its output.  The figures are tested in
# tests/unit/test_baselines.c.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
tokens=$odd/tokens.npy
baselines() {
    echo "-- ${*//$GOLDEN\//}"
    fm-bench baselines -q --precision f32 "$@" >said 2>complained
    echo "status $?"
    sed 's/[0-9.]* [KM]B$/BYTES/; s/[0-9]*\.[0-9][0-9]*\*\{0,1\}/N/g; s/  */ /g; s/ $//' said
    sed "s|$GOLDEN|GOLDEN|g; s/[0-9a-f]\{32\}/DIGEST/g
        s/'manifest.json' is [0-9]* bytes/'manifest.json' is N bytes/" complained # it contains losses
}
baselines --tokens "$tokens" --eval-tokens "$tokens"
baselines --model "$odd" --eval-tokens "$tokens"
baselines --model "$odd" --tokens "$tokens"
baselines --model "$odd" --tokens "$tokens" --eval-tokens "$tokens" --rows 4
both=(--model "$odd" --tokens "$tokens" --eval-tokens "$tokens")
baselines "${both[@]}" --budgets 0.9
baselines "${both[@]}" --budgets 0
baselines "${both[@]}" --budgets 0.4,0.2
baselines "${both[@]}" --budgets 0.2x
baselines "${both[@]}" missing.fm
baselines "${both[@]}" --dry-run
qwen=$GOLDEN/odd-qwen2
baselines -n --model "$qwen" --tokens "$qwen/tokens.npy" --eval-tokens "$qwen/tokens.npy"
baselines "${both[@]}" --budgets 0.2,0.39,0.42 --plot losses.svg
grep -c '<polyline' losses.svg
grep -o '>share of experts removed<' losses.svg
fm-bench baselines -q "${both[@]}" --budgets 0.2 --json |
    grep -o '"[a-z_]*":' | sort | uniq -c | awk '{ print $1, $2 }'

family saliency --until 0.5
baselines --model missing --tokens "$tokens" --eval-tokens "$tokens"
baselines --model "$odd" --tokens "$tokens" --eval-tokens missing.npy
fm-pack -q --export out --budget 0.4 --layout ragged family.fm >/dev/null 2>&1
baselines --model out --tokens "$tokens" --eval-tokens "$tokens"
baselines --model family.fm --tokens "$tokens" --eval-tokens "$tokens"
ls
