# fm-rank with another criterion: the manifest, fm-train on such a ranking, and a forged name.
odd=$GOLDEN/odd-mixtral
for criterion in taylor energy activation; do
    fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --criterion $criterion -o $criterion.fm 2>/dev/null |
        sed 1q
    tar xOf $criterion.fm manifest.json | grep -o '"criterion": *"[a-z]*"'
done
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" -o default.fm >/dev/null 2>&1
cmp taylor.fm default.fm && echo "taylor is the default"
fm-rank --json -q --model "$odd" --tokens "$odd/tokens.npy" --criterion energy -o json.fm 2>/dev/null |
    grep -o '"criterion": *"[a-z]*"'
fm-rank --model "$odd" --tokens "$odd/tokens.npy" --criterion fisher -o none.fm

train() {
    echo "-- $*"
    fm-train --model "$odd" --tokens "$odd/tokens.npy" --budget-step 0.25 --until 0.5 --force \
        -o masks.fm "$@" 2>&1 >said | grep -v 'measure\|learn:'
    echo "status ${PIPESTATUS[0]}"
    tar xOf masks.fm manifest.json 2>/dev/null | grep -o '"method": *"[a-z]*"' | sort -u # bfloat16 may give one mask less
    rm -f masks.fm
}
train energy.fm
train --method uniform activation.fm
train --method saliency energy.fm
train --method exchange activation.fm
train --method learned energy.fm
train --method learned --steps 2 energy.fm
train --method learned --prior 0 --steps 2 energy.fm
train --method saliency taylor.fm
train taylor.fm
train --method learned --batch 4 --prior 0 --steps 2 --granularity layer taylor.fm

# The dry run must plan the run that would be made.
plan() {
    echo "-- $*"
    "$1" --dry-run --model "$odd" --tokens "$odd/tokens.npy" "${@:2}" | awk '/^sweeps/ { print ($2 > 1 ? "many sweeps" : "one sweep") }'
    echo "status ${PIPESTATUS[0]}"
}
plan fm-train energy.fm
plan fm-train --method uniform energy.fm
plan fm-train taylor.fm
plan fm-train --method exchange energy.fm
plan fm-train missing.fm
plan fm-train - <taylor.fm
plan fm-recover taylor.fm

python3 "$(dirname "$0")/forge.py" energy.fm liar.fm \
    'b.manifest["history"][0]["options"]["criterion"] = "magic\x1b[2J"'
train liar.fm
python3 "$(dirname "$0")/forge.py" energy.fm liar.fm \
    'b.manifest["history"][0]["options"]["criterion"] = 7'
train liar.fm
