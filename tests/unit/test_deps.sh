#!/usr/bin/env bash
# tests/deps.sh accepts a compiler command of several words, and installs packages only if requested.
# apt-get and id are stand-ins, so this test installs nothing.
set -u
cd "$(dirname "$0")/../.." || exit 1
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failed=0

stand_in() { # stand_in NAME BODY
    printf '#!/bin/sh\n%s\n' "$2" >"$scratch/$1" && chmod +x "$scratch/$1"
}
stand_in apt-get "echo \"\$*\" >>\"$scratch/installed\""
# shellcheck disable=SC2016 # the stand-in expands it
stand_in id 'echo "${FAKE_UID:-0}"'
unset PKG_CONFIG # make may have exported one

# expect WHAT STATUS OUTPUT INSTALLED ARGUMENT...: run deps.sh with these arguments, and compare
expect() {
    local what=$1 status=$2 output=$3 installed=$4 got
    shift 4
    rm -f "$scratch/installed"
    got=$(PATH=$scratch:$PATH sh tests/deps.sh "$@" 2>&1)
    set -- "$?" "$got" "$(cat "$scratch/installed" 2>/dev/null)"
    [ "$1 $2 $3" = "$status $output $installed" ] && return
    printf '%s:\n  status %s\n  %s\n  apt-get %s\n' "$what" "$@"
    failed=1
}

CC="env cc" CXX="env g++" expect "compilers of two words" 0 "" "" install build
PKG_CONFIG=none-such expect "a build, as root" 1 \
    "deps.sh: something is missing; run: apt-get install -y pkg-config" "" build
PKG_CONFIG=none-such FAKE_UID=1000 expect "a build" 1 \
    "deps.sh: something is missing; run: sudo apt-get install -y pkg-config" "" build
PKG_CONFIG=none-such FAKE_UID=1000 expect "an install that is not allowed" 1 \
    "deps.sh: something is missing; run: sudo apt-get install -y pkg-config" "" install build
PKG_CONFIG=none-such expect "an install" 0 "deps.sh: installing pkg-config" \
    "update -qq
install -y -qq --no-install-recommends pkg-config" install build
MPI=1 MPI_PKG=none-such FAKE_UID=1000 expect "a build with MPI" 1 \
    "deps.sh: something is missing; run: sudo apt-get install -y openmpi-bin libopenmpi-dev" "" build
CC="none-such gcc" expect "a compiler that is not there" 1 \
    "deps.sh: no program 'none-such', which CC or CXX names" "" install build
# shellcheck disable=SC2016 # the stand-in expands it
stand_in cross-gcc '[ "$1" = -dumpmachine ] && echo aarch64-linux-gnu'
if [ "$(uname -m)" != aarch64 ]; then
    CC=cross-gcc expect "a compiler for arm64 without libraries" 1 "deps.sh: something is missing; run: \
apt-get install -y gcc libc6-dev:arm64 libarchive-dev:arm64 libxxhash-dev:arm64 libcjson-dev:arm64 \
libzstd-dev:arm64 libssl-dev:arm64 libdnnl-dev:arm64 librandom123-dev" "" build
fi
got=$(CPPFLAGS=-nostdinc make CUDA=0 BUILD="$scratch/build" 2>&1 | grep -v '^deps.sh: something is missing; run: ' | grep -vc '^make')
[ "$got" = 0 ] || { echo "make prints more than the command that installs what is missing" && failed=1; }
got=$(make -n CUDA=0 deb 2>/dev/null | grep -c 'deps.sh install deb')
[ "$got" = 1 ] || { echo "make deb does not install what it needs" && failed=1; }
exit $failed
