#!/usr/bin/env bash
# Every reader under libFuzzer with the address and undefined-behaviour sanitizers: each target of
# tests/fuzz runs FUZZ_SECONDS from all hostile files in golden/bad.  Prints how many inputs each
# met; status 1 where one ended otherwise, its input is kept in $BUILD/NAME.
#
#   CLANG=clang-19 FUZZ_SECONDS=120 tests/fuzz/fuzz.sh [NAME...]      NAME: fuzz_bundle ...
set -u
cd "$(dirname "$0")/../.." || exit 1
BUILD=${BUILD:-build/fuzz}
CLANG=${CLANG:-clang}
seconds=${FUZZ_SECONDS:-120}
if [ $# = 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do set -- "$@" "$(basename "$source" .c)"; done
fi
command -v "$CLANG" >/dev/null || {
    echo "fuzz.sh: no $CLANG; on Debian: apt-get install clang-19 libclang-rt-19-dev, CLANG=clang-19" >&2
    exit 1
}

# -w: gcc's warnings are the ones that count.
make -s BUILD="$BUILD" CUDA=0 CC="$CLANG" SAN=fuzzer-no-link,address,undefined WARN=-w \
    CPPFLAGS=-DFM_FUZZ LDFLAGS=-fsanitize=fuzzer "${@/#/$BUILD/tests/fuzz/}" || exit 1

status=0
for name; do
    mkdir -p "$BUILD/$name/corpus" # what it finds goes to the first folder
    found=$BUILD/$name.log
    if "$BUILD/tests/fuzz/$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 \
        -print_final_stats=1 -artifact_prefix="$BUILD/$name/" "$BUILD/$name/corpus" golden/bad >"$found" 2>&1; then
        verdict=passed
    else
        verdict="FAILED, see $found"
        status=1
    fi
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$found")
    covered=$(grep -o 'cov: [0-9]*' "$found" | tail -n 1)
    printf '%s: %s inputs in %s s, %s: %s\n' "$name" "${inputs:-?}" "$seconds" "${covered:-cov: ?}" "$verdict"
done
exit $status
