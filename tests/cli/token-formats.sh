# The same tokens in five file formats give the same ranking, byte for byte; a mixture is recorded.
odd=$GOLDEN/odd-mixtral
# shellcheck source=tests/cli/bytes.bash
. "$(dirname "$0")/bytes.bash"
tail -c 552 "$odd/tokens.npy" >words.u32
{ le 4 20240801 7 138 && head -c 1012 /dev/zero && cat words.u32; } >llmc.bin
cp words.u32 pair.bin
{
    printf 'MMIDIDX\0\0' && le 8 1 && le 1 4 && le 8 3 4
    le 4 100 0 38 && le 8 0 400 400 && le 8 0 1 1 3
} >pair.idx
cp words.u32 trove.ds
le 8 50 138 >trove.ds.index
rank() { # rank NAME OPTION...
    local name=$1
    shift
    fm-rank -q --model "$odd" --seq-len 23 "$@" -o "$name" >said 2>complained || cat complained
    fm-pack --list "$name" >/dev/null
    tar xOf "$name" ranking.safetensors >"$name.ranking"
    cmp first.ranking "$name.ranking" && echo "$name: the same ranking"
}
rank first --tokens "$odd/tokens.npy"
rank raw --tokens words.u32 --token-dtype u32
rank llmc --tokens llmc.bin
rank megatron --tokens pair.bin
rank idx --tokens pair.idx
rank datatrove --tokens trove.ds
# The type of raw files does not apply to other files, but to a single file it does.
fm-rank -q -n --model "$odd" --seq-len 23 --token-dtype u32 \
    --tokens words.u32 --eval-tokens "$odd/tokens.npy" -o out >said && echo "raw and npy"
fm-rank -q -n --model "$odd" --seq-len 23 --token-dtype u32 \
    --tokens "$odd/tokens.npy" --eval-tokens words.u32 -o out >said && echo "npy and raw"
fm-rank -q -n --model "$odd" --seq-len 23 --token-dtype u32 --tokens "$odd/tokens.npy" -o out 2>&1 |
    sed "s|$GOLDEN|GOLDEN|g"
tokens() {
    tar xOf "$1" manifest.json | sed -n '/"tokens": {/,/^      }/p' | sed 's/[0-9a-f]\{32\}/DIGEST/'
}
echo "-- a mixture, and what the manifest says about it"
fm-rank -q --model "$odd" --seq-len 23 --tokens "$odd/tokens.npy:0.5" --tokens pair.bin:0.25 \
    --tokens words.u32:0.250 --token-dtype u32 -o mixed >/dev/null 2>&1
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
