#!/usr/bin/env bash
# Test an installation.  Each installed header compiles by itself, with installed files only.  The example
# of libfm(3), built outside the tree by the page's command, makes the same bytes as the tools.  The synopsis
# and the example of fm-clip(3) are right, completions are in the directories that shells search, and
# `make uninstall` removes everything.
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
for package in fm fm_clip; do
    pkg-config --exists --print-errors $package || fail "pkg-config does not know $package"
done
read -ra flags < <(pkg-config --cflags fm)
compile() { # compile ARGUMENT...: with the include paths of fm
    $cc -std=c11 -Wall -Wextra -Werror ${SAN:+-fsanitize=$SAN} "$@" "${flags[@]}"
}
count=0
while read -r header; do
    count=$((count + 1))
    echo "#include <$header>" >"alone$count.c"
done < <(cd "$dest/usr/include" && find fm -name '*.h')
[ $count -gt 10 ] || fail "$count headers"
compile -fsyntax-only alone*.c || fail "a header is not self-contained"
grep -rn '#include "' "$dest/usr/include" && fail "an installed header includes a file of the tree"

take() { # take PAGE [NAME]: blocks of the page that this test runs
    python3 -B "$root/tests/pages.py" take "$1" "unit/test_install${2:+ $2}"
}
take libfm.3 program >family.c
# shellcheck disable=SC2317 # the page's command calls it
cc() { command $cc -Wall -Wextra -Werror ${SAN:+-fsanitize=$SAN} "$@"; }
eval "$(take libfm.3 compile)" || exit 1
model=$root/golden/odd-mixtral
./family "$model" "$model/tokens.npy" >said || fail "the example ends with status $?"
PATH=$dest/usr/bin:$PATH
mkdir tools && ln -s "$model" tools/MODEL && ln -s "$model/tokens.npy" tools/TOKENS
take libfm.3 tools >tools/run
(cd tools && bash -e run) >log 2>&1 || fail "the tools failed: $(cat log)"
cmp family.fm tools/family.fm || fail "not the bundle that the tools make"
diff -r out40 tools/out40 || fail "not the export that the tools make"
./family nowhere nothing 2>complaint >said && fail "no model, and status 0"
grep -q "^family: .*nowhere" complaint || fail "no sentence: $(cat complaint)"

# fm-clip(3): the functions are declared as on the page, and the example agrees with the definition.
take fm-clip.3 >layer.c
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
    [[ $name = @(fm-chat2text|fm-family) ]] && continue
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
