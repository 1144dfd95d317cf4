# Exports: which member of the family is exported, its widths, the number of files, and the README.
# The family has uniform widths, which are the same on every machine.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
show() { # show ARGUMENT...: omit sizes that depend on measured figures
    echo "\$ fm-pack $*" | sed 's/--fit [0-9]*/--fit SIZE/'
    fm-pack -q "$@" | grep -v '^all \|bytes_memory\|bytes_free\|bytes_out\|seconds'
}
show --export a --budget "$(budget_of 2)" family.fm
show --export b --budget 0.4 --layout uniform family.fm
show --export c --budget 0.4 --pad-multiple 12 --json family.fm
show --export d --budget 0.4 --layout layer --for vllm --dry-run family.fm
show --export e --layout elastic --shard-size 60KB family.fm
show --export f --budget 0.3 --layout padded --pad-multiple 5 family.fm
size=$(cat a/* | wc -c)
show --export g --fit "$size" family.fm
show --export h --fit $((size - 1)) family.fm
fm-pack -q --export - --budget "$(budget_of 2)" family.fm 2>/dev/null | tar xf - --one-top-level=i && diff -r a i && echo same
for dir in a b c e f g h i; do
    fm-verify -q $dir --against family.fm | sed 's/items, .*B:/items:/; s/[0-9]* items/N items/'
done
find e -name '*.safetensors*' | sort
grep -h -A 2 '^## Making' c/README.md e/README.md
fm-pack -q --export j --budget 0.9 family.fm
echo "status $?"
fm-pack -q --export k --fit 1000 family.fm 2>&1 | sed 's/takes [0-9.]* kB ([0-9]* bytes)/takes N/'
