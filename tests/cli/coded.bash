# shellcheck shell=bash
# Sourced by tests that take checkpoints, most of them quantised, through all tools.

# family MODEL STEP: make ranked, trained and family.fm in the test's own folder; prints what fm-pack prints
family() {
    fm-rank -q -m "$1" -t "$1/tokens.npy" --precision f32 -f -o ranked >/dev/null
    fm-train -q -m "$1" -t "$1/tokens.npy" --precision f32 --method saliency --budget-step "$2" -f \
        -o trained ranked >/dev/null 2>&1
    fm-pack -q -m "$1" -f -o family.fm trained
}

# verify ARGUMENT...: run fm-verify; omit the sizes of members with measured figures, which differ between CPUs
verify() {
    fm-verify -q "$@" | sed 's/ items, .*B:/ items:/'
    return "${PIPESTATUS[0]}"
}

# said COMMAND...: print only its messages and its status
said() {
    "$@" 2>&1 >/dev/null | sed 's/^/  /'
    echo "  status ${PIPESTATUS[0]}"
}

# numbers: remove figures that differ between CPUs from what fm-verify --function prints
numbers() {
    sed 's/loss [.0-9]*, want [.0-9]*;/loss:/; s/differ by [-e.0-9]* at most/differ by D at most/
        s/items, .*B:/items:/; s/budget 0[.0-9]*/budget B/'
}
