# The choice of a member by budget: the nearest one, which is reported; never one outside the
# family's range.
# shellcheck disable=SC2086 # $pack, $recover and choices are lists of words
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.3
show() { # show COMMAND...: print its messages and its status
    echo "\$ $*" >&2
    "$@" >/dev/null
    echo "status $?" >&2
}
pack="fm-pack --dry-run --export out"
fm-pack --list family.fm | awk 'NF == 0 { exit } { print $1, $2 }'
for budget in 0 0.1 0.24 0.3 0.3108 0.35 0.9; do
    show $pack --budget $budget family.fm
done
fm-pack --dry-run --export out --budget 0.24 --json family.fm 2>/dev/null | grep '"budget'
recover="fm-recover --model $odd --tokens $odd/tokens.npy --steps 1 --seq-len 8 --max-tokens 400 --force -o out"
for choice in "--budget 0.24" "--budget 0.9" ""; do
    show $recover $choice trained 2>&1 | sed "s|$GOLDEN|GOLDEN|g" >&2
done
echo "-- one width for the model: the masks nearest to the budget steps"
for method in saliency exchange; do
    rm ranked trained family.fm
    family $method --granularity model --budget-step 0.01 --width-multiple 4 2>/dev/null
    echo "$method:" "$(fm-pack --list --json family.fm | sed -n 's/.*"budget": \(0*.....\).*/\1/p' | tr '\n' ' ')"
done
fm-train -q -n --model "$odd" --tokens "$odd/tokens.npy" --method saliency --granularity model \
    --width-multiple 37 </dev/null
echo "one width only: status $?"
echo "-- one width for the model: the plan ends where the family does, which can be after --until"
for multiple in 1 4 8; do
    rm -f ranked trained family.fm
    options=(--granularity model --until 0.4 --width-multiple "$multiple")
    family saliency "${options[@]}" 2>/dev/null
    plan=$(fm-train -q -n --json --model "$odd" --tokens "$odd/tokens.npy" --method saliency --budget-step 0.1 \
        "${options[@]}" </dev/null)
    echo "multiple $multiple: planned" "$(sed -n 's/.*"budget_\(....\).*: \([0-9.]\{6\}\).*/\1 \2/p' <<<"$plan" | tr '\n' ' ')" \
        "made $(fm-pack --list --json family.fm | sed -n 's/.*"budget": \(0*.....\).*/\1/p' | tail -n 1)"
done
