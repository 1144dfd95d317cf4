#!/usr/bin/env bash
# Test the Debian packages as users get them (`make packages-check`; needs root, debootstrap and a network).
# For each release of Debian, build them in a chroot that has only the build dependencies, check them with
# lintian, and install them with apt in a minimal chroot.  There, run the demo with the installed tools,
# compile a program with the -dev package, install the wheel with pip, and remove the packages.
#
#   tests/judge/packages.sh [SUITE...]    bookworm, trixie (default: both)
#
# FM_PACKAGES_DIR: the directory in which the chroots are kept (1 GB each); default: a temporary one.
# FM_PACKAGES_TWICE=1 builds the packages again at another path and checks that they have the same bytes.
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in debootstrap unshare; do
    command -v $tool >/dev/null || {
        echo "packages.sh: $tool is not installed"
        exit 77
    }
done
[ "$(id -u)" = 0 ] || {
    echo "packages.sh: debootstrap must run as root"
    exit 77
}
if [ -n "${FM_PACKAGES_DIR:-}" ]; then
    roots=$FM_PACKAGES_DIR
else
    roots=$(mktemp -d)
    trap 'rm -rf --one-file-system "$roots"' EXIT
fi
mkdir -p "$roots"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# Lintian tags to accept: no licence has been chosen yet.
known='copyright-without-copyright-notice'

say() {
    printf '\n== %s\n' "$*"
}

inside() { # inside ROOT COMMAND: run COMMAND in a shell in ROOT, with a clean environment and its own mounts
    # shellcheck disable=SC2016 # variables of the inner shell
    unshare --mount --fork bash -euc 'mount -t proc proc "$1/proc"
        exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive SOURCE_DATE_EPOCH="$3" bash -euo pipefail -c "$2"' - "$1" "$2" "$SOURCE_DATE_EPOCH"
}

fresh() { # fresh SUITE NAME: make a minimal chroot, replacing an older one
    [ -e "$roots/$1/.done" ] || {
        debootstrap --variant=minbase "$1" "$roots/$1" http://deb.debian.org/debian >"$roots/$1.log"
        touch "$roots/$1/.done"
    }
    rm -rf --one-file-system "${roots:?}/$1-$2"
    cp -a "$roots/$1" "$roots/$1-$2"
}

sources() { # sources FOLDER: copy the files that git tracks
    rm -rf "$1" && mkdir -p "$1"
    git ls-files -z | tar c --null -T - | tar x -C "$1"
}

build() { # build SUITE
    local root=$roots/$1-build needs
    needs=$(sed -n '/^Build-Depends:/,/^[A-Z]/p' cmd/package/debian/control | tr -d '\n' |
        sed 's/Build-Depends://; s/Standards-Version.*//; s/debhelper-compat (= 13)/debhelper/; s/,/ /g')
    if [ ! -e "$root/.ready" ]; then
        fresh "$1" build
        inside "$root" "apt-get -qq update && apt-get -qq install --no-install-recommends \
            build-essential dpkg-dev lintian python3 $needs" >"$root.log" 2>&1
        touch "$root/.ready"
    fi
    sources "$root/src"
    inside "$root" 'cd /src && make deb wheel'
    inside "$root" 'cd /src/build/deb && lintian --allow-root ./*.changes' | tee "$root/lintian"
    if grep -vE "$known" "$root/lintian" | grep -E '^[EW]:'; then
        echo "packages.sh: lintian reports errors or warnings"
        return 1
    fi
    if [ -n "${FM_PACKAGES_TWICE:-}" ]; then
        sources "$root/somewhere/else"
        # shellcheck disable=SC2016 # variables of the inner shell
        inside "$root" 'cd /somewhere/else && make deb wheel >/dev/null
            for f in build/deb/*.deb build/wheel/*.whl; do cmp $f /src/$f; done'
        echo "a second build at another path has the same bytes"
    fi
}

use() { # use SUITE
    local root=$roots/$1-use
    fresh "$1" use
    mkdir -p "$root/packages" "$root/demo/golden" "$root/demo/tests"
    cp "$roots/$1-build"/src/build/deb/*.deb "$roots/$1-build"/src/build/wheel/*.whl "$root/packages"
    cp tests/demo.sh "$root/demo/tests"
    cp -r golden/tiny-mixtral "$root/demo/golden"
    inside "$root" 'find / -xdev \( -path /packages -o -path /demo -o -path /proc \) -prune -o ! -type d -print |
        sort >/before
        apt-get -qq update
        apt-get -qq install --no-install-recommends /packages/fm-suite_*.deb /packages/libfm-clip1_*.deb' \
        >"$root.log" 2>&1
    inside "$root" 'cd /demo; type -p fm-rank; fm-rank --version; bash tests/demo.sh | tail -n 30
        dpkg -L fm-suite | grep -c "man[157]/fm"
        ! command -v gcc && ! ldconfig -p | grep -i -E "libcuda|cublas"'
    say "$1: programs against libfm-clip-dev"
    inside "$root" 'apt-get -qq install --no-install-recommends gcc libc6-dev pkg-config /packages/libfm-clip-dev_*.deb
        apt-get -qq install --no-install-recommends python3-venv' >>"$root.log" 2>&1
    # shellcheck disable=SC2016 # variables of the inner shell
    inside "$root" 'cd /demo
        printf "#include <fm_clip.h>\nint main(void) { return fm_clip_abi() != FM_CLIP_ABI; }\n" >clip.c
        cc clip.c $(pkg-config --cflags --libs fm_clip) -o clip && ./clip
        python3 -m venv venv && venv/bin/pip -q install --no-index /packages/*.whl && venv/bin/pip check
        venv/bin/python -c "import ctypes, importlib.util as u, pathlib
place = pathlib.Path(u.find_spec(\"fm_clip\").origin).with_name(\"libfm_clip.so.1\")
print(place.name, \"ABI\", ctypes.CDLL(str(place)).fm_clip_abi())"'
    inside "$root" 'apt-get -qq purge fm-suite libfm-clip1 libfm-clip-dev' >>"$root.log" 2>&1
    inside "$root" '! find /usr /etc /var/lib -name "*fm-*" -o -name "libfm*" | grep -v "^/var/lib/dpkg\|/apt/"'
}

[ $# -gt 0 ] || set -- bookworm trixie
for suite; do
    say "$suite: building"
    build "$suite"
    say "$suite: installing and using in a fresh chroot"
    use "$suite"
done
say "packages: ok"
