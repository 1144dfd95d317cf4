#!/usr/bin/env bash
# The runner of `make check`: unit tests, command-line tests, the demo; one line per test.
#
#   BUILD=build tests/run.sh [PATTERN]     only tests whose name matches the pattern
#   BLESS=1 tests/run.sh cli/NAME          write the goldens of a command-line test again
#
# A unit test is a program: 0 passes, 77 skips, anything else fails.  A command-line test is a
# script that decides nothing: what it prints and its status are compared with
# golden/cli/NAME.{out,err,rc}; one that ends with 77 skips, and the last line of its standard
# error says why.  Each runs in an empty folder of its own, with the tools in PATH and GOLDEN naming
# golden/.  A run without a test is a failure.
set -u
cd "$(dirname "$0")/.." || exit 1
root=$PWD
BUILD=${BUILD:-build}
pattern=${1:-*}
seconds_max=${FM_TEST_SECONDS_MAX:-600} # the guard against a test that hangs
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0 skipped=0
failures=()

result() { # result NAME STATUS BEGAN LOG
    local took=$((SECONDS - $3))
    case $2 in
    0) passed=$((passed + 1)) && echo "ok    $1 ($took s)" ;;
    77) skipped=$((skipped + 1)) && echo "skip  $1: $(tail -n 1 "$4")" ;;
    *)
        failed=$((failed + 1))
        failures+=("$1")
        echo "FAIL  $1 ($took s, status $2)"
        sed 's/^/      /' "$4" | tail -n 60
        ;;
    esac
}

wanted() {
    # shellcheck disable=SC2053 # the right side is a pattern
    [[ $1 == $pattern ]]
}

# run NAME COMMAND...: with the guard, and its result.
run() {
    local name=$1 began=$SECONDS status
    timeout -k 10 "$seconds_max" "${@:2}" >"$scratch/log" 2>&1 </dev/null
    status=$?
    [ $status != 124 ] || echo "no end after $seconds_max s" >>"$scratch/log"
    result "$name" $status "$began" "$scratch/log"
}

unit_tests() {
    local source name
    for source in tests/unit/test_*.c tests/unit/test_*.cc; do
        [ -e "$source" ] || continue
        name=$(basename "$source")
        name=unit/${name%.*}
        wanted "$name" || continue
        run "$name" "$BUILD/tests/$name"
    done
}

# Facts about what was built, by script; the same statuses as a program's.
scripts() {
    local source name
    for source in tests/unit/test_*.sh; do
        [ -e "$source" ] || continue
        name=unit/$(basename "$source" .sh)
        wanted "$name" || continue
        BUILD=$BUILD run "$name" bash "$source"
    done
}

# Fuzz programs without a fuzzer: every hostile file through every reader, whole and mutated.  They
# abort where a reader breaks its word.
replays() {
    local source name
    for source in tests/fuzz/fuzz_*.c; do
        [ -e "$source" ] || continue
        name=fuzz/$(basename "$source" .c)
        wanted "$name" || continue
        run "$name" "$BUILD/tests/$name" -n 100 golden/bad
    done
}

compare() { # compare NAME: the three files of the test with their goldens; 0 where they agree
    local name=$1 kind golden status=0
    for kind in out err rc; do
        golden=golden/cli/$name.$kind
        if [ "${BLESS:-0}" = 1 ]; then
            mkdir -p golden/cli && cp "$scratch/$kind" "$golden"
        elif [ ! -e "$golden" ]; then
            echo "no $golden; read what the test prints, then BLESS=1"
            sed "s/^/$kind: /" "$scratch/$kind"
            status=1
        elif ! diff -u --label "$golden" --label "$name $kind" "$golden" "$scratch/$kind"; then
            status=1
        fi
    done
    return $status
}

cli_tests() {
    local script name began
    for script in tests/cli/*.sh; do
        [ -e "$script" ] || continue
        name=$(basename "$script" .sh)
        wanted "cli/$name" || continue
        began=$SECONDS
        rm -rf "$scratch/empty" && mkdir "$scratch/empty"
        (
            cd "$scratch/empty" || exit 99
            PATH=$root/$BUILD/bin:$PATH GOLDEN=$root/golden LC_ALL=C \
                timeout -k 10 "$seconds_max" bash "$root/$script" \
                >"$scratch/out" 2>"$scratch/err" </dev/null
            echo $? >"$scratch/rc"
        )
        if [ "$(cat "$scratch/rc")" = 77 ]; then
            result "cli/$name" 77 "$began" "$scratch/err"
            continue
        fi
        compare "$name" >"$scratch/log"
        result "cli/$name" $? "$began" "$scratch/log"
    done
}

demo() {
    local began=$SECONDS
    wanted demo || return 0
    if [ -n "${SAN:-}" ]; then
        echo "not under sanitizers: minutes become an hour" >"$scratch/log"
        result demo 77 "$began" "$scratch/log"
        return
    fi
    PATH=$root/$BUILD/bin:$PATH timeout -k 10 900 bash tests/demo.sh >"$scratch/log" 2>&1 </dev/null
    result demo $? "$began" "$scratch/log"
}

unit_tests
scripts
replays
cli_tests
demo

echo "$passed passed, $failed failed, $skipped skipped"
if [ ${#failures[@]} -gt 0 ]; then
    printf 'failed: %s\n' "${failures[@]}"
fi
if [ $((passed + failed)) = 0 ]; then
    echo "run.sh: no test ran (pattern '$pattern')" >&2
    exit 1
fi
[ "$failed" = 0 ]
