# shellcheck shell=bash
# Functions for command-line tests that run commands of README.md and the man pages.

# take PAGE [NAME]: print the blocks that the page marks as run by this test (and with NAME).
take() {
    local test
    test=cli/$(basename "${BASH_SOURCE[-1]}" .sh)
    python3 -B "$GOLDEN/../tests/pages.py" take "$1" "$test${2:+ $2}"
}

# examples PAGE [NAME]: run them in the current folder; print their length and the status.
examples() {
    take "$@" >example.sh
    bash -e example.sh >said 2>complained
    echo "$*: status $?, $(wc -l <example.sh) lines"
}
