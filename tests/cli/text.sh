# Text and the ids that the tokenizers library made from it, without separators, give the same ranking,
# byte for byte.
tiny=$GOLDEN/tiny-mixtral
rank() { # rank NAME OPTION...
    local name=$1
    shift
    # shellcheck disable=SC2249 # tokens take no separator
    case " $* " in *" --text "*) set -- "$@" --separator none ;; esac
    fm-rank -q --model "$tiny" --seq-len 64 --max-tokens 512 "$@" -o "$name" >/dev/null 2>complained ||
        sed "s|$GOLDEN|GOLDEN|g" complained
    [ -e "$name" ] || return
    tar xOf "$name" ranking.safetensors >"$name.ranking"
    cmp first.ranking "$name.ranking" && echo "$name: the same ranking"
}
cat "$GOLDEN/text/rows.jsonl" >rows.jsonl
rank first --tokens "$GOLDEN/text/rows.npy"
rank rows --text rows.jsonl
rank named --text rows.jsonl --tokenizer "$tiny/tokenizer.json"
rank one-thread --text rows.jsonl --threads 1
sed 's/"text"/"body"/' rows.jsonl | rank pipe --text-field body --text -
sed 's/$/\r/' rows.jsonl >crlf.ndjson
rank crlf --text crlf.ndjson
cp rows.jsonl part_aa
rank part --text part_aa
cp rows.jsonl rows.JSONL
rank upper --text rows.JSONL
rank shuffled-tokens --tokens "$GOLDEN/text/rows.npy" --shuffle >/dev/null
cp shuffled-tokens.ranking first.ranking
rank shuffled --text rows.jsonl --shuffle
echo "-- rows are recognised by their first line, whatever the name"
say() { fm-rank -f -n --model "$tiny" --seq-len 16 "$@" 2>&1 | grep '^fm-rank\|^tokens'; }
say --text part_aa:0.5 --text rows.jsonl:0.5 --eval-text - <rows.jsonl
sed 's/"text"/"page"/' rows.jsonl >pages
say --text pages --text-field page
say --text pages
sed 's/"text"/"content"/' rows.jsonl | say --text -
printf '{\n    int text = 1; /* a block of C */\n}\n' >block.c
say --text block.c
printf '{"id": 0, "text": "a", "x": NaN}\n' | say --text -
printf '{"text": null}\n' | say --text -
echo "-- a mixture of tokens and text, and paragraphs as documents"
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
printf 'one two three\n\nfour\nfive' >notes.txt
examples fm-guide.7
rank notes --text notes.jsonl:0.5 --tokens "$GOLDEN/text/rows.npy" --seq-len 8 >/dev/null
tar xOf notes manifest.json | sed -n '/"tokens": {/,/^      }/p' | sed 's/[0-9a-f]\{32\}/DIGEST/'
echo "-- what follows a document"
plan() {
    fm-rank -q -n --model "$tiny" --seq-len 2 --text notes.jsonl "$@" 2>&1 |
        grep 'separator\|^tokens'
}
plan
plan --separator '<unk>'
plan --separator none
plan --json
plan --separator none --json
plan --separator '<a token>'
plan --separator eos --tokenizer-cmd cat
plan --tokenizer-cmd "sed 's/.*/[1, 2, 3]/'"
cp -r "$tiny" bare && rm bare/tokenizer_config.json bare/generation_config.json
plan --model bare
sed -i '/eos_token_id/d' bare/config.json
plan --model bare
echo '{"eos_token": "<end>"}' >bare/tokenizer_config.json
plan --model bare
echo "-- a tokenizer without some bytes"
cat >gaps.json <<'END'
{"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
 "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "\u0120": 2, "ab": 3}, "merges": [["a", "b"]]}}
END
printf 'a\004b a\303\251 ab\n\004 a' >gaps.txt # ids 0 1 2 0 2 3 2 0
fm-rank -f --model "$tiny" --seq-len 4 --text gaps.txt --tokenizer gaps.json --separator none -o gaps 2>&1 >/dev/null |
    grep dropped
tar xOf gaps manifest.json | grep '"tokens": [0-9]\|"dropped"'
printf '{"text": "a\\u0004"}\n{"text": "b\\n\\n"}\n' >gaps.jsonl
fm-rank -n --model "$tiny" --seq-len 2 --text gaps.jsonl --tokenizer gaps.json --separator none 2>&1 >/dev/null |
    grep dropped
echo "-- a tokenizer of the user's"
cmd() {
    echo "\$ $2"
    rm -f cmd
    fm-rank -q --model "$tiny" --seq-len 2 --text "$1" --tokenizer-cmd "$2" -o cmd 2>&1 >/dev/null |
        grep -v warning
    [ -e cmd ] && tar xOf cmd manifest.json | grep -A12 '"sources"' | grep '"tokens"\|"documents"\|_cmd' |
        sed 's/[0-9a-f]\{32\}/DIGEST/'
}
cmd notes.txt "sed 's/.*/[1, 2, 3, 4, 5]/'"
cmd rows.jsonl "sed 's/.*/[1, 2, 3, 4, 5]/'"
cmd rows.jsonl 'head -n 3 | sed "s/.*/[1]/"'
cmd rows.jsonl 'cat'
cmd rows.jsonl 'exit 3'
cmd rows.jsonl "sed 's/.*/[1, 2, 3, 4, 384]/'"
cmd rows.jsonl "sed 's/.*/[1, -2]/'"
