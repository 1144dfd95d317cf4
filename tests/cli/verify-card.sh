# README.md of an export is compared between its marks, with every option that affects it; the parts
# that its owner may edit are reported, and a file that is not a card is a finding.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency --until 0.5
check() {
    timeout 20 fm-verify -q "$1" --against family.fm 2>&1 | sed 's/: .*items, .*B:/: items:/'
    echo "status ${PIPESTATUS[0]}"
}
for options in '--layout ragged' '--layout ragged --base-model me/mine' '--layout uniform --shard-size 20KiB' \
    '--layout padded --shard-size 4GiB' '--layout layer --for vllm --pad-multiple 3' \
    '--layout elastic --load-cap 0.1:0.35' '--layout native --base-model me/mine'; do
    # shellcheck disable=SC2086 # options are words
    fm-pack -q --export out --budget 0.3 $options family.fm >/dev/null 2>&1
    echo "$options: $(fm-verify -q out --against family.fm 2>&1 | sed 's/.*items, .*B: //' | tr '\n' ';')"
    rm -r out
done
fm-pack -q --export out --budget 0.3 --base-model me/mine family.fm >/dev/null 2>&1
cp out/README.md card
try() {
    echo "-- $1"
    rm -rf out/README.md
    eval "$2"
    check out
}
try 'as it was written' 'cp card out/README.md'
try 'its owner writes around the marks' \
    '{ echo "---"; echo "license: mit"; echo "---"; echo "# Mine"; grep -A 9999 "fm-pack: begin" card; echo Bye.; } >out/README.md'
try 'a line is added between them' 'sed "s/^## Running it/Buy this.\n&/" card >out/README.md'
try 'a figure changes' 'sed "s/| mask 3,/| mask 2,/" card >out/README.md'
try 'one byte changes' 'sed "s/fm-verify DIR/fm-verifx DIR/" card >out/README.md'
try 'the first mark is gone' 'grep -v "fm-pack: begin" card >out/README.md'
try 'the second mark is gone' 'grep -v "fm-pack: end" card >out/README.md'
try 'the part is there twice' 'cat card card >out/README.md'
try 'another text' 'echo Hello >out/README.md'
try 'a zero byte' '{ cat card; printf "a\0b"; } >out/README.md'
try 'empty' ': >out/README.md'
try 'gone' ':'
try 'a FIFO' 'mkfifo out/README.md'
try 'a directory' 'mkdir out/README.md'
rmdir out/README.md
cp card out/README.md
echo '-- files of the hub are there'
mkdir out/.cache && touch out/.gitattributes out/.cache/theirs
check out
timeout 20 fm-verify -q out --against family.fm --json | grep -A1 not_compared
