#!/usr/bin/env bash
# files.py and measure-engine at a small size: every row has a figure, and --keep leaves a checkpoint.
set -u
export BUILD=$PWD/${BUILD:-build}
bin=$BUILD/bin files=$PWD/tests/measure/files.py
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
bad=0
fail() {
    echo "$*"
    bad=1
}
"$bin/measure-engine" --shape 64,37,3,2,2,97,16 --dtype f32 --sequences 3 --steps 1 --recover 1 --keep --dir . >engine ||
    fail "measure-engine: status $?"
for row in rank train recover; do
    grep -q "^$row: [1-9][0-9.e+]* tokens/s; .* for [0-9.e-]*[1-9][0-9.e-]* useful GFLOP" engine || fail "no row $row: $(cat engine)"
done
[ "$(grep -c '^  gemm  *[1-9]' engine)" = 3 ] || fail "no products: $(cat engine)"
[ -e "$(sed -n 's/^kept in //p' engine)/model/config.json" ] || fail "nothing was kept"
python3 -B "$files" --size 3 --repeat 1 --dir . >io || fail "files.py: status $?"
for row in 'cp + fsync' pack 'export native' xxhsum 'verify bundle' 'verify export'; do
    grep -q "^$row  *[1-9].*B  *[0-9]" io || fail "no row $row: $(cat io)"
done
exit $bad
