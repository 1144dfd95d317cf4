# Elastic exports of a range of budgets: contents, README, verification.  The family has uniform
# widths, which are the same on every machine.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
show() { # show ARGUMENT...: omit sizes that depend on measured figures
    echo "\$ fm-pack $*"
    fm-pack -q "$@" | grep -v '^all \|bytes_memory\|bytes_free"\|bytes_out\|seconds'
    echo "status ${PIPESTATUS[0]}"
}
show --export a --layout elastic --load-cap 0.2:0.4 family.fm
show --export b --layout elastic --load-cap 0.2 --budget 0.4 --pad-multiple 4 --json family.fm
show --export c --layout elastic --load-cap 0 family.fm
show --export d --layout elastic family.fm
show --export e --layout elastic --load-cap 0.2 --dry-run family.fm
show --export f --layout elastic --load-cap 0.2 --budget 0.1 family.fm
show --export f --layout elastic --load-cap 0.2 --budget "$(budget_of 1)" family.fm
show --export f --layout elastic --load-cap 0.7 family.fm
fm-pack -q --export - --layout elastic --load-cap 0.2:0.4 family.fm 2>/dev/null |
    tar xf - --one-top-level=g && diff -r a g && echo same
cmp c/model.safetensors d/model.safetensors && echo "a cap that includes all members leaves out nothing"
tr -d ' \n' <a/config.json | grep -o '"fm_widths.*'
grep load_cap a/fm-export.json
grep -A 2 '^## Making\|left out' a/README.md
for dir in a b c; do
    fm-verify -q --function --tokens "$odd/tokens.npy" $dir --against family.fm |
        sed 's/[0-9]* items, .*B:/items:/; s/loss [.0-9]*, want [.0-9]*;/loss:/'
done
# A directory has the number of bytes that --dry-run reports.
bytes=$(fm-pack -q --json --dry-run --export x --layout elastic --load-cap 0.2:0.4 family.fm |
    sed -n 's/.*"bytes_out": \([0-9]*\).*/\1/p')
echo "$((bytes - $(cat a/* | wc -c))) bytes more than --dry-run says"
