# Exports have neither the author's code nor keys that make a program load code or another model,
# unless --allow-code is given; messages name what is left out or kept.
odd=$GOLDEN/odd-mixtral
cp -rL "$odd" model && chmod -R u+w model
sed -i 's|^{|{\n  "_name_or_path": "else/where",\n  "attn_implementation": "else/where", "new": {"auto_map": 1, "b": 2}, "fm_family": [], "max_window_layers": 3,\
  "auto_map": {"AutoModel": "helper.M"},\
  "custom_pipelines": {"text-generation": {"impl": "helper.P", "pt": ["AutoModelForCausalLM"]}},\
  "speculators_config": {"verifier": {"name_or_path": "else/where"}},\
  "text_config": {"auto\\u005fmap": {"AutoConfig": "helper.C"}, "sub": [{"audio_tokenizer": {}}], "a": 1},|' model/config.json
echo 'raise SystemExit("ran")' >model/tokenization_x.py
echo 'raise SystemExit("ran")' >model/helper.py
printf 'cos\nsystem\n(S"true"\ntR.' >model/tokenizer.pkl
printf '{\n  "model_max_length": 64,\n  "auto_map": {"AutoTokenizer": ["tokenization_x.X", null]}\n}\n' \
    >model/tokenizer_config.json
printf '{"auto_map": {"AutoProcessor": "else/where--processing_y.Y"}}\n' >model/processor_config.json
printf '{"feature_extractor": {"auto_map": {"A": "b.C"}, "size": 7}}\n' >model/preprocessor_config.json
printf '{"base_model_name_or_path": "else/where"}\n' >model/adapter_config.json
printf '{"max_new_tokens": 8, "cache_implementation": "static"}\n' >model/generation_config.json
printf '{"framework": "pytorch", "task": "text-generation", "allow_remote": true, "plugins": ["evil"], "model": {}, "a\\u202eb": 1}\n' \
    >model/configuration.json
printf '{"x": NaN, "auto_map": {}}\n' >model/broken_config.json
printf '{"auto_map": 5, "plugins": 6}\n' >model/vocab.json
fm-rank -q --precision f32 --model model --tokens "$odd/tokens.npy" -o ranked >/dev/null 2>&1
fm-train -q --model model --tokens "$odd/tokens.npy" --precision f32 --method saliency --budget-step 0.2 -o trained \
    ranked >/dev/null
fm-pack -q --model model -o family.fm trained >/dev/null
show() {
    echo "-- $*"
    fm-pack --export out --budget 0.4 "$@" family.fm >/dev/null 2>said
    echo "status $?"
    cat said
    [ -e out ] || return
    (cd out && ls && grep -lE 'auto.*map|custom_pipelines|name_or_path|"a"|plugins|implementation' -- *.json)
    (cd out && cat tokenizer_config.json configuration.json preprocessor_config.json processor_config.json)
    head -4 out/config.json
    grep -E 'text_config|"new"|fm_family|keep_config' out/config.json out/fm-export.json
    sed -n '/^## Code/,$p' out/README.md
    grep 'fm-pack --export' out/README.md
    fm-verify -q out --against family.fm | sed 's/: .*items, .*B:/: items:/'
    rm -r out
}
show --layout ragged
show --layout elastic --allow-code
show --layout layer --for vllm
show --layout uniform
show --layout padded --allow-code
show --layout native
show --layout ragged --keep-config new --keep-config text_config
refused() {
    echo "-- $*"
    fm-pack -q --export out --budget 0.4 "$@" family.fm 2>&1
    echo "status $?"
}
refused --layout ragged --keep-config new --keep-config auto_map
refused --layout ragged --keep-config _name_or_path
refused --layout ragged --keep-config NEW
refused --layout ragged --keep-config 'new": 1, "x'
refused --layout ragged --allow-code --keep-config new
refused --layout uniform --keep-config new
fm-pack -q --export out --budget 0.4 --keep-config new family.fm 2>/dev/null >&2
sed -i 's/"keep_config": .*/"keep_config": ["text_config"],/' out/fm-export.json
fm-verify out --against family.fm | sed 's/ items, .*B:/ items:/'
sed -i 's/"keep_config": .*/"keep_config": ["auto_map"],/' out/fm-export.json
fm-verify out --against family.fm | sed 's/ items, .*B:/ items:/'
exit "${PIPESTATUS[0]}"
