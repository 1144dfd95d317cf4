# fm-pack --list explains its columns, marks the recommended member and what fits each GPU, and shows possible layouts.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5 --width-multiple 4
fm-pack --list --context 16 --tp 2 --quantum 4 family.fm | sed -E 's/^(0\.[0-9]+  uniform).*(<- .*)/\1 \2/' |
    grep -e '^budget:' -e '^CE' -e 'GB' -e recommended -e '^layouts' -e 'pad-multiple' -e '^0\.[0-9]*  [a-z]*, '
fm-pack --list --context 16 --tp 2 --quantum 4 --json family.fm | sed -n '/"context"/,$p'
fm-pack --list --context 100000 family.fm
echo "status $?" >&2
fm-pack --list --tp 65 family.fm
