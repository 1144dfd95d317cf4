# Outputs, plots and states never replace an input, a file among the inputs, another
# output, or a file of the user.  And a lost plot does not fail the run.
# shellcheck disable=SC2086 # $rank and the like are lists of words
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
cp -r "$odd" model
mv model/tokens.npy .
fm-pack -q --export cut --budget 0.4 family.fm >/dev/null
cp tokens.npy pair.bin
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
    try $rank -o "$name" --force | sed "s|$PWD|PWD|"
    try $rank -o out --force --state "$name" | sed "s|$PWD|PWD|"
done
echo "-- every input of every tool"
try $rank --force --state ./tokens.npy -o out
try fm-rank -q --model model --tokens tokens.npy:1 --tokens pair.bin:2 --force --state pair.bin -o out
try fm-rank -q --model model --tokens tokens.npy --tokenizer notes --text cut/config.json --force --state notes -o out
try fm-rank -q --model model --text notes --force --state notes -o out
try $train --eval-tokens pair.bin --force --state pair.bin -o out ranked
try $train --eval-text notes --force --state notes -o out ranked
try $train --force --state ranked -o out ranked
try $recover --force --state trained -o out trained
try fm-pack -q --model model --force -o trained trained
try fm-pack -q --force --export family.fm --budget 0.4 family.fm
try $bench --force --plot family.fm family.fm
try $bench --force --plot tokens.npy family.fm
try fm-bench -q kernels --family family.fm --rows 1 --repeat 1 --force --plot family.fm
echo "-- a new file in a directory that is read"
try $rank -o model/out
try $rank -o out --state model/report.json
try $rank -o out --state dir/link/report.json
try $rank -o out --state model/state
try $train -o out --state model/report.json ranked
try $recover -o out --state model/report.json trained
try fm-pack -q --model model -o model/family.fm trained
try $bench --model model --plot model/plot.svg family.fm
echo "-- an export over the bundle it comes from"
try fm-pack -q --force --export cut --budget 0.4 cut/family.fm
echo "-- one file twice"
try $rank -o both --state dir/../both
try $rank -o both.lock --state both
try $rank -o out --state -
echo "-- what the shell opened"
try sh -c "$train --force -o ranked <ranked"
try sh -c "fm-pack --list family.fm >>family.fm"
try sh -c "$rank --state log --force >log; s=\$?; rm -f log; exit \$s"
echo "-- a user's file"
for write in "$rank -o notes" "$train -o notes ranked" "$recover -o notes trained" \
    "fm-pack -q --model model -o notes trained" "fm-pack -q --export notes --budget 0.4 family.fm"; do
    try $write
done
try $bench --plot notes family.fm
try fm-bench -q kernels --shape 32,16,4,2 --rows 1 --repeat 1 --plot notes
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
echo "-- replaced as its own, or with --force"
show "a plot" $bench --plot plot.svg family.fm
show "a plot again" $bench --plot plot.svg family.fm
sed -i 2d plot.svg
show "a user's plot" $bench --plot plot.svg family.fm
show "forced" $bench --plot plot.svg --force family.fm

echo "-- an obstacle that appears during a run"
rank_text() { # rank_text COMMAND OPTION...: COMMAND is run after all checks
    local command=$1
    shift
    show "$command" fm-rank --model model --text notes.txt --seq-len 4 \
        --tokenizer-cmd "$command; cat >/dev/null; echo '[1, 2, 3, 4, 5, 6, 7, 8]'" "$@"
}
echo text >notes.txt
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
# shellcheck disable=SC2086
full ${bench/ -q/} --plot plot.svg family.fm | grep -v '^[ 0-9]'
