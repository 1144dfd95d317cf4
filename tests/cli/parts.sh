# shellcheck disable=SC2016 # what `bad` evaluates
# A bundle in three parts has the same members, exports, lists and checks as one file, in every tool; invalid
# sets of parts are refused.
# shellcheck source=tests/cli/family.bash
. "$GOLDEN/../tests/cli/family.bash"
family saliency
mkdir p
fm-pack -q --model "$odd" --part-size 130kB -o p/family.fm trained |
    sed -n 's/most [0-9]* kB/most N kB/; /^parts/p'
first=p/family-00001-of-00003.fm
ls p
for part in p/*; do
    tar tf "$part" | grep -v 'pad\|carried' | tr '\n' ' '
    (mkdir x && tar xf "$part" -C x && cd x && xxhsum -q -c CHECKSUMS* && echo "xxhsum: all")
    rm -rf x
done

echo "== the same as one file"
fm-pack -l family.fm >whole && fm-pack -l $first | cmp - whole && echo list
fm-pack -l --json family.fm >whole && fm-pack -l --json $first | cmp - whole && echo "list as JSON"
cat p/*.fm | fm-pack -l >listed && fm-pack -l family.fm | cmp - listed && echo "list of a pipe"
fm-pack -l <$first
echo "status $?"
for layout in native ragged uniform elastic; do
    fm-pack -q --export whole-$layout --layout $layout --budget 0.3 family.fm >/dev/null 2>&1
    fm-pack -q --export parts-$layout --layout $layout --budget 0.3 $first >/dev/null 2>&1
    diff -r whole-$layout parts-$layout && echo "export: $layout"
done
fm-pack -q --export - --budget 0.3 $first 2>/dev/null >tar &&
    fm-pack -q --export - --budget 0.3 family.fm 2>/dev/null | cmp - tar && echo "export: a stream"
cat p/*.fm | fm-pack -q --export piped --budget 0.3 - >/dev/null 2>&1
diff -r whole-ragged piped && echo "export: of parts through a pipe"
cat p/*.fm >together
fm-pack -q --export of-one --budget 0.3 together >/dev/null 2>&1
diff -r whole-ragged of-one && echo "export: of parts in one file"
fm-verify -q $first | sed 's/: [0-9]* items, .*:/:/'
fm-verify -q - <together | sed 's/: [0-9]* items, .*:/:/'
cat p/*.fm | fm-verify -q - | sed 's/: [0-9]* items, .*:/:/'
fm-verify -q whole-ragged --against $first | sed 's/: [0-9]* items, .*:/:/'
fm-verify -q --model "$odd" $first | sed 's/: [0-9]* items, .*:/:/'
fm-bench quality -q --device ref --tokens "$odd/tokens.npy" --budgets 0.3 family.fm >whole 2>&1
fm-bench quality -q --device ref --tokens "$odd/tokens.npy" --budgets 0.3 $first >parts 2>&1
sed 's,p/family-00001-of-00003.fm,family.fm,' parts | cmp - whole && echo "fm-bench quality"
fm-bench report -q -o whole.html family.fm >/dev/null 2>&1
fm-bench report -q -o parts.html $first >/dev/null 2>&1 && wc -l <parts.html |
    cmp - <(wc -l <whole.html) && echo "fm-bench report"
fm-pack -q --model "$odd" --part-size 130kB --threads 1 -o one.fm trained >/dev/null
for k in 1 2 3; do cmp one-0000$k-of-00003.fm p/family-0000$k-of-00003.fm; done && echo "one thread"
fm-pack -q --model "$odd" --part-size 1GB -o large.fm trained >/dev/null && cmp large.fm family.fm &&
    echo "all in one part"

echo "== again"
fm-pack -q --model "$odd" --part-size 130kB -o p/family.fm trained
echo "status $?"
fm-pack -q --model "$odd" --part-size 100kB -f -o p/family.fm trained >/dev/null
echo "status $?"
ls p
rm -r p && mkdir p
fm-pack -q --model "$odd" --part-size 130kB -o p/family.fm trained >/dev/null

echo "== the same name with another number of parts"
mkdir other
again() {
    fm-pack -q --model "$odd" -o other/family.fm "$@" trained >/dev/null
    echo "status $?: $(cd other && echo -- *)"
}
again --part-size 100kB
again --part-size 130kB
again --part-size 130kB -f
again
again -f
again --part-size 130kB
again --part-size 130kB -f
fm-verify other/family.fm
echo "status $?"
echo >other/family-00001-of-00002.fm
rm other/family-*-of-00003.fm
fm-pack --model "$odd" -o other/family.fm -f trained 2>&1 | grep "not removed"
ls other
fm-pack -q --model "$odd" -o other/new-00001-of-00002.fm trained
echo "status $?"
fm-pack -q --model "$odd" -o other/new-00001-of-00002.fm -n trained
echo "status $?"
rm -r other

echo "== sets that cannot be made"
fm-pack -q --model "$odd" --part-size 20kB -o x.fm trained 2>&1 | sed 's/[0-9]\{5\} bytes/N bytes/'
fm-pack -q --model "$odd" --part-size 130kB trained >x
echo "status $?"
fm-pack -q --export y --budget 0.3 --part-size 130kB family.fm
echo "status $?"
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem 2>/dev/null
fm-verify --sign key.pem $first
echo "status $?"
openssl pkey -in key.pem -pubout -out key.pub
fm-verify --trusted key.pub $first
echo "status $?"
touch q-00003-of-00003.fm q-00001-of-00003.fm
fm-pack -q --model "$odd" --part-size 130kB -o q.fm trained
echo "status $?"
rm q-*

# bad TITLE COMMAND [PART]: run COMMAND in a copy of the set, print fm-verify's messages for PART (default:
# the first), and check that fm-pack exports nothing.
bad() {
    local title=$1
    rm -rf b out
    cp -r p b
    (cd b && eval "$2")
    echo "-- $title"
    (cd b && fm-verify -q "${3:-family-00001-of-00003.fm}" 2>&1 | figures |
        sed 's/[0-9]* bytes/N bytes/g; s/byte [0-9]*/byte N/g; s/says [0-9]*:*/says N/')
    fm-pack -q --export out --budget 0.3 "b/${3:-family-00001-of-00003.fm}" >/dev/null 2>said
    echo "export: status $?"
    [ ! -e out ] || echo "an export"
}
echo "== a pipe that ends between parts, or in one"
for k in 1 2; do
    seq -f p/family-%05g-of-00003.fm $k | xargs cat | fm-verify -q - 2>&1 | sed 's/has [0-9]* of the [0-9]*/has N of the N/'
    echo "status ${PIPESTATUS[2]}"
done
head -c -5000 together | fm-verify -q - >/dev/null 2>&1
echo "status $?"

echo "== invalid sets"
other=$PWD/other
mkdir "$other"
bad "part 2 is missing" 'rm family-00002-of-00003.fm'
bad "part 3 is missing" 'rm family-00003-of-00003.fm'
bad "part 1 is missing" 'rm family-00001-of-00003.fm'
bad "part 2 alone" true family-00002-of-00003.fm
bad "2 and 3 swapped" 'mv family-00002-of-00003.fm t; mv family-00003-of-00003.fm family-00002-of-00003.fm
    mv t family-00003-of-00003.fm'
bad "part 2 twice" 'cp family-00002-of-00003.fm family-00003-of-00003.fm'
bad "part 3 twice" 'cp family-00003-of-00003.fm family-00002-of-00003.fm'
bad "part 1 thrice" 'cp family-00001-of-00003.fm family-00003-of-00003.fm'
bad "part 2 is cut off" 'truncate -s -512 family-00002-of-00003.fm'
bad "part 2 is cut off early" 'truncate -s 5000 family-00002-of-00003.fm'
bad "part 2 is empty" ': >family-00002-of-00003.fm'
bad "part 1 is cut off" 'truncate -s -512 family-00001-of-00003.fm'
bad "part 3 is longer" 'head -c 512 /dev/zero >>family-00003-of-00003.fm'
bad "part 3 is a directory" 'rm family-00003-of-00003.fm; mkdir family-00003-of-00003.fm'
bad "part 3 is a FIFO" 'rm family-00003-of-00003.fm; mkfifo family-00003-of-00003.fm'
bad "its name says 4 parts" 'for k in 1 2 3; do mv family-0000$k-of-00003.fm family-0000$k-of-00004.fm; done' \
    family-00001-of-00004.fm
bad "its name says part 2" 'mv family-00001-of-00003.fm family-00002-of-00003.fm' family-00002-of-00003.fm
bad "its name says nothing" 'mv family-00001-of-00003.fm first.fm' first.fm
# manifest.py OLD NEW: in "parts" of the manifest, replace the match of OLD by NEW, padded to its length
cat >manifest.py <<'END'
import re
import sys

name = "family-00001-of-00003.fm"
data = open(name, "rb").read()
begin = data.index(b'"parts"')
end = data.index(b"]", begin)
found = re.search(sys.argv[1].encode(), data[begin:end], re.S)
new = sys.argv[2].encode().ljust(len(found[0]))
open(name, "wb").write(data[:begin + found.start()] + new + data[begin + found.end():])
END
manifest() { bad "$1" "python3 -B ../manifest.py '$2' '$3'"; }
manifest "the manifest says 2 parts" ',[^,]*$' ''
manifest "its size of part 2 differs" '125440' '124928'
manifest "its size of part 1 differs" '"size": [0-9]*' '"size": 512000'
manifest "a part is not a number" '125440' 'null'
manifest "a part is negative" '125440' '-12544'
manifest "a part has half a block" '125440' '125441'
manifest "a part is a number" '\{[^}]*\},' '9,'
manifest "parts are a string" '"parts": \[.*' '"parts": "3", "x": ['
# A part of another family of the same model, whose tensors have the same names and sizes.
cp -r "$odd" model2
for shard in model2/*.safetensors; do flip "$shard" $(($(stat -c %s "$shard") - 64)); done
fm-rank -q --model model2 --tokens "$odd/tokens.npy" --precision f32 -o ranked2 >/dev/null 2>&1
fm-train -q --model model2 --tokens "$odd/tokens.npy" --precision f32 --method saliency \
    --budget-step 0.1 -o trained2 ranked2 >/dev/null
fm-pack -q --model model2 --part-size 130kB -o "$other/family.fm" trained2 >/dev/null
bad "part 2 of another family" "cp '$other/family-00002-of-00003.fm' ."
bad "part 3 of another family" "cp '$other/family-00003-of-00003.fm' ."
bad "part 1 of another family" "cp '$other/family-00001-of-00003.fm' ."
at=$(grep -abo layers.00001.safetensors p/family-00002-of-00003.fm | head -n 1 | cut -d : -f 1)
bad "a byte of part 2" "$(declare -f flip); flip family-00002-of-00003.fm $((at + 6000))"
sed 's/channels [0-9]* to [0-9]*/channels A to B/' said
bad "a byte of the checksums of part 3" "$(declare -f flip); flip family-00003-of-00003.fm \
    $(grep -abo '  weights/rest' p/family-00003-of-00003.fm | tail -n 1 | cut -d : -f 1)"
