#!/usr/bin/env python3
"""Measure what a cut costs on a model of golden/make/real.py: masks, recovery, formats, and their times.

usage: BUILD=build tests/measure/real.py MODEL TEXT DIR [--sequences N] [--held N] [--criteria NAME,...]
           [--methods NAME,...] [--budgets STEP:LAST] [--learned N] [--recover "OPTION=VALUE,... ..."]
           [--formats NAME,...] [--experts R,...]

TEXT is the folder with KIND-calib.npy and KIND-test.npy.  The calibration is half Python sources and half
documentation; losses are of other documents of these two kinds, and of two kinds that are not in the
calibration: manual pages, and messages in German, French and Spanish.  Percentages are relative to the
unpruned model, each with the standard error of differences paired over the eight parts of two kinds; KL
and agreement are over all text.  Masks are made for each of the criteria and methods, and measured at the
multiples of STEP up to LAST.  The last of these are recovered, once with each list of options of fm-recover;
whole experts are removed by REAP.  learned has N steps of one sequence.

Streams and reports go to DIR; what exists is not made again, so an interrupted run can be resumed and rows
can be added.  Prints tables in Markdown.  With the defaults everything takes a day on two cores;
--sequences 16 --held 16 --budgets 0.4:0.4 --methods uniform --recover= is a look that takes minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / os.environ.get("BUILD", "build") / "bin"
KNOWN, OTHER = ("python", "documentation"), ("manual", "messages")
PARTS = 4  # of each kind's held-out text, for standard errors


class Study:
    def __init__(self, a):
        self.a, self.dir = a, a.dir
        self.dir.mkdir(parents=True, exist_ok=True)
        self.calib = self.dir / "calib.npy"
        parts = [np.load(a.text / f"{k}-calib.npy")[: a.sequences // 2] for k in KNOWN]
        np.save(self.calib, np.stack(parts, 1).reshape(-1, parts[0].shape[1]))
        self.held, held = [], []
        for kind in KNOWN + OTHER:
            held.append(np.load(a.text / f"{kind}-test.npy")[: a.held // 4])
            for i in range(PARTS):
                path = self.dir / f"{kind}-{i}.npy"
                np.save(path, held[-1][i::PARTS])
                self.held.append(f"--eval-tokens={path}")
        np.save(self.dir / "held.npy", np.concatenate(held))
        self.data = ["--seq-len=512", f"--model={a.model}", f"--tokens={self.calib}", *self.held,
                     f"--max-eval-tokens={512 * a.held}"]  # fmt: skip

    def run(self, name, tool, *words):
        """The report of a tool, with its seconds and its memory in KiB; run it unless the report exists."""
        report = self.dir / f"{name}.json"
        if not report.exists():
            began = time.time()
            child = subprocess.Popen([TOOLS / tool, *words, "--quiet", "--json"], stdout=subprocess.PIPE)
            text = child.stdout.read()
            _, status, used = os.wait4(child.pid, 0)
            if status:
                raise SystemExit(f"real.py: {name}: {tool} failed")
            found = {**json.loads(text), "wall": time.time() - began, "memory": used.ru_maxrss}
            report.with_suffix(".part").write_text(json.dumps(found))
            os.replace(report.with_suffix(".part"), report)
        return json.loads(report.read_text())

    def stage(self, name, tool, *words, source=None):
        out = self.dir / f"{name}.fm"
        files = [f"--state={self.dir / name}.state", "--force", f"--output={out}"]
        words = [*self.data, *files, *words] + ([str(self.dir / f"{source}.fm")] if source else [])
        return self.run(name, tool, *words)


def parts(kinds, names):
    return np.array([kinds[f"{name}-{i}"] for name in names for i in range(PARTS)])


def row(quality, budget=0.0):
    """A budget, the losses of the parts of the calibrated kinds, and of the others, and KL and agreement."""
    whole = np.array([quality.get("kl", 0), quality.get("agree", 1)])
    return budget, parts(quality["kinds"], KNOWN), parts(quality["kinds"], OTHER), whole


def rows_of(report):
    """The row of each mask that was measured."""
    found = [(b.get("recovered") or b.get("quality"), b["budget"]) for b in report["budgets"]]
    return [row(*x) for x in found if x[0]]


def at(rows, budget, column):
    """The losses of the parts at a budget, interpolated linearly between two masks."""
    x = [r[0] for r in rows]
    return np.array([np.interp(budget, x, y) for y in zip(*(r[column] for r in rows))])


def cell(loss, full):
    """The mean loss, and its growth in percent, with the standard error of paired differences of the parts."""
    grown = 100 * (loss - full) / full.mean()
    return f"{loss.mean():.3f} ({grown.mean():+.1f} ± {grown.std(ddof=1) / len(grown) ** 0.5:.1f} %)"


def table(title, budgets, rows, full):
    print(f"\n{title}\n\n|  | text | {' | '.join(f'{b:g}' for b in budgets)} | time, memory |")
    print("| :-- | :-- | " + "--: | " * (len(budgets) + 1))
    for name, found, used in rows:
        cells = [" | ".join(cell(at(found, b, column), full[column]) for b in budgets) for column in (1, 2)]
        cells.append(" | ".join("{:.3f}, {:.1%}".format(*at(found, b, 3)) for b in budgets))
        print(f"| {name} | calibrated kinds | {cells[0]} | {used['wall']:.0f} s, {used['memory'] / 2**20:.1f} GiB |")
        print(f"| | other kinds | {cells[1]} | |\n| | KL, agreement | {cells[2]} | |")
    sys.stdout.flush()


def formats(s, source, full):
    """Exports of the unpruned model in each format."""
    print("\nFormats of experts at budget 0, layout uniform\n\n| format | MB | calibrated kinds | other kinds |")
    print("| :-- | --: | --: | --: |")
    bundle = s.dir / "family.fm"
    if not bundle.exists():
        subprocess.run([TOOLS / "fm-pack", "-q", "-m", s.a.model, "-o", bundle, s.dir / f"{source}.fm"],
                       check=True, stdout=sys.stderr)  # fmt: skip
    for name in s.a.formats.split(","):
        out = s.dir / f"export-{name}"
        if not out.exists():
            subprocess.run([TOOLS / "fm-pack", "-q", "--export", out, "--budget", "0", "--layout", "uniform",
                            "--weights", name, bundle], check=True, stdout=sys.stderr)  # fmt: skip
        found = s.run(f"quality-{name}", "fm-bench", "quality", "--seq-len=512", *s.held, out)
        _, known, other, _ = row(found)
        print(f"| {name} | {found['bytes'] / 1e6:.0f} | {cell(known, full[1])} | {cell(other, full[2])} |", flush=True)


def experts(s, shares, masks, full):
    """Whole experts removed by REAP, beside the masks, in the mean of all four kinds."""
    words = [f"--model={s.a.model}", f"--tokens={s.calib}", f"--eval-tokens={s.dir / 'held.npy'}", "--seq-len=512",
             f"--budgets={','.join(map(str, shares))}"]  # fmt: skip
    found = s.run("experts", "fm-bench", "baselines", *words)
    reap = next(x for x in found["rows"] if x["baseline"] == "reap")
    full = np.mean(full[1:3])
    print(f"\nWhole experts removed, all four kinds\n\n| | {' | '.join(f'{b:g}' for b in shares)} |")
    print("| :-- | " + "--: | " * len(shares))
    for name, losses in (
        ("REAP", [c["ce"] for c in reap["cells"]]),
        ("masks", [np.mean([at(masks, b, 1), at(masks, b, 2)]) for b in shares]),
    ):
        print(f"| {name} | {' | '.join(f'{x:.3f} ({100 * (x / full - 1):+.1f} %)' for x in losses)} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("text", type=Path)
    p.add_argument("dir", type=Path)
    p.add_argument("--sequences", type=int, default=64)
    p.add_argument("--held", type=int, default=128)
    p.add_argument("--criteria", default="taylor,activation")
    p.add_argument("--methods", default="uniform,saliency,learned,exchange")
    p.add_argument("--budgets", default="0.1:0.6")
    p.add_argument("--learned", default="100")
    p.add_argument("--recover", default="steps=60 steps=200 steps=60,budget=0.2")
    p.add_argument("--experts", default="0.25,0.5")
    p.add_argument("--formats", default="fp8-block,w4a16:32")
    a = p.parse_args()
    s = Study(a)
    step, last = (float(x) for x in a.budgets.split(":"))
    budgets = [round(i * step, 4) for i in range(round(last / step) + 1)]
    print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; {a.model.name}, "
          f"{a.sequences} sequences of 512 to calibrate on, {a.held} held out")  # fmt: skip
    rows, full, source = [], None, None
    for criterion in a.criteria.split(","):
        ranked = s.stage(f"ranked-{criterion}", "fm-rank", f"--criterion={criterion}")
        print(f"ranked by {criterion} in {ranked['wall']:.0f} s, {ranked['memory'] / 2**20:.1f} GiB", flush=True)
        for method in a.methods.split(","):
            if criterion in ("energy", "activation") and method in ("saliency", "learned"):
                continue
            source = f"{method}-{criterion}"
            words = [f"--steps={a.learned}", "--batch=1"] if method == "learned" else []
            masks = s.stage(source, "fm-train", f"--method={method}", f"--until={last}",
                            f"--measure-step={step}", *words, source=f"ranked-{criterion}")  # fmt: skip
            full = full or rows_of(masks)[0]
            rows.append((f"{criterion}, {method}", rows_of(masks), masks))
    table("Masks, without recovery", budgets, rows, full)
    rows = []
    for name in a.recover.split():
        found = s.stage(f"recovered {name}", "fm-recover", *(f"--{x}" for x in name.split(",")), source=source)
        rows.append((f"{source}, {name}", rows_of(found), found))
    if rows:
        table("Recovered, at 0.40 unless it says so", budgets, rows, full)
    if a.experts:
        experts(s, [float(x) for x in a.experts.split(",")], rows_of(masks), full)
    if a.formats:
        formats(s, source, full)


if __name__ == "__main__":
    main()
