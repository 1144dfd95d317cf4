#!/usr/bin/env bash
# All literal blocks of README.md and the man pages are run by a test or marked (tests/pages.py); a page
# that breaks a rule is found; and the commands of fm-hacking(7) run.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
build=${BUILD:-build}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
unset MAKEFLAGS MFLAGS MAKELEVEL # set by `make check`
export PYTHONDONTWRITEBYTECODE=1 BUILD="$build"
bad=0
fail() {
    echo "$*"
    bad=1
}
python3 tests/pages.py check || bad=1

# A copy of this tree with its own pages, in which all these faults are found in one run.
mkdir "$scratch/tests"
ln -s "$root"/* "$root/.ci" "$scratch" 2>/dev/null
ln -s "$root"/tests/* "$scratch/tests"
rm "$scratch"/{README.md,man,tests/pages.py} && cp tests/pages.py "$scratch/tests" && cp -r README.md man "$scratch"
# broken PAGE SED WORDS: change the page with sed; a line of the output must have the words.
broken() {
    cp "$scratch/$1" "$scratch/before"
    sed -i "$2" "$scratch/$1"
    cmp -s "$scratch/before" "$scratch/$1" && fail "$1 has nothing to change by $2"
    echo "$1"$'\t'"$3" >>"$scratch/expected"
}
broken README.md 's/--seq-len 512/--seq-lne 512/' 'fm-family has no option --seq-lne'
# shellcheck disable=SC2016 # backticks of the page
broken README.md 's/`fm-pack --keep-extra`/`fm-pack --kept-extra`/' 'fm-pack has no option --kept-extra'
broken README.md 's/^<!-- run: cli.page-examples family -->//' 'no test runs this block'
broken README.md 's/^checkpoint + text/fm-verify --all family.fm/' 'marked as text'
broken README.md 's/^make demo/make demos/' "No rule to make target 'demos'"
broken man/fm-mpi.7 's/^make MPI=1/make MPl=1/' 'nothing reads the variable MPl'
broken man/fm-mpi.7 's/openmpi-bin/openmpi-tools/' 'installs no openmpi-tools'
broken man/fm-guide.7 's/^llama-server -m out34-q4.gguf .*/fm-pack --lists # not run/' 'fm-pack has no option --lists'
broken man/fm-train.1 's/^\.It Fl -until Ar R$/.It Fl -untill Ar R/' 'no tool has an option --untill'
broken man/fm-hacking.7 's/(not run: they need/(they need/' ".ci/run has no 'make fuzz'"
broken man/fm-clip.3 's/run: unit.test_install$/run: unit\/test_nothing/' 'no test unit/test_nothing'
broken man/fm.7 's/cli.fm7-examples/cli\/fm7-examples PBS/' "takes no block 'PBS'"
broken man/fm-clip.3 '/^\.Sh SEE ALSO/i .Bd -literal\nfm-rank -m MODEL\n.Ed' 'no test runs this block'

python3 "$scratch/tests/pages.py" check >"$scratch/said" && fail "pages with faults are accepted"
while IFS=$'\t' read -r page words; do
    grep "^$page:[0-9]*: " "$scratch/said" | grep -qF -e "$words" || fail "$page: nothing says: $words"
done <"$scratch/expected"
[ $bad = 0 ] || cat "$scratch/said"

python3 tests/pages.py take fm-hacking.7 unit/test_pages | sed "s|build/|$build/|g" >"$scratch/commands"
[[ $build != */no-cuda* ]] || export CUDA=0
# shellcheck disable=SC2317 # the page's commands call it
make() { command make -s --no-print-directory BUILD="$build" SAN="${SAN:-}" "$@"; }
# shellcheck source=/dev/null
(set -e && . "$scratch/commands") >"$scratch/said" 2>&1 || fail "fm-hacking(7): $(cat "$scratch/said")"
[ "$(grep -c ' passed, 0 failed' "$scratch/said")" = 2 ] || fail "fm-hacking(7): $(cat "$scratch/said")"
exit $bad
