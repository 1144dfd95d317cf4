#!/usr/bin/env bash
# Test `make MPI=1 install` of fm-mpi(7): the installed tools are linked with MPI, two ranks produce the same
# bytes as one process, and `make uninstall` removes the tools.  This is done with the machine's default MPI,
# and with MPICH, too, if that is a different one.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=tests/ranks.sh
. tests/ranks.sh
bad=0
fail() {
    echo "$*"
    bad=1
}
# Run make on this build; its warning about the caller's jobserver is left out.
in_make() {
    make -s --no-print-directory MPI=1 BUILD="$build" SAN="${SAN:-}" PREFIX=/usr "$@" 2>&1 |
        grep -v 'jobserver unavailable'
    return "${PIPESTATUS[0]}"
}

model=golden/odd-mixtral
options=(-q --threads 1 --precision f32 -m "$model" -t "$model/tokens.npy")

try() { # try LAUNCHER LIBRARY [MPI_PKG=NAME]: test the MPI whose library is LIBRARY
    local launcher=$1 library=$2 dest=$scratch/$2 tool
    shift 2
    in_make DESTDIR="$dest" "$@" install || fail "make MPI=1 $* install: status $?"
    for tool in fm-rank fm-train fm-recover; do
        ldd "$dest/usr/bin/$tool" | grep -q "$library\.so" || fail "$tool is not linked with $library"
    done
    [ -x "$dest/usr/bin/fm-pack" ] || fail "no fm-pack"
    "$launcher" -n 2 "$dest/usr/bin/fm-rank" "${options[@]}" -o "$scratch/$library.ranked" ||
        fail "two ranks of $library: status $?"
    members "$scratch/ranked" "$scratch/$library.ranked" >"$scratch/log" ||
        fail "not the bytes of one process: $(cat "$scratch/log")"
    in_make DESTDIR="$dest" "$@" uninstall || fail "make MPI=1 $* uninstall: status $?"
    find "$dest" ! -type d | grep . && fail "files that uninstall did not remove"
}

has_ranks "$build/bin/fm-rank" || exit 77
"$build/bin/fm-rank" "${options[@]}" -o "$scratch/ranked" || fail "one process: status $?"
if mpirun --version | grep -q 'Open MPI'; then
    try mpirun libmpi
    if pkg-config --exists mpich && command -v mpirun.mpich >/dev/null; then
        try mpirun.mpich libmpich MPI_PKG=mpich
    fi
else
    try mpirun libmpich
fi
exit $bad
