# Nothing that a file says reaches a terminal as anything but text: tests/cli/escapes.py.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
python3 "$(dirname "$0")/escapes.py" "$GOLDEN"
