# If a family does not reach --until, a warning gives the reason and the options to change, and --json and
# the manifest record the budget that it reached.
odd=$GOLDEN/odd-mixtral
fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 -o ranked 2>/dev/null >/dev/null
train() { # train OPTION...: print warnings, the status, and what --json and the manifest record
    echo "-- $*"
    fm-train --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --budget-step 0.1 --json -f \
        -o trained "$@" ranked >json
    echo "status $?"
    grep -o -e '"reached": [a-z]*' -e '"came_to": [0-9.]*' json
    tar xOf trained manifest.json | grep -o -e '"reached": [a-z]*' -e '"came_to": [0-9.]*' |
        sed 's/^/manifest: /'
    rm trained
}
{
    train --method learned --steps 1
    train --method saliency --until 0.8 --actions 0.5,1
    train --method uniform --until 0.8 --width-multiple 16
    train --method exchange --until 0.3
    for actions in 0.3,0.5,1 0.3,1; do
        echo "-- --actions $actions: the forecast, and the run"
        uniform=(--model "$odd" --tokens "$odd/tokens.npy" --method uniform --until 0.6 --actions "$actions")
        fm-train -q "${uniform[@]}" --dry-run --json ranked | grep budget_
        fm-train -q "${uniform[@]}" -o trained ranked | grep ^masks
        rm trained
    done
} 2>&1 | sed 's/, 37 channels/, I channels/'
