# fm-family: the options of its page, what is repeated after a change, what is refused before the first
# step, files and names of users, and the commands that --print shows.  Signals and kills are in
# tests/sweep/sweep.py.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
cp -r "$GOLDEN/tiny-mixtral" MODEL && cp "$GOLDEN/text/rows.jsonl" mine.txt
sed -i '/max_position_embeddings/s/512/64/' MODEL/config.json # short sequences, so that recovery takes seconds
data=(MODEL --text mine.txt --seq-len 64 --max-tokens 4096 --steps 2 --method saliency)
steps() { # without progress and notes on inputs
    grep -v 'nearest member is\|warning\|its lines are\|: [0-9.]* of [0-9]* ' | sed 's/will take .*;/will take N;/'
}
try() { # try OPTION...: print what it says on standard error, and its status
    { fm-family "$@" >said; } 2>&1
    echo "status $?"
}
as_card() { # as_card DIRECTORY: the last line, in `said`, states the same losses as the card, or no loss if the card has no loss
    local line card
    line=$(grep '^fm-family: ' said | grep -o '\(about \|entropy \|original.s: \)[0-9]*\.[0-9]*' | grep -o '[0-9.]*' | xargs)
    card=$(awk -F'|' '/held-out cross-entropy/ && $3 ~ /[0-9]/ { if (/of the original/) o = $3; else c = $3 }
        END { if (c != "") print c, o }' "$1/README.md" | xargs)
    [ "$line" = "$card" ] && echo "losses: $(wc -w <<<"$line"), as the card's" || echo "$1: '$line' is not the card's '$card'"
}
again() { # again TITLE OPTION...: the steps that run
    echo "-- $1"
    fm-family "${data[@]}" "${@:2}" 2>complained >said
    echo "status $?"
    steps <complained
}

echo "-- every option of --help is in the page, and vice versa"
fm-family --help=all | grep -o -e '^ *\(-.,\)\? *--[a-z-]*' | grep -o -e '--[a-z-]*' | sort -u >help
sed -n '/^.Sh OPTIONS/,/^.Sh EXIT/p' "$GOLDEN/../man/fm-family.1" | grep -e '^\.Fl\|^\.It Fl' |
    grep -o -e ' -[a-z][a-z-]*' | sed 's/^ -/--/' | sort -u >page
diff help page && wc -l <help

echo "-- the page's commands, with a fast method and a short recovery"
mkdir bin
cat >bin/fm-family <<SH
#!/bin/sh
case " \$* " in *" --method "*) ;; *) set -- "\$@" --method saliency --steps 2 ;; esac
exec $(command -v fm-family) "\$@"
SH
chmod +x bin/fm-family
PATH=$PWD/bin:$PATH examples fm-family.1
steps <complained
grep ': ok$' said | sed 's/0\.[0-9]*: [0-9]* items.*:/B:/'
grep '^fm-family: ' said | sed 's/mask [0-9]*/mask N/; s/ [0-9.]* MB/ N MB/g; s/[0-9]\.[0-9]\{4\}\([ ),]\)/L\1/g'

diff -r out40 again/out40 && ls -A again/out40.work

echo "-- commands of another layout"
fm-family "${data[@]}" --layout uniform -b 0.4 -o out --print
again "the whole run" --layout uniform -b 0.4 -o out

echo "-- only what depends on a change is made again"
again "nothing" --layout uniform -b 0.4 -o out
again "another budget, other directory" --layout uniform -b 0.2 --work out.work -o out20
again "the first export" --layout uniform -b 0.4 -o out
again "another format, more threads" --layout uniform -b 0.4 --weights fp8 -T 2 --work out.work -o out8
again "another layout" --layout native -b 0.4 -o out
rm out.work/ranked.fm out.work/trained.fm out.work/recovered.fm
again "without stages that are not needed" --layout native -b 0.3 -o out
printf x >>out/layers-00000.safetensors
again "a damaged export" --layout native -b 0.3 -o out
printf 'mine\n' >>out/README.md
again "a card with a note" --layout native -b 0.3 -o out
touch mine.txt MODEL/*
again "other times" --layout native -b 0.3 -o out
rm out.work/family.fm
again "a budget without the bundle, ranking again" --layout native -b 0.2 -o out
cp -r "$GOLDEN/odd-mixtral" ODD
recovering=(ODD --tokens ODD/tokens.npy --method uniform -b 0.4 -o adapted)
fm-family "${recovering[@]}" --no-recover >said 2>&1
echo "-- recovery is the default, and at the same budget for all members"
fm-family "${recovering[@]}" 2>&1 >said | steps
tar xOf adapted.work/recovered.fm manifest.json | grep -o '"steps": 60\|"lr": .*'
fm-family "${recovering[@]/%0.4/0.2}" 2>&1 >said | steps
fm-family "${recovering[@]}" --steps 3 2>&1 >said | steps
grep '^fm-family: ' said | sed 's/mask [0-9]*/mask N/; s/[0-9]\.[0-9]\{4\}/N/g'
as_card adapted
touch adapted.work/recover.state # as an interrupted recovery leaves one
try "${recovering[@]}" --width-multiple 3
rm adapted.work/recover.state
# Other widths than the mask's, though as many channels are removed.
fm-family ODD --tokens ODD/tokens.npy --method saliency --granularity expert --width-multiple 3 --layout uniform -b 0.3514 \
    -o same-mean >said 2>&1
as_card same-mean
fm-family "$GOLDEN/packed/fp8-block" --tokens "$GOLDEN/packed/fp8-block/tokens.npy" -b 0.4 -o codes --print |
    sed 's/ .*//'
fm-family "$GOLDEN/packed/fp8-block" --tokens "$GOLDEN/packed/fp8-block/tokens.npy" -b 0.4 -o codes --print --recover |
    grep -c '^fm-recover'

echo "-- a ranking is not replaced"
cp out.work/ranked.fm before
for other in "--seq-len 32" "--tokens $GOLDEN/tiny-mixtral/calib.npy" "--shuffle"; do
    # shellcheck disable=SC2086 # an option and its value
    try "${data[@]}" --layout native -b 0.3 -o out $other
done
echo '{"text": "more"}' >>mine.txt
try "${data[@]}" --layout native -b 0.3 -o out
cmp before out.work/ranked.fm

echo "-- files that are not fm-family's"
one=(ODD --tokens ODD/tokens.npy -b 0.4 --steps 2 --method saliency)
mkdir own link fifo kept
echo 'my notes' >own/.fm-family && ln -s ../victim link/.fm-family && mkfifo fifo/.fm-family && echo mine >kept/family.fm
for work in own link fifo kept; do timeout 20 fm-family "${one[@]}" --work $work -o none 2>&1; done
cat own/.fm-family kept/family.fm && ls -A own link fifo kept
sed 's/0\.1\.0/0.0.9/' out.work/.fm-family >own/.fm-family
try "${one[@]}" --work own -o none
mkdir there && echo mine >there/notes
try "${one[@]}" -o there
try "${one[@]}" --work mine.txt -o none

fm-family "${one[@]}" -o closed >&- 2>&- <&-
echo "status $?" && ls -A closed.work
fm-family "${one[@]}" -o closed >said 2>&1
echo "status $?"
# A damaged record ends in a sentence or a complete run.
for at in {1..40}; do
    cp closed.work/.fm-family record
    printf '%s' "$((at % 10))" | dd of=closed.work/.fm-family bs=1 seek=$((at * 83)) conv=notrunc status=none
    fm-family "${one[@]}" -o closed >said 2>&1
    status=$?
    [[ $status = @(0|73|78) ]] || { echo "byte $((at * 83)): status $status" && cat said; }
    cp record closed.work/.fm-family
done
python3 -c 'import json; r = json.load(open("closed.work/.fm-family")); r["steps"]["rank"].update(output=[1, {}, "x"], inputs=[None], options={"a": 1}); json.dump(r, open("closed.work/.fm-family", "w"))'
try "${one[@]}" -o closed

echo "-- a finished run is known again, whatever the names"
for name in $'lines\nof\e[31m' $'bytes\xff\xfe' $'C1 \xc2\x85' 'per%41'; do
    fm-family "${one[@]}" -o "$name" >said 2>&1
    try "${one[@]}" -o "$name"
done

echo "-- refused before the first step"
try "${one[@]}"
try ODD -b 0.4 -o none
try "${one[@]:0:3}" -o none
try --text mine.txt -b 0.4 -o none
try MODEL --text - -b 0.4 -o none
try "${one[@]}" -o none --layout flat | sed 's/(use .*)/(use one of the layouts)/'
try "${one[@]}" -o none --method best | sed 's/(use .*)/(use ...)/'
try "${one[@]}" -o none --no-recover
try "${one[@]}" -o none --no-recover --recover
try "$GOLDEN/packed/fp8-block" "${one[@]:1}" -o none
# shellcheck disable=SC2016 # not to be expanded
try "${one[@]}" -o none --tp '1+x[$(touch PWNED)]' --layout uniform
try "${one[@]}" -o none --weights w4a16
try "${one[@]}" -o none --layout native --weights fp8
try "${one[@]}" -o none --layout uniform --weights fp8
try "${one[@]}" -o none --layout uniform --tp 64
try "${one[@]}" -o none --fit 1MB
try ODD "${one[@]:1:2}" -b 0.9 -o none
try ODD "${one[@]:1:2}" --fit 60kB -o none
try ODD "${one[@]:1:2}" -b 40% -o none
try "${one[@]}" -o none --work none
try "${one[@]}" -o none --work ./none/
try "${one[@]}" -o none/.
try "${one[@]}" -o ODD/none
try "${one[@]}" --work none.work -o none.work/family.fm
try nowhere "${one[@]:1:4}" -o none
faults=$(dirname "$(command -v fm-family)")/../tests/unit/faults.so
if [ -z "${SAN:-}" ]; then LD_PRELOAD=$faults FM_FAULT=statvfs:1:full try "${one[@]}" -o none; fi 2>&1 |
    sed 's/takes .*, but .* are/takes N, but N are/' # sanitizers cannot be preloaded
ls -d none* PWNED 2>/dev/null

echo "-- a forecast"
fm-family "${one[@]}" -o none -n | sed -E 's/(under )?[0-9.]+ ([a-z]|[kMG]?B\b)+( [0-9]+ [a-z]+)?/N/g; s/N to N/N/; s/ +/ /g'
echo '{"text": "a sample that is small"}' >small.jsonl
fm-family MODEL --text small.jsonl --seq-len 4 -b 0.3 -o none -n | grep '^Tokens'
fm-family MODEL --text small.jsonl --eval-text mine.txt --seq-len 4 -b 0.3 -o none -n | grep '^Tokens'
fm-family "${data[@]}" --shuffle --layout native -b 0.3 --work other -o none -n | grep -c '^Tokens'
echo "status $?"
ls -d none* other 2>/dev/null

echo "-- the size of an export is known before there is a bundle"
bytes() { fm-pack -q --export size -n --json -b 0 --layout "$@" 2>/dev/null | grep bytes_weights; }
for model in odd-q3next odd-dsv3 odd-gptoss odd-glm-lite packed/nvfp4 packed/fp8-block packed/w4a16; do
    rank=(-q --model "$GOLDEN/$model" --tokens "$GOLDEN/$model/tokens.npy")
    fm-rank "${rank[@]}" 2>/dev/null | fm-train "${rank[@]}" --method uniform 2>/dev/null |
        fm-pack -q --model "$GOLDEN/$model" -o size.fm >/dev/null 2>&1
    for layout in native ragged elastic layer uniform padded; do
        [ "$(bytes $layout "$GOLDEN/$model")" = "$(bytes $layout size.fm)" ] || echo "$model, $layout: not the same"
    done
    bytes ragged size.fm | wc -l
    rm -f size.fm
done

echo "-- hostile names"
hostile=$'-a \'model\'; "of\' $(mine)\n'
cp -r -- MODEL "$hostile" && cp -- "$GOLDEN/text/rows.jsonl" '-my; "text*'
odd=(--text '-my; "text*' --seq-len 64 --max-tokens 512 -b 0.4 -o "-x 'out/" -- "$hostile")
fm-family --print "${odd[@]}" | tee commands
fm-family "${odd[@]}" >said 2>&1
echo "status $?"
mkdir printed && cp -r -- "$hostile" '-my; "text*' printed && mkdir -- "printed/-x 'out.work"
(cd printed && bash -e ../commands >/dev/null 2>&1)
diff -r -- "-x 'out" "printed/-x 'out" && echo same

echo "-- one run at a time"
mkfifo slow
fm-family MODEL --tokenizer-cmd "cat slow" --text mine.txt -b 0.4 -o first >/dev/null 2>&1 &
while [ ! -e first.work/.fm-family.lock ]; do sleep 0.02; done
try MODEL --text mine.txt -b 0.4 --work first.work -o second | sed 's/process [0-9]*/process N/'
kill -TERM $!
wait $!
echo "status $?"
ls -d first.work second 2>/dev/null
echo "-- end"
