# The same calibration tokens, given in every supported form, give the same ranking, byte for byte.
tiny=$GOLDEN/tiny-mixtral
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
# The ids in rows.npy have nothing between documents except the <s> before each.
rank text --text rows.jsonl --separator none
rank stdin --text - --separator none <rows.jsonl
rank npy --tokens rows.npy
# shellcheck disable=SC2059 # escapes, no format
printf "$(od -An -v -tx1 -w2 words.u16 | sed 's/ \(..\) \(..\)/\\x\1\\x\2\\x00\\x00/' | tr -d '\n')" >words.u32
rank u32 --tokens words.u32
rank u16 --tokens words.u16
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
rank shuffled-raw --shuffle --tokens words.u16:0.6 --tokens words.u32:0.4
rank shuffled-command --shuffle --tokens words.u16:6 --text rows.jsonl:4 --tokenizer-cmd 'cat >/dev/null; cat answers'
