#!/usr/bin/env python3
"""Check exports with lm-eval 0.4.13.  Run by `make judge` in a separate environment.

The commands of fm-guide(7), EVALUATING, are run from the page on an export of each layout that
transformers loads; layouts that store the same mask must have the same scores.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "golden/tiny-mixtral"
LAYOUTS = "padded", "uniform", "ragged", "elastic", "layer"
made = failed = 0


def say(good, text):
    global made, failed
    made += 1
    failed += not good
    print(f"{'ok  ' if good else 'FAIL'} {text}", flush=True)


def tool(*command):
    subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL)


def make_exports(folder):
    data = ["-q", "-m", MODEL, "-t", MODEL / "calib.npy", "--seq-len", 128, "--max-tokens", 4096]
    tool("fm-rank", *data, "-o", folder / "ranked")
    tool("fm-train", *data, "--method", "saliency", "-o", folder / "trained", folder / "ranked")
    tool("fm-pack", "-q", "-m", MODEL, "-o", folder / "family.fm", folder / "trained")
    for layout in LAYOUTS:
        tool("fm-pack", "-q", "--export", folder / layout, "--budget", 0.4, "--layout", layout, folder / "family.fm")


def run_page(folder, layout):
    """Run the page's commands on one layout; returns lm_eval's results of the task."""
    here = folder / f"run-{layout}"
    here.mkdir()
    (here / "out20").symlink_to(folder / layout)
    page = subprocess.run([sys.executable, ROOT / "tests/pages.py", "take", "fm-guide.7", "judge/lmjudge.py"],
                          check=True, capture_output=True, text=True).stdout  # fmt: skip
    own = f"lm_eval() {{ {sys.executable} -m lm_eval \"$@\"; }}\n"
    done = subprocess.run(["bash", "-ec", own + page], cwd=here, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout[-1500:] + done.stderr[-1500:])
    say(done.returncode == 0, f"{layout}: fm-guide(7)'s commands")
    result = next(here.glob("results/*/results_*.json"), None)
    return json.loads(result.read_text())["results"]["facts"] if result else {}


def judge_page(folder):
    scores = {x: run_page(folder, x) for x in LAYOUTS}
    for layout, score in scores.items():
        say(score.get("sample_len") == 2 and 0 <= score.get("acc,none", -1) <= 1, f"{layout}: acc {score.get('acc,none')}")
    for layout in "ragged", "elastic":
        say(scores[layout] == scores["padded"], f"{layout}: the same scores as padded")


def main():
    with tempfile.TemporaryDirectory() as folder:
        make_exports(Path(folder))
        judge_page(Path(folder))
    print(f"lmjudge.py: {made} checks, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
