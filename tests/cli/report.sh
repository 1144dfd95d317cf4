# fm-bench report: the page is well-formed, agrees with the tools, and is the same if made again; strings
# from forged files stay data; figures that cannot be drawn are refused.  `make judge` opens it in a
# browser.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
here=$(dirname "$0")
page() {
    echo "-- ${*//$GOLDEN\//}"
    fm-bench report -q "$@" >said 2>complained
    echo "status $?"
    sed 's/ *[0-9.]* kB/ BYTES/' said
    cat complained
}
family saliency --until 0.5 --eval-tokens "$odd/tokens.npy"
fm-bench quality -q --eval-tokens "$odd/tokens.npy" --json family.fm >quality.json
fm-bench baselines -q --model "$odd" --tokens "$odd/tokens.npy" --eval-tokens "$odd/tokens.npy" \
    --budgets 0.2 --json >baselines.json
fm-pack -q --export out --budget 0.3 --layout layer family.fm >/dev/null
fm-bench quality -q --eval-tokens "$odd/tokens.npy" --json out >out.json
page -n --figures quality.json family.fm
figures=(--figures quality.json --figures baselines.json --figures out.json)
page "${figures[@]}" -o page.html family.fm
python3 "$here/report.py" page.html family.fm quality.json baselines.json out.json
page -o page.html family.fm
page -f -o plain.html family.fm
python3 "$here/report.py" plain.html family.fm
mkdir sub
(cd sub && fm-bench report -q --figures ../quality.json --figures ../baselines.json --figures ../out.json -o - - <../family.fm) | cmp - page.html
fm-bench report --json -f -o plain.html trained | sed 's/: [0-9]\{5,\}/: N/'

echo "-- files that are neither a family nor figures of one"
page ranked
page missing.fm
page
page family.fm two.fm
page --budgets 0.2 family.fm
page -f -o family.fm family.fm
page --figures missing.json family.fm
page --figures family.fm family.fm
fm-pack --list --json family.fm >list.json
page --figures list.json family.fm
sed 's/"budget": 0.[1-9][0-9]*/"budget": 0.12345/' quality.json >other.json
page --figures other.json family.fm
sed 's/"agree": 0.[0-9]*/"agree": 7/' quality.json >wrong.json
page --figures wrong.json family.fm
sed 's/"kl_interval": \[/&0.5, /' quality.json >interval.json
page --figures interval.json family.fm

echo "-- hostile strings"
liar='</script><script>alert(1)</script><!-- ]]> \u2028 \u202e & <img src=x onerror=alert(1)>'
python3 "$here/forge.py" family.fm "<img src=x onerror=alert(1)>.fm" "
liar = '$liar'
b.manifest['history'][0]['options'][liar] = liar
b.manifest['history'][1]['result'] = {'__proto__': [liar, {'constructor': liar}]}
"
python3 -c "
import json
q = json.load(open('quality.json'))
for row in q['rows']:
    row['$liar'[:40]] = row.pop('uniform')
json.dump(q, open('<script>.json', 'w'))
"
page --figures '<script>.json' -o hostile.html "<img src=x onerror=alert(1)>.fm"
python3 "$here/report.py" --hostile hostile.html
ls
