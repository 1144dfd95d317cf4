# The card of an export: the licence of the checkpoint's card, in every spelling, and how a tokenizer is loaded.
cp -r "$GOLDEN/odd-mixtral" model
export_card() { # print the front matter of an export's card
    fm-rank -q --model model --tokens "$GOLDEN/odd-mixtral/tokens.npy" --force -o ranked >/dev/null 2>&1
    fm-train -q --model model --tokens "$GOLDEN/odd-mixtral/tokens.npy" --method uniform \
        --budget-step 0.5 --until 0.5 --force -o trained ranked >/dev/null
    fm-pack -q --model model --force -o family.fm trained >/dev/null
    fm-pack -q --export out --force --budget 0 family.fm >/dev/null
    sed -n '/^license/,/^library/p' out/README.md | grep -v library
}
for card in '---\nlicense: mit\n---\n' '---\r\nlicense: mit\r\n---\r\n' \
    '---\nlicense:\n- mit\n- apache-2.0\n---\n' '---\nlicense: [mit, apache-2.0]\n---\n'; do
    echo "-- $card"
    # shellcheck disable=SC2059 # it contains escapes
    printf -- "$card" >model/README.md
    export_card
done
echo "-- a model with a tokenizer"
cp "$GOLDEN/tiny-mixtral/tokenizer.json" model
export_card >/dev/null
grep from_pretrained out/README.md
