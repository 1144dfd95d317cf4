# Unusual texts, pipes, weights and commands.
tiny=$GOLDEN/tiny-mixtral
export TERM=dumb
cp "$GOLDEN/text/rows.jsonl" "$GOLDEN/text/rows.npy" .
held=(--eval-tokens "$GOLDEN/text/rows.npy") # because some texts are too short to hold any out
try() { # try OPTION...: a dry run; print the number of tokens, or the error, and the status
    fm-rank -n --model "$tiny" --seq-len 8 "${held[@]}" "$@" >said 2>complained
    local status=$?
    sed 's/^tokens  *//' said | head -n 1
    grep -v '^sh: ' complained | sed "s|$GOLDEN|GOLDEN|g"
    echo "status $status: ${*//$GOLDEN/GOLDEN}"
}
echo "-- bytes"
printf '\357\273\277{"text": "one two three"}\r\n\r\n{"text": "b"}' >bom.jsonl
printf '{"text": "one two three"}\n{"text": "b"}\n' >plain.json
printf '\n\n{"text": "one two three"}\n \n\n{"text": "b"}\n\n' >blank.ndjson
for file in bom.jsonl plain.json blank.ndjson; do try --text $file; done
printf '\357\273\277one\rtwo\r\n\r\nthree' >mark.txt
printf 'one\rtwo\r\n\r\nthree' >none.txt
for file in mark.txt none.txt; do try --text $file; done
printf '{"text": "' >huge.jsonl && truncate -s 2G huge.jsonl
try --text huge.jsonl
gzip -c rows.jsonl >rows.jsonl.gz
try --text rows.jsonl.gz
: >empty.txt
try --text empty.txt
try --text .
try --text missing.txt
echo "-- standard input"
try --text - <rows.jsonl
gzip -dc rows.jsonl.gz | try --text -:0.5 --tokens rows.npy:0.5
head -c 5000 rows.jsonl | try --text -
try --text - --text - <rows.jsonl
try --text - </dev/null
: | try --text -
printf '\n \n' | try --text - --tokenizer-cmd "sed 's/.*/[]/'"
: | try --tokens -
try --tokens empty.txt
echo "-- mixtures"
try --text rows.jsonl --text rows.jsonl
try --text rows.jsonl --tokens rows.npy:2
try --text rows.jsonl:1000000 --tokens rows.npy:0.000001
try --text bom.jsonl:0.5 --tokens rows.npy:0.5
try --text rows.jsonl:0
try --text rows.jsonl:0.0000001
try --text rows.jsonl:-1
try --text :1
try --text rows.jsonl --max-tokens 8
try --text rows.jsonl --max-tokens 7
echo "-- options that contradict, or do nothing"
try --text rows.jsonl --tokenizer "$tiny/tokenizer.json" --tokenizer-cmd cat
try --text rows.jsonl --tokenizer "$tiny/config.json"
with=("${held[@]}") held=()
held=("${with[@]}")
try --text rows.jsonl --text-field body
echo "-- no room"
TMPDIR=/nonexistent try --text rows.jsonl
(ulimit -f 1 && try --text rows.jsonl) 2>&1 | head -n 1
echo "-- commands"
answer="sed 's/.*/[1, 2, 3]/'"
try --text rows.jsonl --tokenizer-cmd "$answer"
# More documents than fit in a pipe: the command is stopped before it handles all of them.
for _ in $(seq 200); do cat rows.jsonl; done >many.jsonl
try --text many.jsonl --max-tokens 24 --tokenizer-cmd "head -n 8 | $answer; sleep 100; echo rubbish"
try --text many.jsonl --tokenizer-cmd "head -n 8 | $answer"
try --text many.jsonl --tokenizer-cmd "yes '[1]'"
try --text rows.jsonl --tokenizer-cmd "kill -9 \$\$"
try --text rows.jsonl --tokenizer-cmd "./no-such-tokenizer"
try --text rows.jsonl --tokenizer-cmd "printf 'Loading...\n'; $answer"
try --text rows.jsonl --tokenizer-cmd true
{ cat rows.jsonl && echo '{"text": 5}'; } >late.jsonl
try --text late.jsonl --tokenizer-cmd "$answer"
try --text late.jsonl --max-tokens 72 --tokenizer-cmd "$answer"
try --text late.jsonl
try --text late.jsonl --max-tokens 8000
ls
