# README says what is lost at a budget of 0.4 in a range: that of the table of methods in fm-train(1).
python3 - "$GOLDEN/.." <<'PYTHON'
import re, sys
from pathlib import Path

root = Path(sys.argv[1])
rows = re.findall(r"^\| ([\w-]+), (saliency|exchange) \|(.*)\|$", (root / "man/fm-train.1").read_text(), re.M)
lost = {"saliency": [], "exchange": []}
for _, method, cells in rows:
    at = [float(x) for x in cells.split("|")]
    if len(at) == 10:  # budgets 0.1 to 0.8, spread, time
        lost[method].append(100 * (at[3] / at[0] - 1))
want = ["%.0f to %.0f %%" % (min(x), max(x)) for x in (lost["exchange"], lost["saliency"])]
text = " ".join((root / "README.md").read_text().split())
said = re.search(r"for (\d to \d %) of cross-entropy by the default method, (\d to \d %) by `--method saliency`", text)
print(len(rows), "rows; README:", said and list(said.groups()) == want and "as the table" or want)
PYTHON
