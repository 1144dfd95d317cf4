# What --force may replace: an export, and of its directory only what that export listed.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family uniform --until 0.5
export_again() { # export_again TITLE: over `out`, and whether somebody's files are still there
    fm-pack -q --force --export out --budget 0.2 family.fm 2>&1 >/dev/null | sed "$2"
    echo "$1: status ${PIPESTATUS[0]}, $(find out -name 'adapter*' -o -name 'notes*' | wc -l) files of others"
}
older() { # older DIR: as exports were before they listed their files
    sed -i '/"files"/d' "$1/fm-export.json"
}
fm-pack -q --export out --budget 0.4 --shard-size 60KB family.fm >/dev/null
export_again "its own files"
touch out/adapter_model.safetensors
export_again "an adapter"
rm out/adapter*
touch out/notes.txt
export_again "notes"
rm out/notes.txt
for layout in native uniform; do
    rm -rf out
    fm-pack -q --export out --budget 0.4 --layout $layout --shard-size 60KB family.fm >/dev/null 2>&1 ||
        fm-pack -q --export out --budget 0.4 --layout $layout family.fm >/dev/null
    older out
    fm-verify -q out --against family.fm | sed 's/items, .*B:/items:/; s/[0-9]* items/N items/'
    touch out/adapter_model.safetensors
    export_again "an older export, an adapter"
    rm out/adapter*
    export_again "an older export"
done
echo '{}' >out/fm-export.json
export_again "no export" "s/holds '[^']*'/holds 'FILE'/"
rm -rf out
mkdir out
export_again "empty"
fm-verify -q out --against family.fm | sed 's/items, .*B:/items:/; s/[0-9]* items/N items/'
ls -A
