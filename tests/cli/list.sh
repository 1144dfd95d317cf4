# fm-pack --list explains its columns, marks the recommended member and those that agree too little, and shows
# the size in every layout.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5 --width-multiple 4
fm-pack --list family.fm | sed -E 's/^(0\.[0-9]+  uniform).*(<- .*)/\1 \2/' |
    grep -e '^budget' -e '^CE' -e recommended -e '^bytes' -e '^expect loops'
fm-pack --list family.fm | grep '^0.*  uniform  ' | tail -n 1 | grep -o 'expect loops$'
fm-pack --list --json family.fm | grep -o -e '"recommended": [0-9]*' -e '"layouts"' -e '"formats"' | sort -u
fm-pack --list --tp 2 family.fm
echo "status $?" >&2
fm-pack --export out --budget 0.2 --tp 65 family.fm
