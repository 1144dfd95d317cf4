# The same tokens in three file formats give the same ranking, byte for byte; a mixture is recorded.
odd=$GOLDEN/odd-mixtral
tail -c 552 "$odd/tokens.npy" >words.u32
cp words.u32 words
rank() { # rank NAME OPTION...
    local name=$1
    shift
    fm-rank -q --model "$odd" --seq-len 23 "$@" -o "$name" >said 2>complained || cat complained
    fm-pack --list "$name" >/dev/null
    tar xOf "$name" ranking.safetensors >"$name.ranking"
    cmp first.ranking "$name.ranking" && echo "$name: the same ranking"
}
rank first --tokens "$odd/tokens.npy"
rank named --tokens words.u32
plan() { fm-rank -q -n --model "$odd" --seq-len 23 "$@" -o out 2>&1 | grep '^tokens\|^fm-rank'; }
plan --tokens words.u32 --eval-tokens "$odd/tokens.npy"
ln -s words words.u16
plan --tokens words
plan --tokens words.u16 # half of each id, and a zero
tokens() {
    tar xOf "$1" manifest.json | sed -n '/"tokens": {/,/^      }/p' | sed 's/[0-9a-f]\{32\}/DIGEST/'
}
echo "-- a mixture, and what the manifest says about it"
fm-rank -q --model "$odd" --seq-len 23 --tokens "$odd/tokens.npy:0.5" --tokens words.u32:0.25 \
    --tokens "$odd/tokens.npy:0.250" -o mixed >/dev/null 2>&1
echo "status $?"
tokens mixed
echo "-- weights that are not valid"
for weight in 0 0.0000001 1000001 .; do
    fm-rank -q --model "$odd" --tokens "$odd/tokens.npy:$weight" -o out 2>&1 | sed "s|$GOLDEN|GOLDEN|g"
done
cp "$odd/tokens.npy" "odd:name"
rank colon --tokens "odd:name"
cp "$odd/tokens.npy" "odd:2"
rank colon2 --tokens "odd:2:1"
