# No output replaces one of its inputs, with or without --force; a ragged export is not a checkpoint.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
cp -r "$odd" model
cp model/tokens.npy tokens.npy
try() {
    echo "\$ $*"
    "$@" 2>&1 | figures | sed 's/layer [0-9]*, expert [0-9]* has [0-9]*/layer L, expert E has N/'
    echo "status ${PIPESTATUS[0]}"
}
sums() {
    find model tokens.npy ranked trained family.fm -type f -exec cksum {} + | sort -k 3 | cksum
}
sums >before
try fm-rank -q --force --model model --tokens tokens.npy -o tokens.npy
try fm-rank -q --force --model model --tokens tokens.npy:2 --tokens model/tokens.npy -o ./tokens.npy
try fm-rank -q --force --model model --tokens tokens.npy -o model/config.json
try fm-rank -q --force --model model --tokens tokens.npy --state here -o here
try fm-train -q --force --model model --tokens tokens.npy --eval-tokens tokens.npy -o ranked ranked
try fm-pack -q --force --model model -o trained trained
try fm-pack -q --force --model model -o model/tokens.npy trained
try fm-pack -q --force --export model --budget 0.4 family.fm
try fm-rank -q --model model --tokens tokens.npy -o none --state tokens.npy
try fm-rank -q --model model --tokens tokens.npy -o none --state no/such/folder
try fm-bench quality --tokens tokens.npy --plot family.fm family.fm
sums | cmp - before && echo "all as before"
fm-pack -q --export cut/ --budget 0.4 family.fm >/dev/null
try fm-rank -q --model cut --tokens tokens.npy -o none
try fm-bench quality --model cut --tokens tokens.npy trained
try fm-train -q --model cut --tokens tokens.npy -o none ranked
try fm-verify -q --function --tokens tokens.npy --model cut family.fm
fm-pack -q --force --export cut --budget 0.5 family.fm >/dev/null
echo "an export over an export: status $?"
ls
