# One byte of a bundle is changed at a time: near the beginning of each member, and in the middle of each
# safetensors member.  fm-verify names the member.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
check whole family.fm
tar -tRf family.fm | sed -n 's/^block \([0-9]*\): \([^*].*\)/\1 \2/p' >members
flipped() { # flipped NAME OFFSET WHERE
    cp family.fm t.fm
    flip t.fm "$2"
    check "$1, $3" t.fm
}
while read -r block name; do
    case $name in
    .pad/*) ;;
    *.safetensors)
        size=$(tar -tvf family.fm "$name" | awk '{ print $3 }')
        flipped "$name" $(((block + 1) * 512 + 20)) "byte 20"
        flipped "$name" $(((block + 1) * 512 + size / 2)) "in the middle"
        ;;
    CHECKSUMS) # the result is a digit again: 0 and 1, 2 and 3 ... differ in one bit
        digit=$(tail -c +$(((block + 1) * 512 + 1)) family.fm | head -c 32 | grep -bo '[0-9]' | head -n 1)
        flipped "$name" $(((block + 1) * 512 + ${digit%%:*})) "a digit"
        ;;
    *) flipped "$name" $(((block + 1) * 512 + 20)) "byte 20" ;;
    esac
done <members
