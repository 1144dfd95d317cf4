# What --force may replace: an export, and in its directory only the files that the export listed.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
export_again() { # export_again TITLE [SED]: export to `out` again; print whether the user's files still exist
    fm-pack -q --force --export out --budget 0.2 family.fm 2>&1 >/dev/null | sed "$2"
    echo "$1: status ${PIPESTATUS[0]}, $(find out -name 'adapter*' -o -name 'notes*' | wc -l) files of others"
}
fm-pack -q --export out --budget 0.4 --shard-size 60KB family.fm >/dev/null
export_again "its own files"
touch out/adapter_model.safetensors
export_again "an adapter"
rm out/adapter*
touch out/notes.txt
export_again "notes"
rm out/notes.txt
fm-pack -q --force --export out --budget 0.4 --shard-size 60KB family.fm >/dev/null
sed -i '/"files"/d' out/fm-export.json
export_again "it lists no files" "s/contains '[^']*'/contains 'FILE'/"
echo '{}' >out/fm-export.json
export_again "no export" "s/contains '[^']*'/contains 'FILE'/"
rm -rf out
mkdir out
export_again "empty"
fm-verify -q out --against family.fm | sed 's/items, .*B:/items:/; s/[0-9]* items/N items/'
ls -A
