#!/usr/bin/env bash
# Interrupt the writing of a bundle in parts, by a failing call or by kill -9.  The first part must not
# have its final name unless the set is complete; and the same command, run again, must write the
# complete set and leave nothing else.  If the set replaces another one, either of them must be whole
# at any time.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD odd=$PWD/golden/odd-mixtral
bin=$root/${BUILD:-build}/bin
faults=$root/${BUILD:-build}/tests/unit/faults.so
[ -z "${SAN:-}" ] || { echo "this test preloads a library, which sanitizers do not allow" && exit 77; }
[ -e "$faults" ] || { echo "no $faults; make tests" && exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0 runs=0
"$bin/fm-rank" -q --model "$odd" --tokens "$odd/tokens.npy" -o ranked >/dev/null 2>&1 &&
    "$bin/fm-train" -q --model "$odd" --tokens "$odd/tokens.npy" --method saliency \
        --budget-step 0.2 -o trained ranked >/dev/null 2>&1 || exit 1

# pack FAULT OPTION...: pack into p, with that fault.
pack() {
    local fault=$1
    shift
    runs=$((runs + 1))
    (LD_PRELOAD=$faults FM_FAULT=$fault FM_FAULT_TOLD=$work/told exec "$bin/fm-pack" -q -T 1 \
        --model "$odd" --part-size 100kB -o p/family.fm "$@" trained) >/dev/null 2>said
}

complain() {
    echo "$*: $(cat said) $(ls -A p)"
    failures=$((failures + 1))
}

# check FAULT STATUS: check the files after that fault.
check() {
    local first
    for first in p/family-00001-of-*; do
        [ ! -e "$first" ] || "$bin/fm-verify" -q "$first" >/dev/null 2>&1 ||
            complain "$1, status $2: $first exists, and the set is incomplete"
    done
    case $1 in
    *:fail) [ "$2" = 0 ] || [ -z "$(ls -A p)" ] || complain "$1, status $2: something is left" ;;
    esac
}

mkdir want p
pack none:0:fail || exit 1
mv p/* want
parts=$(find want -type f | wc -l)
[ "$parts" -ge 3 ] || { echo "$parts parts, and three are needed" && exit 1; }
read -r renames < <(sed -n 's/^rename //p' told)
read -r writes < <(sed -n 's/^pwrite //p' told)
read -r flushes < <(sed -n 's/^fsync //p' told)
echo "$parts parts, $renames renames, $writes writes, $flushes flushes"
for kind in fail kill; do
    for ((n = 1; n <= renames; n++)); do list+=("rename:$n:$kind"); done
    for ((n = 1; n <= flushes; n++)); do list+=("fsync:$n:$kind"); done
    for ((n = 1; n <= writes; n += n / 2 + 1)); do list+=("pwrite:$n:$kind"); done
    list+=("mkdir:1:$kind" "fallocate:2:$kind")
done
for fault in "${list[@]}"; do
    pack "$fault" 2>/dev/null
    check "$fault" $?
    if [ ! -e p/family-00001-of-0000"$parts".fm ]; then # the same command again
        pack none:0:fail || complain "$fault, then again: fails"
    fi
    diff -r want p || complain "$fault, then again: another set"
    [ "$(ls -A p)" = "$(ls -A want)" ] || complain "$fault, then again: more than the set"
    rm -rf p && mkdir p
done

# The set `was` is replaced.  After a failure it or the new set is there and nothing else; after kill -9
# the old one may be in a hidden directory, from which the next run, whether it may replace it or not,
# puts it back.
whole() { # whole FOLDER: its files, without hidden ones, are one of the two sets
    diff -r -x '.*' was "$1" >/dev/null || diff -r -x '.*' want "$1" >/dev/null
}
"$bin/fm-train" -q --model "$odd" --tokens "$odd/tokens.npy" --method uniform \
    --budget-step 0.2 -o trained2 ranked >/dev/null 2>&1 || exit 1
mv trained trained1 && mv trained2 trained && pack none:0:fail && mv p was && mv trained1 trained || exit 1
{ ! diff -r was want >/dev/null && [ "$(ls was)" = "$(ls want)" ]; } || { echo "the sets do not differ" && exit 1; }
cp -r was p && pack none:0:fail --force && diff -r want p || exit 1
list=()
for call in rename link unlink mkdir fsync any; do
    n=$(sed -n "s/^$call //p" told)
    for ((k = n; k > 0 && k > n - 50; k--)); do
        [ $call = any ] || list+=("$call:$k:fail")
        [ $call != any ] || list+=("$call:$k:kill")
    done
done
for fault in "${list[@]}"; do
    rm -rf p && cp -r was p
    pack "$fault" --force 2>/dev/null
    status=$?
    check "$fault, over a set" $status
    case $fault in
    *:kill) left='.family.fm.*' aside=$(find p -name '.*replaced*' -type d) ;;
    unlink:*) left='.family.fm.*' aside='' ;; # what could not be removed
    *) left='' aside='' ;;
    esac
    whole p || { [ "$aside" ] && whole "$aside"; } || complain "$fault, status $status: neither set is whole"
    [ "$left" ] || [ "$(ls -A p)" = "$(ls -A was)" ] || complain "$fault, status $status: more than a set"
    cp -r p p2
    pack none:0:fail && complain "$fault, then again: status 0"
    { whole p && [ ! "$(find p -name '.*replaced*')" ]; } || complain "$fault, then again: no whole set"
    rm -rf p && mv p2 p
    pack none:0:fail --force || complain "$fault, then again with --force: fails"
    { diff -r want p && [ "$(ls -A p)" = "$(ls -A was)" ]; } || complain "$fault, then again with --force: another set"
done

# A set that is not found because memory ended is not taken for absent.
list() { # list FAULT: name the set without its numbers
    (LD_PRELOAD=$faults FM_FAULT=$1 FM_FAULT_TOLD=$work/told exec "$bin/fm-pack" --list --no-sandbox \
        p/family.fm) >/dev/null 2>said
}
rm -rf p && cp -r want p
list none:0:fail
grep -q 'its parts do' said || complain "a name without numbers"
n=$(sed -n 's/^malloc //p' told)
[ "$n" -gt 0 ] || complain "no allocation"
for ((; n > 0; n--)); do
    list "malloc:$n:fail"
    ! grep -q 'cannot open' said || complain "malloc:$n:fail"
done
echo "$runs runs, $failures failures"
exit $((failures > 0))
