#!/usr/bin/env bash
# A directory that cannot be listed to its end is an error, not a directory with fewer files: fm-verify
# would not see a file that is not of the export.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
bin=$(realpath "$build")/bin faults=$(realpath "$build")/tests/unit/faults.so odd=$PWD/golden/odd-mixtral
[ -z "${SAN:-}" ] || { echo "a sanitizer must be loaded before all else" && exit 77; }
[ -e "$faults" ] || { echo "no $faults; make tests" && exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
data=(-q --model "$odd" --tokens "$odd/tokens.npy" --device ref)
"$bin/fm-rank" "${data[@]}" -o ranked >/dev/null &&
    "$bin/fm-train" "${data[@]}" --method saliency --budget-step 0.2 -o trained ranked >/dev/null &&
    "$bin/fm-pack" -q --model "$odd" -o family.fm trained >/dev/null &&
    "$bin/fm-pack" -q --export out --budget 0.4 family.fm >/dev/null || exit 1
echo "mine" >out/notes.txt
failures=0
# The sandbox lists the directory for links, too, and goes on without those.
for ((n = 1; n <= 24; n++)); do
    rm -f told
    LD_PRELOAD=$faults FM_FAULT=readdir:$n:fail FM_FAULT_TOLD=told "$bin/fm-verify" --no-sandbox -q out >/dev/null 2>said
    status=$?
    if [ $status = 0 ] && grep -qx hit told; then
        echo "fm-verify, readdir $n: status 0" && failures=$((failures + 1))
    fi
done
# One that cannot be examined is an error of the machine, not a file and not a mistake of the user.
for ((n = 1; n <= 8; n++)); do
    LD_PRELOAD=$faults FM_FAULT=stat:$n:fail "$bin/fm-verify" --no-sandbox -q out --against family.fm >/dev/null 2>said
    status=$?
    case $status in
    0 | 1 | 74) ;;
    *) echo "fm-verify --against, stat $n: status $status: $(cat said)" && failures=$((failures + 1)) ;;
    esac
done
exit $((failures > 0))
