# A stream that ends early is never taken for a whole one, in a file or a pipe.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency
size=$(stat -c %s family.fm)
for keep in 0 511 512 5000 $((size / 2)) $((size - 1024)) $((size - 512)) $((size - 1)); do
    head -c "$keep" family.fm >t.fm
    fm-verify -q t.fm >/dev/null 2>&1
    echo "file: status $?"
    fm-verify -q <t.fm >/dev/null 2>&1
    echo "pipe: status $?"
    fm-pack -q --list t.fm >/dev/null 2>&1
    echo "list: status $?"
    fm-pack -q --export out --budget 0.4 t.fm >/dev/null 2>&1
    echo "export: status $?"
done
for keep in 0 700 9000 $(($(stat -c %s trained) - 512)); do
    head -c "$keep" trained | fm-recover -q --model "$odd" --tokens "$odd/tokens.npy" -o out \
        >/dev/null 2>&1
    echo "a stage: status ${PIPESTATUS[1]}"
done
{ cat family.fm; echo; } >t.fm
fm-verify -q t.fm >/dev/null 2>&1
echo "a byte after the end: status $?"
ls -A
