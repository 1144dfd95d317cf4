# Strings from a file are printed only as harmless text: tests/cli/escapes.py.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
python3 "$(dirname "$0")/escapes.py" "$GOLDEN"
