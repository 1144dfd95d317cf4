#!/usr/bin/env bash
# Files call each other in no circle.  Tables of descriptors (lists of families, formats, layouts, methods)
# do not count: a list names its members, and they may call the room that has the list.
set -u
cd "$(dirname "$0")/../.." || exit 1
made=$(mktemp -d) || exit 1
trap 'rm -rf "$made"' EXIT

# circles FOLDER...: print every circle of the object files in the folders; status 1 if there is one
circles() {
    find "$@" -name '*.c.o' -print0 | xargs -0 nm -A -g | python3 -c '
import sys

home, needs, calls = {}, [], {}
for line in sys.stdin:
    file, rest = line.split(":", 1)
    kind, name = rest.split()[-2:]
    if kind in "TWi":
        home[name] = file
    elif kind == "U":
        needs.append((file, name))
for file, name in needs:
    if home.get(name, file) != file:
        calls.setdefault(file, set()).add(home[name])
ends = True
while ends:  # leave out files that call none of the others, and those that none calls
    called = {g for f in calls for g in calls[f]}
    ends = [f for f in calls if f not in called or not any(g in calls for g in calls[f])]
    for file in ends:
        del calls[file]
for file in sorted(calls):
    print("circle:", file, "calls", *sorted(g for g in calls[file] if g in calls))
sys.exit(bool(calls))'
}

circles "$BUILD"/{cmd,lib,formats,kernels} || exit 1

printf 'void b(void);\nvoid c(void);\nvoid a(void);\nvoid a(void) { b(); }\n' >"$made/a.c"
printf 'void c(void);\nvoid b(void);\nvoid b(void) { c(); }\n' >"$made/b.c"
printf 'void a(void);\nvoid c(void);\nvoid c(void) { a(); }\n' >"$made/c.c"
for file in a b c; do
    ${CC:-cc} -c -o "$made/$file.c.o" "$made/$file.c" || exit 1
done
if said=$(circles "$made") || [ "$(grep -c circle: <<<"$said")" != 3 ]; then
    echo "a calls b, which calls c, which calls a; found: $said"
    exit 1
fi
rm "$made/c.c.o"
circles "$made" || exit 1
