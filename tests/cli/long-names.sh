# An output whose name is too long for any file system cannot be made: status 73, before any work.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
long=$(printf 'a%.0s' {1..256})
deep=$(printf 'aaaaaaa/%.0s' {1..600})
on=(--model "$odd" --tokens "$odd/tokens.npy")
try() {
    "$@" >said 2>complained
    echo "$1 ${*: -1}: status $?, $(grep -c . complained) sentence" | sed 's/[a/]\{9,\}/NAME/'
    rm -rf out
}
for name in "$long" "$deep" "${deep}x" "$long/x"; do
    for run in "" --dry-run; do
        try fm-rank -q $run "${on[@]}" -o "$name"
        try fm-rank -q $run "${on[@]}" -o out --state "$name"
        try fm-pack -q $run --model "$odd" trained -o "$name"
        try fm-pack -q $run --budget 0.2 family.fm --export "$name"
    done
done
ls -A
