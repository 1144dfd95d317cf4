#!/usr/bin/env bash
# Test the sandbox of every command that has one, with a reader that acts as if malicious input had taken it
# over (broken.c).  It can open, write, connect and execute with --no-sandbox, and must fail to do so without
# it. In all other respects, the commands must do the same with and without the sandbox.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD odd=$PWD/golden/odd-mixtral
bin=$root/${BUILD:-build}/bin
broken=$root/${BUILD:-build}/tests/unit/broken.so
[ -z "${SAN:-}" ] || { echo "built with sanitizers, the tools have no sandbox" && exit 77; }
[ -e "$broken" ] || { echo "no $broken; make tests" && exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/in" "$work/outside" && cd "$work/in" || exit 1
failures=0
fault() {
    echo "$*"
    failures=$((failures + 1))
}

"$bin/fm-rank" -q --model "$odd" --tokens "$odd/tokens.npy" -o ranked >/dev/null 2>&1 &&
    "$bin/fm-train" -q --model "$odd" --tokens "$odd/tokens.npy" --method saliency \
        --budget-step 0.25 --until 0.5 -o trained ranked >/dev/null 2>&1 &&
    "$bin/fm-pack" -q --model "$odd" -o family.fm trained >/dev/null &&
    "$bin/fm-pack" -q --export plain --budget 0.5 family.fm >/dev/null 2>&1 || exit 1

# run ACT COMMAND...: print the broken reader's output and the command's status.
run() {
    local act=$1 tool=$2
    shift 2
    rm -rf made ../outside/* also
    echo secret >../outside/secret
    LD_PRELOAD=$broken FM_BROKEN=$act "$bin/$tool" "$@" >out 2>err </dev/null
    echo "status $?" >>err
    grep -h '^broken\|^status' err
}

offers=$(LD_PRELOAD=$broken FM_BROKEN=offers "$bin/fm-pack" --no-sandbox --list family.fm 2>&1 >out |
    grep landlock)
landlock=$(expr "$offers" : 'landlock \(-*[0-9]*\)') seccomp=${offers##* }
case $(uname -m) in x86_64 | aarch64) ;; *) seccomp=0 ;; esac

# must HOW ACT COMMAND...: ACT must fail with an error (HOW: failed), or end the command (killed); with
# --no-sandbox it must succeed.
must() {
    local how=$1 act=$2
    shift 2
    said=$(run "$act" "$1" --no-sandbox "${@:2}")
    case $act in
    execute*) grep -q '^status 0' err && ! grep -q '^broken' err && [ ! -s out ] ;;
    *) grep -q '^broken.*succeeded' err && grep -q '^status 0' err ;;
    esac || fault "$*, $act: does not succeed with --no-sandbox: $said"
    said=$(run "$act" "$@")
    case $how in
    failed) grep -q '^broken.*failed' err && grep -q '^status 0' err ;;
    killed) ! grep -q '^broken' err && grep -q '^status 159' err ;;
    esac || fault "$*, $act: not $how in the sandbox: $said"
    [ ! -e ../outside/made ] || fault "$*, $act: wrote outside"
}

# Many containers refuse io_uring to all programs: then there is nothing to compare.
uring=$(run io_uring fm-verify --no-sandbox family.fm | grep -c succeeded)

commands=("fm-verify family.fm" "fm-verify plain" "fm-verify plain --against family.fm"
    "fm-verify -n family.fm" "fm-pack --list family.fm" "fm-pack -q --export made --budget 0.5 family.fm"
    "fm-pack -q --export - --budget 0.5 family.fm" "fm-bench report family.fm")
for command in "${commands[@]}"; do
    # shellcheck disable=SC2086 # words
    if [ "$landlock" -ge 1 ]; then
        must failed "read /etc/passwd" $command
        must failed "read $work/outside/secret" $command
        must failed "write $work/outside/made" $command
    fi
    # shellcheck disable=SC2086
    if [ "$seccomp" = 1 ]; then
        must killed "execute $(type -P true)" $command
        must killed "connect 9" $command
        must killed fork $command
        must failed kill $command
        [ "$uring" = 0 ] || must failed io_uring $command
    fi
done

# Other ways to reach a process; that the kernel has them, and that the tool may use them, --no-sandbox shows.
if [ "$seccomp" = 1 ]; then
    for call in setown setown_ex setsig async ioctl prlimit setpriority sched_setaffinity pidfd_open tgkill \
        tkill shmget memfd_create prctl; do
        must failed $call fm-verify family.fm
    done
    must killed process_vm_readv fm-verify family.fm
fi

# Descriptors that the command inherited are closed, except those that it was given.
must failed "inherited 7" fm-verify family.fm 7>../outside/inherited
[ "$("$bin/fm-verify" -q /dev/fd/8 8<family.fm 2>&1 7>../outside/inherited)" ] || fault "no /dev/fd/8"
"$bin/fm-verify" /proc/self/fd/8 8<family.fm >/dev/null || fault "fm-verify /proc/self/fd/8: status $?"

# The threads of the pool are in the sandbox, too.
export FM_BROKEN_THREAD=1
[ "$landlock" -lt 1 ] || must failed "read /etc/passwd" fm-verify -T 4 family.fm
[ "$seccomp" != 1 ] || must killed "connect 9" fm-verify -T 4 family.fm
unset FM_BROKEN_THREAD

# The directory of an output can be written, but that of an input cannot.
if [ "$landlock" -ge 1 ]; then
    must failed "write $work/in/also" fm-pack -q --export ../outside/new --budget 0.5 family.fm
    run "write $work/outside/also" fm-pack -q --export ../outside/made --budget 0.5 family.fm >said
    grep -q 'write succeeded' said || fault "the output's directory cannot be written: $(cat said)"
fi

# Without the broken reader, the bytes, messages and statuses are the same with and without the sandbox.
same() { # same COMMAND...
    local flag
    for flag in --no-sandbox --quiet; do
        rm -rf made
        "$bin/$1" "${@:2}" -q "$flag" >"out$flag" 2>"err$flag" <family.fm
        echo "status $?" >>"err$flag"
        [ ! -e made ] || tar cf - --mtime=@0 made | xxhsum >>"err$flag"
    done
    sed -i '/seconds/d' out--*
    cmp out--no-sandbox out--quiet || fault "$*: prints something else"
    cmp err--no-sandbox err--quiet || fault "$*: ends otherwise"
}
for layout in $(basename -s .c "$root"/lib/export/layouts/*.c); do
    same fm-pack --export made --layout "$layout" --budget 0.25 family.fm
done
same fm-pack --export - --budget 0.25 family.fm
same fm-pack --export made --budget 0.25 -
same fm-pack --export no/such/made --budget 0.25 family.fm
same fm-pack --list --json family.fm
same fm-pack --list no-such.fm
same fm-verify --model "$odd" family.fm
same fm-verify
same fm-verify trained
same fm-bench report family.fm

# A snapshot whose files are links to blobs, and a checkpoint of links.
mkdir -p hub/models--a--b/blobs hub/models--a--b/snapshots/0 linked
for file in "$odd"/*; do
    cp "$file" "hub/models--a--b/blobs/${file##*/}-blob"
    ln -s "../../blobs/${file##*/}-blob" "hub/models--a--b/snapshots/0/${file##*/}"
    ln -s "$file" "linked/${file##*/}"
done
same fm-verify --model hub/models--a--b/snapshots/0 family.fm
grep -q 'ok$' out--quiet || fault "a snapshot of links does not verify: $(cat out--quiet err--quiet)"
same fm-verify --model linked family.fm
grep -q 'ok$' out--quiet || fault "a checkpoint of links does not verify: $(cat out--quiet)"

[ "$failures" = 0 ] || exit 1
[ "$landlock" -ge 1 ] || { echo "this kernel has no Landlock; the rest passed" && exit 77; }
[ "$seccomp" = 1 ] || { echo "this kernel has no seccomp; the rest passed" && exit 77; }
echo "Landlock $landlock, ${#commands[@]} commands"
