# shellcheck shell=bash
# What tests source that run a tool with as little memory as it accepts, so that everything that may
# leave memory does.

# least COMMAND...: the smallest --memory that it accepts
least() {
    "$@" --dry-run --memory 1K 2>&1 >/dev/null | sed -n 's/.*use --memory \([^ ]*\) or more$/\1/p'
}

# little COMMAND...: runs it with that
little() {
    "$@" --memory "$(least "$@")"
}
