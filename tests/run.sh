#!/usr/bin/env bash
# Run the tests of `make check`: unit tests, command-line tests, fuzz programs, the demo; print one line
# per test.
#
#   BUILD=build tests/run.sh [PATTERN]     only tests whose name matches the pattern
#   BLESS=1 tests/run.sh cli/NAME          write the goldens of a command-line test again
#
# A unit test is a program: status 0 passes, 77 skips, any other fails.  A command-line test is a
# script without checks of its own: its output, a line `== status N` and its standard error are
# compared with golden/cli/NAME; with status 77 it is skipped, and the last line of its standard
# error has the reason.  Each test runs in an empty folder, with the tools in PATH, golden/ in GOLDEN
# and tests/cli in PYTHONPATH.  FM_TEST_JOBS tests run in parallel (default: the number of
# processors), and a line is printed when one ends.  If no test matches, the run fails.
set -um # job control, so that tests can interrupt their background processes
cd "$(dirname "$0")/.." || exit 1
root=$PWD
BUILD=${BUILD:-build}
pattern=${1:-*}
seconds_max=${FM_TEST_SECONDS_MAX:-600} # the time limit of a test
[ -z "${SAN:-}" ] || seconds_max=${FM_TEST_SECONDS_MAX:-3600}
jobs_max=${FM_TEST_JOBS:-$(nproc)}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export BUILD
trap 'exit 130' INT TERM # running tests end on their own
tests=0 running=0

# result NAME STATUS BEGAN LOG: print a line, and the log of a failure, in one write, because tests run in
# parallel.
result() {
    local took=$((SECONDS - $3)) text
    times >"$own/times" # of the children of this process, which is one test
    awk -F '[ms ]' -v name="$1" 'NR == 2 { printf "%8.1f  %s\n", 60 * ($1 + $4) + $2 + $5, name }' \
        "$own/times" >>"$scratch/cpu"
    case $2 in
    0) text="ok    $1 ($took s)" && echo "$1" >>"$scratch/passed" ;;
    77) text="skip  $1: $(tail -n 1 "$4")" && echo "$1" >>"$scratch/skipped" ;;
    *)
        text="FAIL  $1 ($took s, status $2)"$'\n'"$(sed 's/^/      /' "$4" | tail -n 60)"
        echo "$1" >>"$scratch/failed"
        ;;
    esac
    printf '%s\n' "$text"
}

# count passed|failed|skipped: the number of tests with this result.
count() {
    if [ -e "$scratch/$1" ]; then wc -l <"$scratch/$1"; else echo 0; fi
}

wanted() {
    # shellcheck disable=SC2053 # the right side is a pattern
    [[ $1 == $pattern ]]
}

# start FUNCTION ARGUMENTS...: run it in the background, with its folder in $own.
start() {
    if [ "$running" -ge "$jobs_max" ]; then
        wait -fn # until one ends; -f: a stopped one does not count
        running=$((running - 1))
    fi
    tests=$((tests + 1)) running=$((running + 1))
    own=$scratch/$tests
    mkdir -p "$own/tmp" || exit 1
    TMPDIR=$own/tmp "$@" & # its own: launchers of ranks that start at the same moment share a folder there
}

# run NAME COMMAND...: run it with the time limit, and print its result.
run() {
    local name=$1 began=$SECONDS status
    timeout -k 10 "$seconds_max" "${@:2}" >"$own/log" 2>&1 </dev/null
    status=$?
    [ $status != 124 ] || echo "timed out after $seconds_max s" >>"$own/log"
    result "$name" $status "$began" "$own/log"
}

unit_tests() {
    local source name
    for source in tests/unit/test_*.c tests/unit/test_*.cc; do
        [ -e "$source" ] || continue
        name=$(basename "$source")
        name=unit/${name%.*}
        wanted "$name" || continue
        start run "$name" "$BUILD/tests/$name"
    done
}

# Unit tests that are scripts, with the same statuses.
scripts() {
    local source name
    for source in tests/unit/test_*.sh; do
        [ -e "$source" ] || continue
        name=unit/$(basename "$source" .sh)
        wanted "$name" || continue
        start run "$name" bash "$source"
    done
}

# Fuzz programs without a fuzzer: each reader gets every hostile file, whole and mutated, and the inputs in
# golden/fuzz.  They abort if a reader violates its contract.
replays() {
    local source name corpus
    for source in tests/fuzz/fuzz_*.c; do
        [ -e "$source" ] || continue
        name=fuzz/$(basename "$source" .c)
        wanted "$name" || continue
        corpus=$BUILD/tests/$name.corpus
        rm -rf "$corpus" && mkdir -p "$corpus"
        if [ -e "golden/$name.tar.gz" ]; then tar -C "$corpus" -xzf "golden/$name.tar.gz"; fi
        start run "$name" "$BUILD/tests/$name" -n 100 "$BUILD/bad" -n 1 "$corpus"
    done
}

compare() { # compare NAME: compare the test's transcript with its golden; 0 if they agree
    local golden=golden/cli/$1
    if [ "${BLESS:-0}" = 1 ]; then
        mkdir -p golden/cli && cp "$own/transcript" "$golden"
    elif [ ! -e "$golden" ]; then
        echo "no $golden; read what the test prints, then BLESS=1"
        cat "$own/transcript"
        return 1
    else
        diff -u --label "$golden" --label "$1" "$golden" "$own/transcript"
    fi
}

cli_test() { # cli_test NAME
    local name=$1 began=$SECONDS status
    mkdir "$own/empty"
    (
        cd "$own/empty" || exit 99
        PATH=$root/$BUILD/bin:$PATH GOLDEN=$root/golden LC_ALL=C \
            PYTHONPATH=$root/tests/cli PYTHONDONTWRITEBYTECODE=1 \
            timeout -k 10 "$seconds_max" bash "$root/tests/cli/$name.sh" \
            >"$own/out" 2>"$own/err" </dev/null
    )
    status=$?
    if [ $status = 77 ]; then
        result "cli/$name" 77 "$began" "$own/err"
    else
        { cat "$own/out" && echo "== status $status" && cat "$own/err"; } >"$own/transcript"
        compare "$name" >"$own/log"
        result "cli/$name" $? "$began" "$own/log"
    fi
    rm -rf "$own/empty"
}

cli_tests() {
    local script name
    for script in tests/cli/*.sh; do
        [ -e "$script" ] || continue
        name=$(basename "$script" .sh)
        wanted "cli/$name" || continue
        start cli_test "$name"
    done
}

run_demo() {
    local began=$SECONDS
    if [ -n "${SAN:-}" ]; then
        echo "not run under sanitizers, where it takes an hour" >"$own/log"
        result demo 77 "$began" "$own/log"
        return
    fi
    PATH=$root/$BUILD/bin:$PATH timeout -k 10 900 bash tests/demo.sh >"$own/log" 2>&1 </dev/null
    result demo $? "$began" "$own/log"
}

demo() {
    ! wanted demo || start run_demo
}

demo
cli_tests
unit_tests
scripts
replays
# shellcheck disable=SC2046 # without a list of jobs, wait would ignore a test that is stopped for a while
wait -f $(jobs -p)

# Report processor time, which depends less on other processes than elapsed time does.
if [ $tests -gt 20 ]; then
    echo "The twenty tests that took the most processor time, in seconds:"
    sort -nr "$scratch/cpu" | head -n 20
fi
passed=$(count passed) failed=$(count failed) skipped=$(count skipped)
# The instruction set that the tests used (fm(7), FM_ISA).
units=$("$BUILD/tests/unit/test_isa" level 2>/dev/null) || units="vector units unknown: no test_isa"
echo "$passed passed, $failed failed, $skipped skipped ($units)"
[ "$failed" = 0 ] || sed 's/^/failed: /' "$scratch/failed"
if [ $((passed + failed)) = 0 ]; then
    echo "run.sh: no test ran (pattern '$pattern')" >&2
    exit 1
fi
if [ $((passed + failed + skipped)) != $tests ]; then
    echo "run.sh: $tests tests began, and not all of them have a result" >&2
    exit 1
fi
[ "$failed" = 0 ]
