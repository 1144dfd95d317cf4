# One byte changed in the middle of every member of a bundle: the member is named.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
check whole family.fm
tar -tRf family.fm | sed -n 's/^block \([0-9]*\): \(.*\)/\1 \2/p' >members
while read -r block name && read -r next _; do
    [ "$name" = "** Block" ] && continue
    cp family.fm t.fm
    flip t.fm $(((block + 1 + next) * 256))
    check "$name" t.fm
done < <(awk 'NR > 1 { print last; print } { last = $0 }' members | grep -v 'pad')
