# fm-pack --export --if-changed: a directory that equals the export is not changed, whatever its
# card says; any other export is made again, and a directory that is not an export is kept.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
again() { # again TITLE OPTION...: print its messages, its status, and whether the weights were written
    local before after status
    before=$(stat -c %i out/*.safetensors 2>&1)
    fm-pack --export out --if-changed "${@:2}" family.fm >said 2>&1
    status=$?
    after=$(stat -c %i out/*.safetensors 2>&1)
    echo "-- $1: status $status, $([ "$before" = "$after" ] && echo left || echo made)"
    grep -e '^up to date' -e '^export ' -e '^fm-pack: [^a]' said | sed 's/took .*/took TIME/'
}
budget=(--budget 0.4)
again "not there" "${budget[@]}"
again "there" "${budget[@]}"
touch out/* family.fm
printf 'mine\n' >>out/README.md
fm-bench quality -q --eval-tokens "$odd/tokens.npy" --seq-len 8 --max-eval-tokens 64 --record --benchmark me/mine:text out >/dev/null
again "other times, a card that was edited, figures that were measured" --budget 0.40 -T 2
rm -r out/.eval_results
again "another budget" --budget 0.2
again "another layout" --budget 0.2 --layout uniform
again "another name of the original" --budget 0.2 --layout uniform --base-model me/mine
again "that name" --budget 0.2 --layout uniform --base-model me/mine
flip out/model.safetensors 4000
again "a byte of a weight" --budget 0.2 --layout uniform --base-model me/mine
echo '{}' >out/generation_config.json
again "another export's file" --budget 0.2 --layout uniform --base-model me/mine
rm out/generation_config.json
echo ' ' >>out/config.json
again "a text" --budget 0.2 --layout uniform --base-model me/mine
again "and again" --budget 0.2
rm family.fm ranked trained
family saliency --until 0.5
again "another bundle" --budget 0.2
fm-pack --export out --if-changed --budget 0.2 --json family.fm 2>/dev/null |
    sed 's/"seconds": .*/"seconds": S/'
echo "-- refused"
mkdir other
echo mine >other/notes
fm-pack -q --export other --if-changed --budget 0.3 family.fm
echo "status $?, $(cat other/notes)"
fm-pack -q --export - --if-changed --budget 0.3 family.fm
echo "status $?"
fm-pack -q --export out --if-changed --budget 0.3 - <family.fm
echo "status $?"
