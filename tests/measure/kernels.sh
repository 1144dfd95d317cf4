#!/usr/bin/env bash
# `make bench-kernels`: measure clipped layers on this machine, which should be otherwise idle.  The
# result goes to tests/measure/kernels.json and its table into fm-bench(1), between the two comment
# lines that mark it.  tests/unit/test_benchpage.c checks the table against the JSON.
set -eu
cd "$(dirname "$0")/../.."
BUILD=${BUILD:-build}
table=$(mktemp)
trap 'rm -f "$table" "$table.md"' EXIT
"$BUILD/bin/fm-bench" kernels --dtype "${FM_BENCH_DTYPE:-f32}" \
    --rows "${FM_BENCH_ROWS:-64,512}" --repeat "${FM_BENCH_REPEAT:-41}" \
    --report tests/measure/kernels.json --force >"$table"
awk -v table="$table" '
    /^\.\\" kernels$/ { print; while ((getline line < table) > 0) print line; skip = 1 }
    /^\.\\" end of kernels$/ { skip = 0 }
    !skip && !/^\.\\" kernels$/
' man/fm-bench.1 >"$table.md"
cat "$table.md" >man/fm-bench.1
cat "$table"
