# If the result cannot be printed, the run fails and the output does not exist: the same command can
# be run again.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
mkdir in && mv ranked trained family.fm in
model=(-q --model "$odd" --tokens "$odd/tokens.npy")
again() { # again COMMAND...: three runs that cannot print, then one that can; the output is `out`
    local full closed json last
    "$@" 2>>said >/dev/full
    full=$?
    "$@" 2>>said >&-
    closed=$?
    "$@" --json 2>>said >/dev/full
    json=$?
    echo "$1 $full $closed $json: $(find . -maxdepth 1 -name '*out*' | wc -l) files"
    "$@" 2>>said >/dev/null
    last=$?
    echo "again: status $last, $(find . -maxdepth 1 -name out | wc -l) files"
    rm -rf out
}
again fm-rank "${model[@]}" -o out
again fm-rank "${model[@]}" -o out --state state
again fm-train "${model[@]}" --method uniform --budget-step 0.5 -o out in/ranked
again fm-recover "${model[@]}" --steps 1 -o out in/trained
again fm-pack -q --model "$odd" -o out in/trained
again fm-pack -q --export out --budget 0.4 in/family.fm
grep -v 'received no token' said | sort | uniq -c | sed 's/^ *//'
find . -mindepth 1 -maxdepth 1 | sort
