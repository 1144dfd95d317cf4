# fm-bench rivals: what it refuses, what it plans, and the shape of what it prints; figures are
# tests/unit/test_rivals.c's.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
tokens=$odd/tokens.npy
rivals() {
    echo "-- ${*//$GOLDEN\//}"
    fm-bench rivals -q "$@" >said 2>complained
    echo "status $?"
    sed 's/[0-9.]* [KM]B$/BYTES/; s/[0-9]*\.[0-9][0-9]*\*\{0,1\}/N/g; s/  */ /g; s/ $//' said
    sed "s|$GOLDEN|GOLDEN|g; s/[0-9a-f]\{32\}/DIGEST/g
        s/'manifest.json' is [0-9]* bytes/'manifest.json' is N bytes/" complained # it holds losses
}
rivals --tokens "$tokens" --eval-tokens "$tokens"
rivals --model "$odd" --eval-tokens "$tokens"
rivals --model "$odd" --tokens "$tokens"
rivals --model "$odd" --tokens "$tokens" --eval-tokens "$tokens" --rows 4
both=(--model "$odd" --tokens "$tokens" --eval-tokens "$tokens")
rivals "${both[@]}" --budgets 0.9
rivals "${both[@]}" --budgets 0
rivals "${both[@]}" --budgets 0.4,0.2
rivals "${both[@]}" --budgets 0.2x
rivals "${both[@]}" --only reap,repa
rivals "${both[@]}" --only reap+recover
rivals "${both[@]}" --only ,
rivals "${both[@]}" --only bundle
rivals "${both[@]}" --only reap missing.fm extra.fm
rivals "${both[@]}" --dry-run
rivals "${both[@]}" --dry-run --only default+recover,default
qwen=$GOLDEN/odd-qwen2
rivals -n --model "$qwen" --tokens "$qwen/tokens.npy" --eval-tokens "$qwen/tokens.npy"
rivals "${both[@]}" --budgets 0.2,0.39,0.42 --only reap,random,energy,saliency,walk+recover --steps 2 \
    --plot losses.svg --over bytes
grep -c '<polyline' losses.svg
grep -o '>bytes of all tensors<' losses.svg
echo "lines that the field cuts: $(grep -c '<polyline.*clip-path' losses.svg)"
rivals "${both[@]}" --budgets 0.2 --only reap,frequency --plot experts.svg >/dev/null
echo "of experts alone: $(grep -c '<polyline.*clip-path' experts.svg)"
rivals "${both[@]}" --over bytes
fm-bench rivals -q "${both[@]}" --budgets 0.2 --only reap,random,fisher-global --json |
    grep -o '"[a-z_]*":' | sort | uniq -c | awk '{ print $1, $2 }'

family saliency --until 0.5
rivals "${both[@]}" --budgets 0.2,0.6 --only reap,bundle family.fm
rivals "${both[@]}" --budgets 0.2 --only bundle trained
rivals "${both[@]}" --only bundle ranked
rivals "${both[@]}" --only bundle missing.fm
rivals "${both[@]}" --only bundle -
rivals --model "$qwen" --tokens "$qwen/tokens.npy" --eval-tokens "$qwen/tokens.npy" --only bundle family.fm
head -c 3000 family.fm >cut.fm
rivals "${both[@]}" --only bundle cut.fm
rivals --model missing --tokens "$tokens" --eval-tokens "$tokens"
rivals --model "$odd" --tokens "$tokens" --eval-tokens missing.npy
rivals "${both[@]}" --dir missing --only reap
fm-pack -q --export out --budget 0.4 --layout ragged family.fm >/dev/null 2>&1
rivals --model out --tokens "$tokens" --eval-tokens "$tokens" --only random
rivals --model family.fm --tokens "$tokens" --eval-tokens "$tokens" --only random
ls
