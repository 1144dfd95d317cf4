# Layouts that need trust for our modelling file run nobody else's code; --allow-code keeps it, and says so.
odd=$GOLDEN/odd-mixtral
cp -rL "$odd" model && chmod -R u+w model
echo 'raise SystemExit("ran")' >model/tokenization_x.py
echo 'raise SystemExit("ran")' >model/helper.py
printf '{\n  "model_max_length": 64,\n  "auto_map": {"AutoTokenizer": ["tokenization_x.X", null]}\n}\n' \
    >model/tokenizer_config.json
printf '{"auto_map": {"AutoProcessor": "else/where--processing_y.Y"}}\n' >model/processor_config.json
printf '{"feature_extractor": {"auto_map": {"A": "b.C"}}}\n' >model/preprocessor_config.json
printf '{"base_model_name_or_path": "else/where"}\n' >model/adapter_config.json
printf '{"max_new_tokens": 8}\n' >model/generation_config.json
fm-rank -q --model model --tokens "$odd/tokens.npy" -o ranked >/dev/null 2>&1
fm-train -q --model model --tokens "$odd/tokens.npy" --method saliency --budget-step 0.2 -o trained \
    ranked >/dev/null
fm-pack -q --model model -o family.fm trained >/dev/null
show() {
    echo "-- $*"
    fm-pack --export out --budget 0.4 "$@" family.fm >/dev/null 2>said
    echo "status $?"
    cat said
    [ -e out ] || return
    (cd out && ls && grep -l auto_map -- *.json && cat tokenizer_config.json)
    sed -n '/^## Code/,$p' out/README.md
    fm-verify -q out --against family.fm | sed 's/: .*items, .*B:/: items:/'
    rm -r out
}
show --layout ragged
show --layout elastic --allow-code
show --layout uniform
show --layout uniform --allow-code
