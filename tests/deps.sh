#!/bin/sh
# Find the packages that a Debian 12 or Ubuntu 24.04 system lacks: `deps.sh build` for the tools, `deps.sh check`
# for the tests as well, `deps.sh deb` for `make deb`, `deps.sh ci` also for the tests that are otherwise
# skipped when their programs are missing.  If packages are missing, it prints the command that installs
# them and exits with status 1; `deps.sh install build|check|deb|ci` runs apt-get itself if it is root.
# Nothing is installed that is already there, however it was installed: headers are looked up with the
# compiler, so a library in another place is found through CPPFLAGS and DNNL_CPPFLAGS.  MPI=1 also
# requires an MPI, which MPI_PKG selects.
set -u
CC=${CC:-cc}
CXX=${CXX:-g++}
missing=
install=
if [ "${1:-}" = install ]; then
    install=1
    shift
fi

need() { # need PACKAGES TEST...: the packages are missing if the test fails
    packages=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $packages"
}
# have COMMAND: its first word is an installed program (a command may have several words: "ccache gcc").
have() {
    command -v "${1%% *}"
}
# shellcheck disable=SC2086 # commands and flags are lists of words
header() { # header NAME...: the preprocessor finds all of them
    printf '#include <%s>\n' "$@" |
        $CC ${CPPFLAGS:-} ${DNNL_CPPFLAGS:-} -E -x c -o /dev/null -
}
# shellcheck disable=SC2086,SC2317 # need runs it
runs_cxx() {
    $CXX -E -x c++ -o /dev/null /dev/null
}

# shellcheck disable=SC2317 # need runs it
mpi() {
    [ -n "${MPI_PKG:-}" ] && ${PKG_CONFIG:-pkg-config} --exists "$MPI_PKG"
}

# A compiler that the user chose through CC or CXX is never installed here.
for command in "$CC" "$CXX"; do
    case $command in
    cc | gcc | g++ | c++) ;;
    *) have "$command" >/dev/null || {
        echo "deps.sh: no program '${command%% *}', which CC or CXX names" >&2
        exit 1
    } ;;
    esac
done
# Libraries must match the compiler's target machine.
of=
case $(uname -m)/$($CC -dumpmachine 2>/dev/null) in
aarch64/*) ;;
*/aarch64-*) of=:arm64 ;;
esac
need "gcc libc6-dev$of" header stdio.h
need make have make
need "pkg-config$of" have "${PKG_CONFIG:-pkg-config}"
# One run of the preprocessor if nothing is missing; otherwise one per library, to find out which.
if ! header archive.h xxhash.h cjson/cJSON.h zstd.h openssl/evp.h dnnl.h Random123/philox.h >/dev/null 2>&1; then
    need libarchive-dev$of header archive.h
    need libxxhash-dev$of header xxhash.h
    need libcjson-dev$of header cjson/cJSON.h
    need libzstd-dev$of header zstd.h
    need libssl-dev$of header openssl/evp.h
    need libdnnl-dev$of header dnnl.h
    need librandom123-dev header Random123/philox.h
fi
if [ "${MPI:-0}" = 1 ]; then
    case ${MPI_PKG:-} in
    mpich) need "mpich libmpich-dev" mpi ;;
    *) need "openmpi-bin libopenmpi-dev" mpi ;;
    esac
fi
case ${1:-build} in
check | ci)
    need libcmocka-dev$of header stdarg.h stddef.h stdint.h setjmp.h cmocka.h
    need g++ runs_cxx
    need clang-format have "${CLANG_FORMAT:-clang-format}"
    for tool in shellcheck pyflakes3 mandoc zstd tar openssl jq; do
        need "$tool" have "$tool"
    done
    need xxhash have xxhsum
    need python3 have python3
    need bsdutils have script
    ;;
esac
case ${1:-build} in
deb | ci)
    need debhelper have dh
    need dpkg-dev have dpkg-buildpackage
    need build-essential dpkg -s build-essential
    ;;
esac
if [ "${1:-build}" = ci ]; then
    need "openmpi-bin libopenmpi-dev" have mpirun.openmpi
    need "mpich libmpich-dev" have mpirun.mpich
    for tool in clang ccache git; do
        need "$tool" have "$tool"
    done
fi

[ -z "$missing" ] && exit 0
sudo=sudo
[ "$(id -u)" != 0 ] || sudo=
if [ -n "$install" ] && [ -z "$sudo" ] && have apt-get >/dev/null; then
    echo "deps.sh: installing$missing" >&2
    # shellcheck disable=SC2086 # a list of words
    apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $missing >&2 && exit 0
    echo "deps.sh: apt-get failed; these packages are needed:$missing" >&2
    exit 1
fi
echo "deps.sh: something is missing; run: ${sudo:+sudo }apt-get install -y$missing" >&2
exit 1
