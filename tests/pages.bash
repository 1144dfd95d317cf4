# shellcheck shell=bash
# What command-line tests source that run commands of README.md and the man pages.

# take PAGE [NAME]: the blocks that the page marks as run by this test, under NAME where it has several.
take() {
    local test
    test=cli/$(basename "${BASH_SOURCE[-1]}" .sh)
    python3 -B "$GOLDEN/../tests/pages.py" take "$1" "$test${2:+ $2}"
}

# examples PAGE [NAME]: runs them in the folder at hand; their length and the status.
examples() {
    take "$@" >example.sh
    bash -e example.sh >said 2>complained
    echo "$*: status $?, $(wc -l <example.sh) lines"
}
