#!/usr/bin/env bash
# Test an installation: the synopsis and the example of fm-clip(3) are right with installed files only,
# completions are in the directories that shells search, and `make uninstall` removes everything.
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
# Run make on this build; its warning about the caller's jobserver is left out.
in_make() {
    make -s --no-print-directory BUILD="$build" SAN="${SAN:-}" PREFIX=/usr DESTDIR="$dest" "$@" 2>&1 |
        grep -v 'jobserver unavailable'
    return "${PIPESTATUS[0]}"
}
in_make install || exit 1

export PKG_CONFIG_PATH=$dest/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dest
cd "$scratch" || exit 1
pkg-config --exists --print-errors fm_clip || fail "pkg-config does not know fm_clip"
grep -n '#include "' "$dest/usr/include/fm_clip.h" && fail "fm_clip.h includes a file of the tree"

# fm-clip(3): the functions are declared as on the page, and the example agrees with the definition.
python3 -B "$root/tests/pages.py" take fm-clip.3 unit/test_install >layer.c
python3 - "$root/man/fm-clip.3" >declared.c <<'END' || fail "the synopsis of fm-clip(3) is not understood"
import shlex, sys

synopsis = open(sys.argv[1]).read().split(".Sh SYNOPSIS\n")[1].split(".Sh ")[0]
print("#include <fm_clip.h>")
for macro, *words in (shlex.split(line) for line in synopsis.splitlines()):
    if macro == ".Ft":
        result = " ".join(words)
    elif macro in (".Fn", ".Fo"):
        name, arguments = words[0], words[1:]
    elif macro == ".Fa":
        arguments += words
    if macro in (".Fn", ".Fc"):
        print(f"{result} {name}({', '.join(arguments)});")
END
grep -c fm_clip_ declared.c | grep -qx '1[0-9]' || fail "fm-clip(3) declares $(grep -c fm_clip_ declared.c) functions"
cat >clip.c <<'END'
#include "declared.c"
#include <err.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    enum { H = 16, E = 3, B = 4, I = 8, N = 5, K = 2 };
    static float gate_up[2 * E * I * H], down[E * I * H], hidden[N * H], weights[N * K], out[N * H];
    static double want[N * H], size[N * H];
    int32_t ids[N * K], cap[E] = {I, I, I}, widths[B * E], budget = 0;
    int64_t row0[E] = {0, I, 2 * I};
    for (int i = 0; i < 2 * E * I * H; i++)
        gate_up[i] = (float)(i * 37 % 101 - 50) / 100;
    for (int i = 0; i < E * I * H; i++)
        down[i] = (float)(i * 29 % 103 - 51) / 100;
    for (int i = 0; i < N * H; i++)
        hidden[i] = (float)(i * 17 % 41 - 20) / 20;
    for (int i = 0; i < N * K; i++)
        ids[i] = i % E, weights[i] = 0.5f;
    for (int i = 0; i < B * E; i++)
        widths[i] = I - i % (I + 1);
#include "layer.c"
    if (fm_clip_reference(want, size, &layer, &call, &error) != FM_CLIP_OK)
        errx(1, "%s", error.text);
    double sum = 0;
    for (int i = 0; i < N * H; i++) {
        sum += fabs(want[i]);
        if (!(fabs(out[i] - want[i]) <= 1e-5 * (size[i] + 1e-6)))
            errx(1, "out[%d] is %g, not %g", i, out[i], want[i]);
    }
    fm_clip_release(clip);
    free(call.workspace);
    return fm_clip_abi() != FM_CLIP_ABI || !(sum > 0);
}
END
read -ra flags < <(pkg-config --cflags --libs fm_clip)
$cc ${SAN:+-fsanitize=$SAN} -Wall -Wextra -Werror clip.c -o clip "${flags[@]}" -lm || fail "fm_clip.h"
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
find "$dest" ! -type d | grep . && fail "files that uninstall did not remove"
find "$dest" -name '*fm*' | grep . && fail "folders that uninstall did not remove"
in_make uninstall || fail "make uninstall where nothing is: status $?"
exit $bad
