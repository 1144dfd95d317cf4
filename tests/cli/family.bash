# Sourced by tests that need a small family of odd-mixtral.
odd=$GOLDEN/odd-mixtral

# family METHOD OPTION...: make ranked, trained and family.fm in the test's own folder
family() {
    fm-rank -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 -o ranked >/dev/null 2>&1
    fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --precision f32 --method "$1" --budget-step 0.1 \
        "${@:2}" -o trained ranked >/dev/null
    fm-pack -q --model "$odd" -o family.fm trained >/dev/null
}

# budget_of INDEX [BUNDLE]: the budget of a member, which --budget takes
budget_of() {
    fm-pack --list --json "${2:-family.fm}" 2>/dev/null |
        python3 -c "import json, sys; print(json.load(sys.stdin)['budgets'][$1]['budget'])"
}

# flip FILE OFFSET: change one byte
flip() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf '%b' "\\0$(printf %o $((byte ^ 1)))" |
        dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

# figures: remove what may differ between machines
figures() {
    sed 's/[0-9]* items, .*B:/items:/; s/in [0-9]* items/in N items/; s/[0-9a-f]\{32\}/DIGEST/g
        s/has [0-9]* bytes (limit [0-9]*)/has N bytes/
        s/budget 0\.[0-9]*/budget B/; s/channels [0-9]* to [0-9]*/channels A to B/'
}

# check TITLE ARGUMENT...: print fm-verify's output and its status
check() {
    echo "-- $1"
    shift
    fm-verify -q "$@" >said 2>complained
    echo "status $?"
    tail -n 4 said | figures
    figures <complained
}
