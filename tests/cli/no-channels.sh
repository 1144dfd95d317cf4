# Masks with experts of width 0 are exported in every layout that can hold them, and compute what the mask does.
# shellcheck source=tests/cli/family.bash
. "$(dirname "$0")/family.bash"
family saliency --actions 0,0.3,1 --until 0.5
for layout in native ragged elastic layer uniform padded; do
    for mask in 1 5; do
        fm-pack -q --export $layout --layout $layout --budget "$(budget_of $mask)" --force family.fm >/dev/null
        fm-verify -q $layout --against family.fm | grep -v '^not compared' | figures
    done
done
python3 - ragged/config.json <<'END'
import json, sys
widths = json.load(open(sys.argv[1]))["fm_widths"]
print("experts of width 0:", sum(k == 0 for layer in widths for k in layer), "of", sum(map(len, widths)))
END
for layout in ragged padded; do
    fm-verify -q $layout --against family.fm --function --tokens "$odd/tokens.npy" |
        sed -n 's/:.*differ by .* at most/: same/p'
done
echo "== a ragged export is not ranked"
fm-rank -q --model ragged --tokens "$odd/tokens.npy" -o no 2>&1
echo "status $?"
echo "== ratios that do not increase"
fm-train -q --model "$odd" --tokens "$odd/tokens.npy" --actions 0,0,1 -o no ranked 2>&1
echo "status $?"
