# The size of an export is the same number of bytes in the list, in the messages before and after it is
# written, in its directory, and in fm-verify with and without the bundle.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency --until 0.5
fm-pack --list --json family.fm >list.json
value() { # value KEY: print a value of the JSON on standard input
    sed -n "s/^  \"$1\": \([0-9]*\),*$/\1/p"
}
sizes() { # sizes LAYOUT: print the sizes that all tools report
    find "$1" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }'
    fm-verify -q --json "$1" | value bytes
    fm-verify -q -n --json "$1" | value bytes
    fm-verify -q --json "$1" --against family.fm | value bytes
}
for layout in native ragged elastic layer uniform padded; do
    {
        python3 -c "import json; print(json.load(open('list.json'))['budgets'][3]['layouts']['$layout']['files'])"
        fm-pack -q -n --json --export $layout --layout $layout --budget "$(budget_of 3)" family.fm | value bytes_out
        fm-pack -q --json --export $layout --layout $layout --budget "$(budget_of 3)" family.fm | value bytes_out
        sizes $layout
    } >said
    echo "$layout: $(wc -l <said) figures, $(sort -u said | wc -l) of them different"
done
find ragged -name model.safetensors -printf '| bytes of the weight files | %s |\n' | grep -cxFf - ragged/README.md
echo "-- the disk, by dry runs"
fm-train -n --json -m "$odd" --tokens "$odd/tokens.npy" -o out ranked | value output >said
stat -c %s ranked | cat - said | tr '\n' ' ' | awk '{ print "a stage counts its input: " ($2 > $1) }'
fm-rank -n --json -m "$odd" --tokens "$odd/tokens.npy" | value later
fm-pack -n --json -m "$odd" -o out trained | value bytes_export
