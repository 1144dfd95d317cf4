#!/usr/bin/env bash
# Test the suite for arm64 on an x86-64 machine: cross-compile it in a chroot of Debian 13 against its arm64
# libraries, and run the unit tests there under QEMU's user mode.  Only instructions are emulated: the
# kernel and its page size are this machine's.  `make arm64-check`; needs root, debootstrap and a network.
#
#   tests/arm64.sh [PATTERN]      the tests, as for tests/run.sh (default: the unit tests that are programs)
#
# FM_ARM64_DIR: the folder in which the chroot is kept (2 GB); default: a temporary one.  QEMU_CPU: a
# processor of `qemu-aarch64 -cpu help`; default max, which has SVE; neoverse-n1 does not.
#
# The kernel starts arm64 programs with QEMU (binfmt_misc) in this script's own user namespace, which needs
# Linux 6.7; nothing is registered for the rest of the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() {
    echo "arm64.sh: $*"
    exit 77
}
for tool in debootstrap unshare; do
    command -v $tool >/dev/null || skip "no $tool here"
done
[ "$(id -u)" = 0 ] || skip "debootstrap must run as root"
unshare --user --map-root-user --mount mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2>/dev/null ||
    skip "no binfmt_misc in a user namespace here (needs Linux 6.7)"
if [ -n "${FM_ARM64_DIR:-}" ]; then
    root=$FM_ARM64_DIR
else
    root=$(mktemp -d)
    trap 'rm -rf --one-file-system "$root"' EXIT
fi
cross=aarch64-linux-gnu-
build=build/${cross%-}/no-cuda

# The unit tests that are programs; the scripts test sources and packages.
programs=()
for source in tests/unit/test_*.c; do
    name=${source##*/}
    programs+=("${name%.c}")
done
pattern=${1:-"unit/@($(IFS='|' && echo "${programs[*]}"))"}

say() {
    printf '\n== %s (%s s)\n' "$*" "$SECONDS"
}

# Run a shell in the chroot, in /src; its mounts end with it.
inside() { # inside COMMAND
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --mount --fork bash -euc 'mount -t proc proc "$1/proc"
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "cd /src; $2"' - "$root" "$1"
}

# The same with binfmt_misc, so that arm64 programs run.  oneDNN reads the processor's ID from /sys, so
# /sys is replaced by a folder with the ID of QEMU's max.
emulated() { # emulated COMMAND
    # Matches 64-bit little-endian ELF programs and libraries of machine 183.
    local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --user --map-root-user --mount --pid --fork --kill-child bash -euc '
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
        echo "$3" >/proc/sys/fs/binfmt_misc/register
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        mount -t tmpfs tmpfs "$1/tmp"
        mount -t tmpfs tmpfs "$1/sys"
        for cpu in $(seq 0 $(($(nproc) - 1))); do
            about=$1/sys/devices/system/cpu/cpu$cpu/regs/identification
            mkdir -p "$about" && echo 0x00000000000f0510 >"$about/midr_el1"
        done
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            ${QEMU_CPU:+"QEMU_CPU=$QEMU_CPU"} bash -euo pipefail -c "cd /src; $2"' \
        - "$root" "$1" ":aarch64:M:0:$magic:$mask:$root/usr/bin/qemu-aarch64:PF"
}

if [ ! -e "$root/.ready" ]; then
    say "making a chroot of Debian 13"
    mkdir -p "$root"
    [ -e "$root/etc/debian_version" ] ||
        debootstrap --variant=minbase trixie "$root" http://deb.debian.org/debian >"$root.log"
    mkdir -p "$root/src"
    inside "dpkg --add-architecture arm64
        apt-get -qq update
        apt-get -qq install --no-install-recommends make g++-${cross%-} qemu-user" >>"$root.log" 2>&1
    touch "$root/.ready"
fi

say "cross-compiling"
find "$root/src" -mindepth 1 -maxdepth 1 ! -name build -exec rm -r {} +
git ls-files -z | tar c --null -T - | tar x -C "$root/src"
inside "make -s CROSS_COMPILE=$cross deps" >>"$root.log" 2>&1
inside "make -s CROSS_COMPILE=$cross all $(printf "$build/tests/unit/%s " "${programs[@]}")"
inside "${cross}readelf -h $build/bin/fm-rank | grep -E 'Class|Machine'"

say "under QEMU"
status=0
emulated "qemu-aarch64 --version | head -n 1
    export CROSS_COMPILE=$cross CC=${cross}gcc PKG_CONFIG=${cross}pkg-config
    export BUILD=$build FM_TEST_JOBS=${FM_TEST_JOBS:-$(nproc)} FM_TEST_SECONDS_MAX=${FM_TEST_SECONDS_MAX:-3600}
    export FM_SIGNALS=6 FM_SIGNALS_SECONDS=1800 # fewer signals, and more time for each tool
    export FM_SIGNALS_EMULATED=1
    bash tests/run.sh '$pattern'" || status=$?
say "arm64: status $status"
exit "$status"
