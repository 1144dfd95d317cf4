#!/usr/bin/env bash
# If listing a directory fails in the middle, that is an error, not a directory with fewer files:
# otherwise fm-verify would miss a file that is not part of the export, and an output could replace an
# input.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
bin=$(realpath "$build")/bin faults=$(realpath "$build")/tests/unit/faults.so odd=$PWD/golden/odd-mixtral
[ -z "${SAN:-}" ] || { echo "this test preloads a library, which sanitizers do not allow" && exit 77; }
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
# The sandbox lists the directory for links, too, and examines each name.
for flag in --no-sandbox -q; do
    for ((n = 1; n <= 48; n++)); do
        rm -f told
        LD_PRELOAD=$faults FM_FAULT=readdir:$n:fail FM_FAULT_TOLD=told "$bin/fm-verify" $flag -q out >/dev/null 2>said
        status=$?
        if [ $status = 0 ] && grep -qx hit told; then
            echo "fm-verify $flag, readdir $n: status 0" && failures=$((failures + 1))
        fi
    done
done
if "$bin/fm-verify" -q out >/dev/null 2>&1; [ $? = 77 ]; then
    echo "this directory is refused" && failures=$((failures + 1))
fi
# A name that cannot be examined is an error of the machine, not of the user.
for ((n = 1; n <= 8; n++)); do
    LD_PRELOAD=$faults FM_FAULT=stat:$n:fail "$bin/fm-verify" --no-sandbox -q out --against family.fm >/dev/null 2>said
    status=$?
    case $status in
    0 | 1 | 74) ;;
    *) echo "fm-verify --against, stat $n: status $status: $(cat said)" && failures=$((failures + 1)) ;;
    esac
done
# Standard input that cannot be examined is such an error, too.
for ((n = 1; n <= 32; n++)); do
    rm -rf new
    LD_PRELOAD=$faults FM_FAULT=stat:$n:fail "$bin/fm-pack" -q --model "$odd" -o new <trained >/dev/null 2>said
    status=$?
    case $status in
    0 | 66 | 73 | 74) ;;
    *) echo "fm-pack, stat $n: status $status: $(cat said)" && failures=$((failures + 1)) ;;
    esac
done
rm -f new
# refused WANT WORDS COMMAND...: the status must be WANT, with WORDS; if a listing fails, it may be 74.
refused() {
    local want=$1 words=$2 n status
    shift 2
    "$bin/$1" "${@:2}" >/dev/null 2>said
    status=$?
    if [ $status != "$want" ] || ! grep -qF "$words" said; then
        echo "$*: status $status: $(cat said)" && failures=$((failures + 1))
    fi
    for ((n = 1; n <= 12; n++)); do
        rm -f told
        LD_PRELOAD=$faults FM_FAULT=readdir:$n:fail FM_FAULT_TOLD=told "$bin/$1" "${@:2}" >/dev/null 2>said
        status=$?
        if ! { [ $status = "$want" ] && grep -qF "$words" said; } &&
            ! { [ $status = 74 ] && grep -q 'cannot list' said && grep -qx hit told; }; then
            echo "$*, readdir $n: status $status: $(cat said)" && failures=$((failures + 1))
        fi
    done
}
# An output must not replace a file to which a checkpoint links; a bundle in parts is found by its
# first part; a cache is not taken for a checkpoint that lacks its files.
mkdir -p linked parts hub/models--a--b empty
cp "$odd"/*.json linked
for file in "$odd"/*.safetensors; do
    cp "$file" . && ln -s "../${file##*/}" linked
done
sums=$(xxhsum -q ./*.safetensors)
for file in *.safetensors; do
    refused 2 "which is an input" fm-pack -q --model linked -f -o "$file" trained
done
[ "$(xxhsum -q ./*.safetensors)" = "$sums" ] || { echo "a shard was replaced" && failures=$((failures + 1)); }
"$bin/fm-pack" -q --model "$odd" --part-size 256K -o parts/family.fm trained >/dev/null || exit 1
refused 66 "its parts do" fm-pack --no-sandbox --list parts/family.fm
refused 73 "a bundle of the same name" fm-pack -q --model "$odd" -o parts/family.fm trained
refused 66 "is a Hugging Face cache" fm-pack -q --model hub -o new trained
cp "$odd/config.json" empty && touch empty/model-00001-of-00002.safetensors
refused 66 "has shards but no" fm-pack -q --model empty -o new trained
exit $((failures > 0))
