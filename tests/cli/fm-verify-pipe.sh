# A bundle from a pipe is checked as it passes, with the same findings and status as from a file: whole, cut
# off, with a byte flipped, and in two parts.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
say() { # say COMMAND...: print both streams without the name of the input, and the status
    "$@" 2>&1 | sed 's/standard input/INPUT/; s/t\.fm/INPUT/; s/fm-verify: -/fm-verify: INPUT/'
    echo "status ${PIPESTATUS[0]}"
}
both() { # both TITLE: the file and the pipe
    say fm-verify -q t.fm >file
    # shellcheck disable=SC2002 # a pipe is what is tested
    cat t.fm | say fm-verify -q - >pipe
    if cmp -s file pipe; then echo "$1: same, $(tail -n 1 file)"; else diff file pipe; fi
}
size=$(stat -c %s family.fm)
cp family.fm t.fm && both whole
for at in 100 2000 "size / 3" "size / 2" "size - 5000" "size - 2000" "size - 600"; do
    cp family.fm t.fm
    flip t.fm $((at))
    both "byte $at"
done
for keep in 0 1 3 30 60 90 99; do
    head -c $((size * keep / 100)) family.fm >t.fm
    both "cut at $keep %"
done
# Between two members the stream ends in the padding, before a header, or after one.
for at in $(tar tRf family.fm | sed -n 's/^block \([0-9]*\): weights.*/\1/p'); do
    for blocks in -2 -1 0 1; do
        head -c $(((at + blocks) * 512)) family.fm >t.fm
        both "a header $blocks blocks before the end"
    done
done | sort | uniq -c
{
    head -c 40000 family.fm
    sleep 0.1
    tail -c +40001 family.fm
} | fm-verify -q | sed 's/: .*:/:/'
