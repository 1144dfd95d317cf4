#!/usr/bin/env bash
# Test the lint of signposts: one fault at a time is put into a copy of the tree, and tests/signposts.py
# must report it.
set -u
cd "$(dirname "$0")/../.." || exit 1
copy=$(mktemp -d) || exit 1
trap 'rm -rf "$copy"' EXIT
bad=0
{ git ls-files 2>/dev/null || find . -type f ! -path './.git/*' ! -path './build*' -printf '%P\n'; } |
    grep -v '^golden/' | tar cf - -T - README.md golden/README golden/make | tar xf - -C "$copy"

# refuses WORDS FILE LINE: with LINE in FILE the lint must fail and print WORDS
refuses() {
    cp "$copy/$2" "$copy/kept" 2>/dev/null || : >"$copy/kept"
    printf '%s\n' "$3" >>"$copy/$2"
    if said=$(python3 tests/signposts.py "$copy" 2>&1) || ! grep -qF "$1" <<<"$said"; then
        echo "with '$3' in $2 the lint should say '$1'; it says: $said"
        bad=1
    fi
    mv "$copy/kept" "$copy/$2"
}

python3 tests/signposts.py "$copy" || bad=1
refuses 'there is no lib/masks/attic.c' lib/masks/masks.c '/* as lib/masks/attic.c does */'
refuses 'there is no attic.c' lib/masks/masks.c '/* as attic.c does */'
refuses 'there is no tests/attic.sh' README.md 'Run tests/attic.sh.'
refuses 'there is no lib/attic.h' man/fm.7 '.Pa lib/attic.h'
refuses "'nobody': name the caller" lib/masks/masks.c '/* which nobody reads */'
refuses "'is none'" man/fm.7 'This is none.'
refuses 'the opening of lib/masks does not name attic' lib/masks/attic.c '/* A new unit. */'
exit $bad
