#!/usr/bin/env bash
# An installation as programs meet it: every header that is installed compiles by itself with what is
# installed alone, the example of libfm(3) is built by pkg-config's flags out of the tree and makes
# the bytes that the tools make, fm_clip.h and the completions are where they are looked for, and
# after `make uninstall` nothing of all this is left.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
build=${BUILD:-build}
cc=${CC:-cc}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
dest=$scratch/dest
bad=0
fail() {
    echo "$*"
    bad=1
}
# As in make, but for what the caller's make was asked to do.
in_make() {
    make -s --no-print-directory BUILD="$build" SAN="${SAN:-}" PREFIX=/usr DESTDIR="$dest" "$@" 2>&1 |
        grep -v 'jobserver unavailable'
    return "${PIPESTATUS[0]}"
}
in_make install || exit 1

export PKG_CONFIG_PATH=$dest/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dest
cd "$scratch" || exit 1
for package in fm fm_clip; do
    pkg-config --exists --print-errors $package || fail "pkg-config does not know $package"
done
read -ra flags < <(pkg-config --cflags --libs fm)
compile() { # compile ARGUMENT...: with the flags of fm
    $cc -std=c11 -Wall -Wextra -Werror ${SAN:+-fsanitize=$SAN} "$@" "${flags[@]}"
}
count=0
while read -r header; do
    count=$((count + 1))
    echo "#include <$header>" >"alone$count.c"
done < <(cd "$dest/usr/include" && find fm -name '*.h')
[ $count -gt 10 ] || fail "$count headers"
compile -fsyntax-only alone*.c || fail "a header does not stand alone"
grep -rn '#include "' "$dest/usr/include" && fail "an installed header includes a file of the tree"

sed -n '/^\.Sh EXAMPLES/,/^\.Ed/p' "$dest/usr/share/man/man3/libfm.3" |
    sed -n '/^\.Bd/,/^\.Ed/p' | sed '1d;$d;s/\\e/\\/g' >family.c
compile -o family family.c || exit 1
model=$root/golden/odd-mixtral
./family "$model" "$model/tokens.npy" >said || fail "the example ends with status $?"
PATH=$dest/usr/bin:$PATH
if ! { fm-rank -q -m "$model" -t "$model/tokens.npy" --precision f32 -o ranked2.fm &&
    fm-train -q -m "$model" -t "$model/tokens.npy" --precision f32 --method saliency \
        -o trained2.fm ranked2.fm &&
    fm-pack -q -m "$model" -o family2.fm trained2.fm &&
    fm-pack -q --export out2 --budget 0.40 family2.fm; } >log; then
    fail "the tools failed"
fi
cmp family.fm family2.fm || fail "not the bundle that the tools make"
diff -r out40 out2 || fail "not the export that the tools make"
./family nowhere nothing 2>complaint >said && fail "no model, and status 0"
grep -q "^family: .*nowhere" complaint || fail "no sentence: $(cat complaint)"

echo '#include <fm_clip.h>
int main(void) { return fm_clip_abi() != FM_CLIP_ABI; }' >clip.c
# shellcheck disable=SC2046
$cc ${SAN:+-fsanitize=$SAN} clip.c -o clip $(pkg-config --cflags --libs fm_clip) || fail "fm_clip.h"
LD_LIBRARY_PATH=$dest/usr/lib ./clip || fail "libfm_clip.so"
for tool in "$root"/"$build"/bin/fm-*; do
    name=${tool##*/}
    [ -x "$dest/usr/bin/$name" ] || fail "no $name"
    [ "$name" = fm-chat2text ] && continue
    grep -q "^complete -F .* $name$" "$dest/usr/share/bash-completion/completions/$name" ||
        fail "no completion of $name for bash"
    grep -q "^#compdef $name$" "$dest/usr/share/zsh/site-functions/_$name" ||
        fail "no completion of $name for zsh"
done

cd "$root" || exit 1
in_make uninstall || fail "make uninstall: status $?"
find "$dest" ! -type d | grep . && fail "left behind"
find "$dest" -name '*fm*' | grep . && fail "folders left behind"
in_make uninstall || fail "make uninstall where nothing is: status $?"
exit $bad
