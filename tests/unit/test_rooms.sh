#!/usr/bin/env bash
# Test the lint of rooms: one fault at a time is put into a copy of the sources, and tests/rooms.py must
# report it.
set -u
cd "$(dirname "$0")/../.." || exit 1
copy=$(mktemp -d) || exit 1
trap 'rm -rf "$copy"' EXIT
bad=0
find lib formats kernels cmd tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' -o -name '*.def' \
    -o -name modeling_fm.py |
    tar cf - -T - | tar xf - -C "$copy"

# refuses WORDS FILE LINE: with LINE in FILE the lint must fail and print WORDS
refuses() {
    cp "$copy/$2" "$copy/kept" 2>/dev/null || : >"$copy/kept"
    printf '%s\n' "$3" >>"$copy/$2"
    if said=$(python3 tests/rooms.py "$copy" 2>&1) || ! grep -qF "$1" <<<"$said"; then
        echo "with '$3' in $2 the lint should say '$1'; it says: $said"
        bad=1
    fi
    mv "$copy/kept" "$copy/$2"
}

python3 tests/rooms.py "$copy" || bad=1
refuses 'lib/model includes lib/learn ("lib/learn/rank.h")' lib/model/model.c '#include "lib/learn/rank.h"'
refuses 'formats/tensor includes formats/bundle' formats/tensor/hfdir.c '#include "formats/bundle/bundle.h"'
refuses 'formats/json includes kernels/ops' formats/json/json.c '#include "kernels/ops/kernels.h"'
refuses 'is private to lib/engine' lib/learn/rank.c '#include "lib/engine/sweeping.h"'
refuses 'an include cycle of files that are not one module: lib/masks/granularity lib/masks/masks' lib/masks/granularity.h \
    '#include "lib/masks/masks.h"'
refuses 'lib/family includes lib/family/models' lib/family/parse.c '#include "lib/family/models/qwen.h"'
refuses 'is private to lib/export' lib/page/page.c '#include "lib/export/texts.h"'
refuses 'is not a file of ours' lib/run/run.c '#include "run.h"'
refuses 'opendir() outside formats/file' lib/run/run.c 'DIR *d = opendir(path);'
for file in lib/base/mem.c formats/text/tokens.c kernels/cpu/cpu.c; do
    refuses "${file%/*} names the option --seq-len" "$file" 'fail("%s", "a"); fail("use a smaller --seq-len");'
done
refuses 'names the family gpt_oss' lib/export/exportplan.c 'static const char *one = "gpt_oss";'
refuses 'names the family fm_phimoe' lib/learn/rank.c 'bool is = c->family == &fm_phimoe;'
refuses 'names the family Laguna; what differs in a family is a field of its file, lib/family/models/laguna.c' \
    cmd/show.c 'f("Laguna");'
refuses 'names the family kimi_k2' lib/family/models/olmoe.c 'f("kimi_k2");'
refuses 'names the family gpt_oss; its class in transformers' formats/runtime/modeling_fm.py 'X = {"gpt_oss"}'
mkdir "$copy/lib/attic"
refuses "'lib/attic' is not a room" lib/attic/x.c ''
rm -r "$copy/lib/attic"

# The documented extensions pass: another file in a room is not a fault, whatever the number and length
# of its files.
cp "$copy/lib/family/models/mixtral.c" "$copy/lib/family/models/another.c"
cp "$copy/lib/export/layouts/ragged.c" "$copy/lib/export/layouts/another.c"
cp "$copy/formats/quant/fp8.c" "$copy/formats/quant/another.c"
cp "$copy/kernels/cpu/cpu_norm.c" "$copy/kernels/cpu/cpu_another.c"
yes '/* */' | head -n 2000 >>"$copy/kernels/cpu/cpu_another.c"
said=$(python3 tests/rooms.py "$copy" 2>&1) || {
    echo "another family, layout, storage and kernel should pass the lint; it says: $said"
    bad=1
}
exit $bad
