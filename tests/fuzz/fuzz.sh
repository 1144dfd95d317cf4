#!/usr/bin/env bash
# Run each target of tests/fuzz under libFuzzer for FUZZ_SECONDS, starting from
# golden/fuzz, all hostile files that tests/bad/make.py makes, and the inputs that earlier runs kept in
# build/fuzz/corpus.  Prints how many inputs each target ran.  Status 1 if one crashed or hung; its input
# is kept in build/fuzz/NAME.
#
#   CLANG=clang-19 FUZZ_SECONDS=120 tests/fuzz/fuzz.sh [NAME...]      NAME: fuzz_bundle ...
#   tests/fuzz/fuzz.sh --table      inputs and coverage of all runs so far, in Markdown
#
# FUZZ_SAN=address,undefined is the default; FUZZ_SAN= builds without sanitizers and without tracing of
# comparisons, which is faster and finds only inputs that cause an assert, abort, hang or signal.
set -u
cd "$(dirname "$0")/../.." || exit 1
CLANG=${CLANG:-clang}
seconds=${FUZZ_SECONDS:-120}
san=${FUZZ_SAN-address,undefined}
all=build/fuzz
BUILD=$all/${san:-plain}
BUILD=${BUILD//,/-}
mkdir -p "$all/count"
# Keep freed memory in the process: getting it from the kernel again takes longer than most inputs.
if [ ! "$san" ]; then export MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TRIM_THRESHOLD_=2000000000; fi

# The maximum input length in bytes; longer inputs cover nothing new.
length() {
    case $1 in
    fuzz_bundle | fuzz_pipe) echo 65536 ;;
    fuzz_checkpoint) echo 16384 ;;
    fuzz_figures | fuzz_oms | fuzz_tokenizer) echo 8192 ;;
    fuzz_segments | fuzz_key) echo 2048 ;;
    fuzz_maskset) echo 1024 ;;
    fuzz_modules) echo 320 ;;
    *) echo 4096 ;;
    esac
}

# count/NAME has a line for each run: the build, inputs, seconds, edges covered, all edges.
table() {
    local name file
    echo "| reader | inputs | with sanitizers | coverage |"
    echo "| :-- | --: | --: | --: |"
    for file in "$all"/count/fuzz_*; do
        name=${file##*/fuzz_}
        awk -v name="$name" '{ sum += $2; if ($1 != "plain") san += $2
                               if ($4 > met) { met = $4; of = $5 } }
            END { printf "| %s | %.0f | %.0f | %d of %d edges |\n", name, sum, san, met, of }' "$file"
    done
    cat "$all"/count/fuzz_* | awk '{ sum += $2; if ($1 != "plain") san += $2 }
        END { printf "| all | %.0f | %.0f | |\n", sum, san }'
}

if [ "${1-}" = --table ]; then
    table
    exit
fi
if [ $# = 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do set -- "$@" "$(basename "$source" .c)"; done
fi
command -v "$CLANG" >/dev/null || {
    echo "fuzz.sh: no $CLANG; on Debian: apt-get install clang-19 libclang-rt-19-dev, CLANG=clang-19" >&2
    exit 1
}

plain=
if [ ! "$san" ]; then plain=" -fno-sanitize-coverage=trace-cmp"; fi
# -w: warnings are checked in the build by gcc.
make -s BUILD="$BUILD" CUDA=0 CC="$CLANG" SAN="fuzzer-no-link${san:+,$san}" WARN=-w \
    CPPFLAGS="-DFM_FUZZ$plain" LDFLAGS=-fsanitize=fuzzer "$BUILD/bad.made" "${@/#/$BUILD/tests/fuzz/}" || exit 1

status=0
for name; do
    corpus=$all/corpus/$name
    mkdir -p "$corpus" "$all/$name" # libFuzzer writes new inputs to the first folder
    if [ -e "golden/fuzz/$name.tar.gz" ]; then tar -C "$corpus" -xzf "golden/fuzz/$name.tar.gz"; fi
    found=$all/$name.log
    if "$BUILD/tests/fuzz/$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -reload=0 \
        -max_len="$(length "$name")" -print_final_stats=1 -artifact_prefix="$all/$name/" \
        "$corpus" "$BUILD/bad" >"$found" 2>&1; then
        verdict=passed
    else
        verdict="FAILED, see $found"
        status=1
    fi
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$found" | tail -n 1)
    covered=$(grep -o 'cov: [0-9]*' "$found" | tail -n 1)
    edges=$(sed -n 's/^INFO: Loaded .*(\([0-9]*\) inline 8-bit counters).*/\1/p' "$found" | tail -n 1)
    if [ "$inputs" ] && [ "$covered" ]; then
        echo "${BUILD##*/} $inputs $seconds ${covered#cov: } $edges" >>"$all/count/$name"
    fi
    printf '%s: %s inputs in %s s, %s of %s: %s\n' "$name" "${inputs:-?}" "$seconds" \
        "${covered:-cov: ?}" "${edges:-?}" "$verdict"
done
exit $status
