# The differences between methods in fm-guide(7) agree with the table of methods in tests/measure/RESULTS.md.
python3 - "$GOLDEN/.." <<'PYTHON'
import re, sys
from pathlib import Path

root = Path(sys.argv[1])
METHODS = "uniform", "saliency", "learned", "exchange"
rows = re.findall(rf"^\| ([\w-]+), ({'|'.join(METHODS)}) \|(.*)\|$", (root / "tests/measure/RESULTS.md").read_text(), re.M)
table = {}
for model, method, cells in rows:
    at = [float(x) for x in cells.split("|")]
    if len(at) == 10:  # budgets 0.1 to 0.8, spread, time
        table.setdefault(model, {})[method] = at
print(len(rows), "rows")

def ends(f, *budgets):
    """Minimum and maximum over models and budgets (budgets in tenths)."""
    x = [f(of, b - 1) for of in table.values() for b in budgets]
    return min(x), max(x)

def gain(of, b):
    return min(of[m][b] for m in METHODS[:-1]) - of["exchange"][b]

def behind(of, b):
    return of["saliency"][b] - of["learned"][b]

def spread(of, b):
    x = [of[m][b] for m in METHODS[1:]]
    return max(x) - min(x)

guide = re.sub(r"\n(\.Cm )?", " ", (root / "man/fm-guide.7").read_text())
for said in (
    "from %.3f above to %.3f below the best of the others with one half removed," % (-ends(gain, 5)[0], ends(gain, 5)[1]),
    "below it by %.3f to %.3f with three fifths," % ends(gain, 6),
    "by %.3f to %.3f beyond that." % ends(gain, 7, 8),
    "from %.3f below to %.3f above that of learned at one half" % (-ends(behind, 5)[0], ends(behind, 5)[1]),
    "and %.3f to %.3f above it at three fifths." % ends(behind, 6), "the methods differ by less than %.3f" % (ends(spread, 2)[1] + 5e-4),
    "took %.2f to %.2f times as long" % ends(lambda of, b: of["exchange"][9], 1),
    "and saliency %.2f to %.2f times." % ends(lambda of, b: of["saliency"][9], 1),
):  # fmt: skip
    print("fm-guide(7):", "agrees with the table" if said in guide else f"must say: {said}")
PYTHON
