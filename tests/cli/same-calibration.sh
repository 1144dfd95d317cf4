# The same calibration tokens, given in every supported form, give the same ranking, byte for byte.
tiny=$GOLDEN/tiny-mixtral
# shellcheck source=tests/cli/bytes.bash
. "$(dirname "$0")/bytes.bash"
rank() { # rank NAME OPTION...
    local name=$1
    shift
    fm-rank -q --model "$tiny" --seq-len 64 --max-tokens 1600 "$@" -o "$name" >/dev/null 2>complained ||
        cat complained
    tar xOf "$name" ranking.safetensors >"$name.ranking"
    cmp text.ranking "$name.ranking" && echo "$name: $(tar xOf "$name" manifest.json |
        grep -m 1 '"format"' | tr -d ' ,')"
}
cp "$GOLDEN/text/rows.jsonl" "$GOLDEN/text/rows.npy" .
tail -c +129 rows.npy >words.u16
bytes=$(stat -c %s words.u16)
tokens=$((bytes / 2))
od -An -v -tu2 -w2 words.u16 >ids
echo "$tokens tokens, $(grep -c '^ *1$' ids) documents"
# Where documents end: before each <s>, and at the end.
awk '$1 == 1 && NR > 1 { print NR - 1 } END { print NR }' ids >ends
awk 'NR > 1 { print $1 - last } { last = $1 }' <(echo 0 && cat ends) >sizes
# The ids in rows.npy have nothing between documents except the <s> before each.
rank text --text rows.jsonl --separator none
rank stdin --text - --separator none <rows.jsonl
rank npy --tokens rows.npy
{ le 4 20240520 1 "$tokens" && head -c 1012 /dev/zero && cat words.u16; } >llmc.bin
rank llm.c --tokens llmc.bin
# shellcheck disable=SC2059 # escapes, no format
printf "$(od -An -v -tx1 -w2 words.u16 | sed 's/ \(..\) \(..\)/\\x\1\\x\2\\x00\\x00/' | tr -d '\n')" >words.u32
{ le 4 20240801 7 "$tokens" && head -c 1012 /dev/zero && cat words.u32; } >wide.bin
rank llm.c-u32 --tokens wide.bin
cp words.u16 pair.bin
{
    printf 'MMIDIDX\0\0' && le 8 1 && le 1 8 && le 8 24 25
    # shellcheck disable=SC2046 # numbers
    le 4 $(cat sizes) && le 8 0 $(awk 'NR < 24 { print 2 * $1 }' ends) && le 8 $(seq 0 24)
} >pair.idx
rank megatron --tokens pair.bin
cp words.u16 trove.ds
# shellcheck disable=SC2046
le 8 $(cat ends) >trove.ds.index
rank datatrove --tokens trove.ds
rank raw --tokens words.u16 --token-dtype u16
# A command with prepared answers.  It records its input before it answers, because it is stopped once there
# are enough tokens.
awk '$1 == 1 && NR > 1 { print line "]"; line = "" } { line = line (line ? ", " : "[") $1 }
     END { print line "]" }' ids >answers
# shellcheck disable=SC2016 # the command's own words
rank command --text rows.jsonl --tokenizer-cmd 'while read -r line && read -r a <&3; do printf "%s\n" "$line" >>heard && echo "$a"; done 3<answers'
awk 'NR % 2 == 0' heard | head -n 2 >second
awk 'NR % 2 == 0' rows.jsonl | head -n 2 | sed 's/^{"id": [0-9]*, "text": //; s/}$//' | cmp - second &&
    echo "the command received the texts"
echo "-- shuffled, and in a mixture of two"
fm-rank -q --model "$tiny" --seq-len 64 --max-tokens 1600 --shuffle --text rows.jsonl:0.6 \
    --text rows.jsonl:0.4 --separator none -o text --force >/dev/null
tar xOf text ranking.safetensors >text.ranking
rank shuffled-npy --shuffle --tokens rows.npy:3 --tokens rows.npy:2
rank shuffled-pair --shuffle --tokens pair.bin:0.6 --tokens trove.ds:0.4
rank shuffled-command --shuffle --tokens pair.idx:6 --text rows.jsonl:4 --tokenizer-cmd 'cat >/dev/null; cat answers'
