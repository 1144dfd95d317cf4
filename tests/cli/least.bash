# shellcheck shell=bash
# Sourced by tests that run a tool with the least memory that it accepts, so that everything that can be
# stored on disk is.

# least COMMAND...: print the smallest --memory that it accepts
least() {
    "$@" --dry-run --memory 1K 2>&1 >/dev/null | sed -n 's/.*use --memory \([^ ]*\) or more$/\1/p'
}

# little COMMAND...: run it with that --memory
little() {
    "$@" --memory "$(least "$@")"
}
