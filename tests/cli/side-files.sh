# Outputs, reports, plots and states never replace an input, a file among the inputs, another
# output, or a file of the user.  And a lost report does not fail the run.
# shellcheck disable=SC2086 # $rank and the like are lists of words
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
cp -r "$odd" model
mv model/tokens.npy .
fm-pack -q --export cut --budget 0.4 family.fm >/dev/null
cp tokens.npy pair.bin
echo words >pair.idx
echo words >trove.ds.index
cp tokens.npy trove.ds
mkdir -p dir models--a/blobs models--a/snapshots # the model is a snapshot of a cache
mv model models--a/snapshots/0123
ln -s models--a/snapshots/0123 model
ln -s ../model dir/link
ln -s model/config.json alias
ln model/model-00002-of-00002.safetensors second
mv model/config.json models--a/blobs/b
ln -s ../../blobs/b model/config.json
cp -r cut whole
cp family.fm cut/family.fm
echo notes >notes
pristine=$(mktemp -d)
trap 'rm -rf "$pristine"' EXIT
cp -a . "$pristine"
sums() {
    find . \( -type f -o -type l \) ! -xtype d -exec cksum {} + | sort -k 3
}
before=$(sums)
# try COMMAND...: print its messages, its status, and whether any file or name has changed
try() {
    local said status
    said=$("$@" 2>&1)
    status=$?
    echo "\$ $*"
    head -n 1 <<<"$said" | figures
    echo "status $status"
    if [ "$(sums)" != "$before" ]; then
        echo "CHANGED"
        find . -mindepth 1 -delete
        cp -a "$pristine/." .
    fi
}
rank="fm-rank -q --model model --tokens tokens.npy"
train="fm-train -q --model model --tokens tokens.npy --method uniform --budget-step 0.5"
recover="fm-recover -q --model model --tokens tokens.npy --steps 1"
bench="fm-bench -q quality --tokens tokens.npy"

echo "-- an input, by every name"
for name in model/model-00001-of-00002.safetensors .//model//model-00001-of-00002.safetensors \
    dir/../model/model-00001-of-00002.safetensors dir/link/model-00001-of-00002.safetensors \
    "$PWD/model/model-00001-of-00002.safetensors" alias second models--a/blobs/b; do
    try $rank -o out --force --report "$name" | sed "s|$PWD|PWD|"
    try $rank -o "$name" --force | sed "s|$PWD|PWD|"
    try $rank -o out --force --state "$name" | sed "s|$PWD|PWD|"
done
echo "-- every input of every tool"
try $rank --force --report ./tokens.npy -o out
try fm-rank -q --model model --tokens tokens.npy:1 --tokens pair.bin:2 --force --report pair.bin -o out
try fm-rank -q --model model --tokens tokens.npy --tokenizer notes --text cut/config.json --force --report notes -o out
try fm-rank -q --model model --text notes --force --report notes -o out
try $train --eval-tokens pair.bin --force --report pair.bin -o out ranked
try $train --eval-text notes --force --report notes -o out ranked
try $train --force --report ranked -o out ranked
try $recover --force --report trained -o out trained
try fm-pack -q --model model --force --report trained -o out trained
try fm-pack -q --list --force --report family.fm family.fm
try fm-pack -q --force --export out --budget 0.4 --report family.fm family.fm
try fm-verify -q --force --report family.fm family.fm
try fm-verify -q cut --against family.fm --force --report family.fm
try $bench --force --report family.fm family.fm
try $bench --force --plot tokens.npy family.fm
try fm-bench -q kernels --family family.fm --rows 1 --repeat 1 --force --plot family.fm
try fm-bench -q kernels --family family.fm --tokens 1 --repeat 1 --force --report family.fm
echo "-- what belongs to a token file"
try fm-rank -q --model model --tokens pair.bin --force --report pair.idx -o out
try fm-rank -q --model model --tokens pair.idx --force --report pair.bin -o out
try fm-rank -q --model model --tokens trove.ds --force --report trove.ds.index -o out
try $rank --report tokens.npy.index -o out
echo "-- a new file in a directory that is read"
try $rank -o model/out
try $rank -o out --report model/report.json
try $rank -o out --report dir/link/report.json
try $rank -o out --state model/state
try $train -o out --report model/report.json ranked
try $recover -o out --report model/report.json trained
try fm-pack -q --model model -o model/family.fm trained
try fm-pack -q --model model -o out --report model/report.json trained
try fm-verify -q cut --against family.fm --report cut/report.json
try fm-verify -q cut --against family.fm --force --report cut/config.json
try $bench --model model --plot model/plot.svg family.fm
echo "-- an export over the bundle it comes from, and its report inside"
try fm-pack -q --force --export cut --budget 0.4 cut/family.fm
try fm-pack -q --force --export whole/ --budget 0.4 --report whole/report.json family.fm
echo "-- one file twice"
try $rank -o both --report ./both
try $rank -o both --state dir/../both
try $rank -o out --state both --report both
try $rank -o out --state both --report both.lock
try $rank -o both.lock --state both
try $bench --plot both --report both family.fm
try $bench --plot - --report - family.fm
try $rank -o out --state -
echo "-- what the shell opened"
try sh -c "$train --force -o ranked <ranked"
try sh -c "fm-pack --list family.fm >>family.fm"
try sh -c "$rank --report log --force >log; s=\$?; rm -f log; exit \$s"
echo "-- a user's file"
for write in "$rank -o out" "$train -o out ranked" "$recover -o out trained" \
    "fm-pack -q --model model -o out trained" "fm-pack -q --list family.fm" \
    "fm-pack -q --export out --budget 0.4 family.fm" "fm-verify -q family.fm" "$bench family.fm" \
    "fm-bench -q kernels --shape 32,16,4,2 --rows 1 --repeat 1"; do
    try $write --report notes
done
try $bench --plot notes family.fm
try fm-bench -q kernels --shape 32,16,4,2 --rows 1 --repeat 1 --plot notes
try $rank -o out --report /dev/null
try $rank -o out --report out/
try $rank -o out --state notes
try fm-verify --force family.fm
try fm-pack --list --force family.fm

show() { # show TITLE COMMAND...: print its status and its messages on standard error
    local title=$1 status
    shift
    "$@" >/dev/null 2>"$pristine/complained"
    status=$?
    grep -v 'received no token' "$pristine/complained"
    echo "$title: status $status"
}
echo "-- replaced with --force, and then as its own"
show "forced" fm-verify -q family.fm --force --report notes
show "own" fm-verify -q family.fm --report notes
head -n 2 notes
show "of fm-verify" fm-pack -q --list family.fm --report notes
show "a list" fm-pack -q --list family.fm --report list.json
show "a list again" fm-pack -q --list family.fm --report list.json
cat notes notes >log
show "a log of reports" fm-verify -q family.fm --report log
show "a plot" $bench --plot plot.svg --report bench.json family.fm
show "a plot again" $bench --plot plot.svg --report bench.json family.fm
sed -i 2d plot.svg
show "a user's plot" $bench --plot plot.svg family.fm
show "forced" $bench --plot plot.svg --force family.fm
show "a report for a plot" $bench --plot bench.json family.fm
show "a rank's report" $rank -o out --report rank.json
show "an export's, to standard output" sh -c 'fm-pack -q --export - --budget 0.4 --report pack.json family.fm | cat'

echo "-- an obstacle that appears during a run is a warning"
rank_text() { # rank_text COMMAND OPTION...: COMMAND is run after all checks
    local command=$1
    shift
    show "$command" fm-rank --model model --text notes.txt --seq-len 4 \
        --tokenizer-cmd "$command; cat >/dev/null; echo '[1, 2, 3, 4, 5, 6, 7, 8]'" "$@"
}
echo text >notes.txt
mkdir reports
rank_text "rmdir reports" -o lost --report reports/r.json --force
rank_text "echo mine >r.json" -o kept --report r.json
cat r.json
fm-pack --list lost >/dev/null && fm-pack --list kept >/dev/null && echo "both results are whole"
rank_text "echo mine >late" -o late
cat late
echo "-- a full disk"
full() {
    (
        ulimit -f 0
        "$@" 2>&1 | cat
        exit "${PIPESTATUS[0]}"
    )
    echo "status $?"
}
full fm-verify family.fm --report notes | figures
[ -e notes ] || echo "no earlier report stays"
# shellcheck disable=SC2086
full ${bench/ -q/} --plot plot.svg family.fm | grep -v '^[ 0-9]'
flip family.fm 100000
full fm-verify family.fm --report broken.json | grep 'warning\|status'
