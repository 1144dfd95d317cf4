# Ranks and --if-changed: rank 0 checks the output, and all ranks continue or none does.
# shellcheck source=tests/ranks.sh
. "$GOLDEN/../tests/ranks.sh"
prepare
stage() { # stage TITLE N TOOL OPTION...: print its messages, its status, and whether the output was written
    local title=$1 before
    before=$(stat -c %i "${*: -1}" 2>&1)
    shift
    "$MPIRUN" -n "$1" "$mpi/$2" "${@:3}" >out 2>err
    echo "-- $title: status $?, $([ "$before" = "$(stat -c %i "${*: -1}" 2>&1)" ] && echo left || echo made)"
    grep -o '^up to date' out
    said <err
}
twice=("${rank[@]:1}" --if-changed -o)
stage "two ranks, nothing there" 2 fm-rank "${twice[@]}" ranked
stage "three ranks: the same" 3 fm-rank "${twice[@]}" ranked
"${rank[@]}" --if-changed -o ranked | grep -o '^up to date'
echo mine >notes
stage "somebody's file" 2 fm-rank "${twice[@]}" notes
stage "training" 2 fm-train "${train[@]:1}" --if-changed ranked -o trained
stage "training: the same" 2 fm-train "${train[@]:1}" --if-changed ranked -o trained
stage "another option" 2 fm-rank --criterion energy "${twice[@]}" ranked
