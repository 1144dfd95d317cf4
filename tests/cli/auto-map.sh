# auto_map in config.json of an export: without --allow-code it is removed.  With the option, layout native
# keeps it; padded and uniform keep it if every file that it names is carried or in another repository.
odd=$GOLDEN/odd-mixtral
mkdir model
cp "$odd"/* model
sed -i 's/^{/{\n  "auto_map": {"AutoConfig": "configuration_odd.C", "AutoTokenizer": [null, "MORE.T"]},/' \
    model/config.json
make() {
    rm -f ranked trained family.fm
    fm-rank -q --model model --tokens "$odd/tokens.npy" -o ranked >/dev/null 2>&1
    fm-train -q --model model --tokens "$odd/tokens.npy" --method saliency --budget-step 0.1 \
        -o trained ranked >/dev/null
    fm-pack -q --model model -o family.fm trained >/dev/null
}
try() {
    make
    for layout in padded uniform native; do
        fm-pack -q -f --export "$layout" --budget 0.4 --layout "$layout" family.fm >/dev/null 2>&1
        grep -c auto_map "$layout/config.json"
        fm-pack -q -f --export "$layout" --budget 0.4 --layout "$layout" --allow-code family.fm >/dev/null 2>&1
        fm-verify -q "$layout" --against family.fm >/dev/null || echo "$layout does not verify"
        echo "$1, $layout: $(grep auto_map "$layout/config.json")"
    done
    find padded -name '*.py' | sort
}
try "no file"
touch model/configuration_odd.py
try "one of two files"
sed -i 's/MORE/org\/name--tokenization/' model/config.json
try "the other file in another repository"
