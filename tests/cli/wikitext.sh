# fm-bench quality --convention wikitext: documents, their windows, words and bytes; a family and an
# export agree; unsupported uses are refused.  tests/judge/lmjudge.py compares the figures with
# lm-eval's.
model=$GOLDEN/tiny-mixtral
data=(-q -m "$model" -t "$model/calib.npy" --seq-len 128 --max-tokens 4096 --precision f32)
fm-rank "${data[@]}" -o ranked >/dev/null 2>&1
fm-train "${data[@]}" --method uniform -o trained ranked >/dev/null 2>&1
fm-pack -q -m "$model" -o family.fm trained >/dev/null
fm-pack -q --export out --budget 0.5 --layout ragged family.fm >/dev/null
python3 - <<'END'
import json
pages = [" \n = Title = \n \n " + "the fox runs , and 1 @,@ 000 dogs sleep . " * n for n in (1, 7, 40)] + ["", "x"]
for name in "pages", "fronted", "plain", "one":
    some = {"pages": pages, "fronted": ["<s> the fox"], "plain": [" the fox"], "one": pages[2:3]}[name]
    open(name + ".jsonl", "w").writelines(json.dumps({"page": p}) + "\n" for p in some)
END
quality() { fm-bench quality -q --convention wikitext --eval-text pages.jsonl --text-field page --precision f32 "$@"; }
quality --seq-len 100 out | sed 's/[0-9]*\.[0-9]\+/N/g; s/ \+/ /g' | head -n 8
for n in 100 2; do
    quality --seq-len $n --budgets 0.5 --json family.fm >family.json
    quality --seq-len $n --model "$model" --json out >export.json
    python3 - <<'END'
import json, math
family, export = json.load(open("family.json")), json.load(open("export.json"))
row = family["rows"][0]["family"]
keys = "ce", "kl", "word_perplexity", "byte_perplexity", "bits_per_byte"
print("windows", family["sequences"], "of", family["seq_len"], "tokens", family["tokens"], "words", family["words"],
      "bytes", family["text_bytes"], "documents", family["documents"])
print("the export's figures" if all(math.isclose(row[k], export[k], rel_tol=1e-6) for k in keys) else (row, export))
loss = row["ce"] * family["tokens"]
print("per word", math.isclose(math.log(row["word_perplexity"]) * family["words"], loss),
      "per byte", math.isclose(row["bits_per_byte"] * math.log(2) * family["text_bytes"], loss))
END
done
echo "-- the text of a document begins with the token that would be put before it"
for name in fronted plain; do
    fm-bench quality -q --convention wikitext --eval-text $name.jsonl --text-field page out | grep -o 'wikitext: [0-9]* tokens'
done
echo "-- intervals are over documents"
for name in pages one; do
    fm-bench quality -q --convention wikitext --eval-text $name.jsonl --text-field page --seq-len 100 --json out >report.json
    grep -c ce_interval report.json
done
quality --record out >/dev/null
grep -o 'interval over.*' out/README.md
grep -B 2 'name: wikitext' out/README.md | grep type
fm-verify -q --against family.fm out | sed 's/ items.*/ items/'
echo "-- refused"
say() {
    "$@" 2>&1 >/dev/null | sed "s|$GOLDEN|GOLDEN|g"
    echo "status ${PIPESTATUS[0]}"
}
say fm-bench quality -q --convention wikitext --eval-tokens "$model/heldout.npy" family.fm
say quality --eval-text pages.jsonl family.fm
say quality --separator none family.fm
say quality --tokenizer-cmd cat family.fm
say quality --seq-len 513 family.fm
say quality --seq-len 1 family.fm
say quality --kl-base-out base.kld --model "$model" out
