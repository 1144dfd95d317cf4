# fm-family: the commands that it prints and runs, names that a shell would split, mistakes that are
# found before the first step, and interruptions at every step, after which the files are those of
# an uninterrupted run.
# shellcheck source=tests/pages.bash
. "$GOLDEN/../tests/pages.bash"
set -m # background commands get separate process groups
cp -r "$GOLDEN/tiny-mixtral" MODEL && cp "$GOLDEN/text/rows.jsonl" mine.txt

echo "-- every option of --help is in the page, and vice versa"
fm-family --help | grep -o -e '--[a-z][a-z-]*' | sort -u | grep -vx -e --help >help
grep -e '^\.Fl\|^\.It Fl' "$GOLDEN/../man/fm-family.1" | grep -o -e ' -[a-z][a-z-]*' | sed 's/^ -/--/' |
    sort -u | grep -vx -e --help >page
diff help page && wc -l <help

echo "-- the page's commands"
examples fm-family.1
grep '^+' complained
grep ': ok$' said | sed 's/: [0-9]* items.*:/:/'
# The second run has another budget: only its export is made.
grep '^up to date' said | sed 's/ was made.*//'

grep '^fm-family: ' said | sed 's/ [0-9.]* MB/ N MB/g; s/\(cross-[^,;]*\) [0-9][0-9.]*/\1 L/g'

echo "-- a directory with stages of other options is not used"
(
    cp out40.work/ranked.fm before
    for other in "--seq-len 32" "--layout uniform" "--tokens $GOLDEN/tiny-mixtral/calib.npy" "--until 0.7"; do
        # shellcheck disable=SC2086 # an option and its value
        fm-family MODEL --text mine.txt --max-tokens 65536 $other --budget 0.4 --work out40.work -o other 2>&1
        echo "status $?"
    done
    fm-family ./MODEL --text mine.txt --max-tokens 65536 --budget 0.4 --work out40.work -o other 2>&1
    echo "status $?"
    cmp before out40.work/ranked.fm && ls -d other
)

echo "-- a disk that is too small is found before the first step"
mkdir double && printf '#!/bin/sh\necho Avail\necho 8000000\n' >double/df && chmod +x double/df
PATH=$PWD/double:$PATH fm-family MODEL --text mine.txt --seq-len 64 --budget 0.4 -o full
echo "status $?"
[ -e full.work ] || echo "nothing is made"

echo "-- hostile names"
hostile=$'-a \'model\'; "of\' $(mine)\n'
cp -r -- MODEL "$hostile" && cp -- mine.txt '-my; "text*'
fm-family --text '-my; "text*' --seq-len 64 --max-tokens 512 --layout=uniform -b 0.4 -o "-x 'out" -- \
    "$hostile" >said 2>complained
echo "status $?"
grep '^+' complained
grep ': ok$' said | sed 's/: [0-9]* items.*:/:/'

echo "-- interruptions"
for _ in {1..4}; do cat mine.txt; done >long.txt
family() { exec fm-family MODEL --text long.txt --seq-len 64 --until 0.45 --budget 0.4 -o "$1"; }
(family straight) >/dev/null 2>&1
echo "straight: status $?"
await() { # await FILE: wait until it exists, or the background command has ended
    while kill -0 $! 2>/dev/null && [ ! -e "$1" ]; do sleep 0.02; done
}
for signal in TERM INT; do # TERM to the script, INT to its group as a terminal sends it
    [ $signal = INT ] && group=- || group=
    family stopped >/dev/null 2>&1 &
    await stopped.work/rank.state.lock
    sleep 0.2
    kill -$signal -- "$group$!"
    wait $! 2>/dev/null
    echo "$signal: status $?"
    find stopped.work -type f ! -name rank.state # it exists if work was done before the signal
done
for file in rank.state.lock ranked.fm trained.fm family.fm; do
    family stopped >/dev/null 2>&1 &
    await stopped.work/$file
    kill -KILL -- -$! 2>/dev/null
    wait $! 2>/dev/null
done
(family stopped) >said 2>complained
echo "again: status $?"
for file in straight.work/*; do cmp "$file" "stopped.work/${file#*/}" && echo "${file#*/}: same"; done
ls stopped.work
diff -r straight stopped && echo "the export: same"
(family stopped) >/dev/null 2>complained
echo "once more: status $?"
grep -c '^+' complained

echo "-- mistakes"
mkdir mistake && cd mistake || exit 99
try() {
    fm-family "$@" 2>&1
    echo "status $?"
}
mkdir there
try ../MODEL --budget 0.4 -o out
try ../MODEL --text ../mine.txt -o out
try ../MODEL --text ../mine.txt --budget 0.4
try --text ../mine.txt --budget 0.4 -o out
try ../MODEL --text - --budget 0.4 -o out
try ../MODEL --text ../mine.txt --budget 0.4 -o there
try ../MODEL --text ../mine.txt --budget 0.4 --layout flat -o out
try ../MODEL --text ../mine.txt --budget 40% -o out
try ../MODEL --text ../mine.txt --budget 0.4 --method best -o out
try ../MODEL --text ../mine.txt --budget 0.4 --steps 3 -o out
try ../MODEL --text ../mine.txt --budget 0.4 --layout native --weights fp8 -o out
try ../MODEL --text ../mine.txt --budget 0.4 --tp 2 -o out
try ../MODEL --text ../mine.txt --budget 0.9 -o out
try ../MODEL --text ../mine.txt --budget 0.95 --until 0.95 -o out
coarse=(--layout uniform --width-multiple 64 --until 0.4) # ends at 0.5; the mask before it is at 0.25
try ../MODEL --text ../mine.txt "${coarse[@]}" --budget 0.8 -o out
fm-family ../MODEL --text ../mine.txt "${coarse[@]}" --budget 0.7 -o out -n 2>/dev/null
echo "0.7: status $?"
try ../MODEL --text ../mine.txt --budget 0.4 -o
echo "-- these, and --dry-run, write nothing"
try ../MODEL --text ../mine.txt --budget 0.4 -o out -n
ls
try nowhere --text ../mine.txt --budget 0.4 -o out
