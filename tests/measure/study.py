#!/usr/bin/env python3
"""Repeat the ablations of the FlexMoE paper (arXiv 2606.27866) on small trained models, over three seeds.

    study.py [-d DIR] [-m MODEL,...] [-s SEED,...] [-T THREADS] [-o FILE] [-t]

Run make and `tests/judge/judge.sh --golden trained` first.  Cells are run one at a time, those that most
claims need first.  Each writes its stream and its report to DIR (build/study), and existing ones are not run
again, so an interrupted study can be resumed; remove DIR after changing what it measures.  Then FILE
(tests/measure/study.md) is written, with the paper's claims beside the results of all cells that were run.
-t: only write FILE.

The seed determines the order of the calibration data, the noise of training, the initial adapter, the shuffled
masks and the shuffled order of channels; models and texts are the same for all seeds.
"""

import getopt
import json
import os
import random
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import studytable

ROOT = Path(__file__).resolve().parents[2]
MADE = Path("build/trained")
MODELS = {  # the fastest first
    "choose-qwen2": MADE / "choose-qwen2",
    "choose-phimoe": MADE / "choose-phimoe",
    "tiny-mixtral": Path("golden/tiny-mixtral"),
}
STRATEGIES_ON = "choose-qwen2"
MASKS = ("--steps", "200", "--until", "0.65", "--budget-step", "0.05")
ADAPTER = ("--steps", "100", "--lr", "1e-4")
CONTROLS = ("shuffle-layer", "shuffle-global")  # of the learned masks, by fm-bench quality
FEW = 4 * 128  # calibration tokens of the ranking by few samples
COMMON = ("--seq-len", "128", "--shuffle", "--precision", "f32")


@dataclass(frozen=True)
class Cell:
    """One run of a tool: its stream NAME-SEED and its report, for a model."""

    name: str
    tool: str
    options: tuple = ()
    source: str = ""  # the cell whose stream it reads
    shuffled: bool = False  # use the checkpoint with channels in random order


def recover(budget, strategy="single"):
    name = "cross" if strategy == "cross" else f"recovered-{budget}"
    at = () if strategy == "cross" else ("--budget", budget)
    return Cell(name, "fm-recover", (*at, "--strategy", strategy, *ADAPTER), "learned")


def train(name, source, method="learned", **kind):
    options = {"learned": MASKS, "uniform": MASKS[2:]}.get(method, ())
    return Cell(name, "fm-train", ("--method", method, *options), source, **kind)


MAIN = (
    Cell("rank", "fm-rank"),
    train("learned", "rank"),
    train("uniform", "rank", "uniform"),
    Cell("controls", "fm-bench", source="learned"),
    Cell("rank-original", "fm-rank", ("--order", "original")),
    train("unranked", "rank-original"),
    Cell("rank-shuffled", "fm-rank", ("--order", "original"), shuffled=True),
    train("shuffled", "rank-shuffled", shuffled=True),
)
RECOVERY = (recover("0.4"), recover("0.2"), recover("0.6"))
STRATEGIES = (recover("0.4", "cross"),)
BETWEEN = (recover("0.3"), recover("0.5"))
RANKING = (
    Cell("rank-few", "fm-rank", ("--max-tokens", str(FEW))),
    train("few", "rank-few"),
)


def plan(models, seeds):
    """Every cell as (model, cell, seed), those that most claims need first."""
    first = [(model, cells) for model in models for cells in (MAIN, RECOVERY)]
    further = [(STRATEGIES_ON, STRATEGIES)] if STRATEGIES_ON in models else []
    further += [(model, cells) for cells in (BETWEEN, RANKING) for model in models]
    for model, cells in first + further:
        for seed in seeds:
            for cell in cells:
                yield model, cell, seed


# --- a checkpoint with its channels in random order -------------------------------------------------


def expert_tensors(header):
    """The names of each expert's tensors, as [gate, up, down]."""
    kinds = {"w1": 0, "gate_proj": 0, "w3": 1, "up_proj": 1, "w2": 2, "down_proj": 2}
    groups = {}
    for name in header:
        expert, _, kind = name.removesuffix(".weight").rpartition(".")
        if ".experts." in name and kind in kinds:
            groups.setdefault(expert, [None] * 3)[kinds[kind]] = name
    return [groups[expert] for expert in sorted(groups)]


def permute(data, start, entry, order, columns):
    """Reorder the rows or columns of a 16-bit tensor in place."""
    first, last = (start + at for at in entry["data_offsets"])
    raw, (rows, width) = bytes(data[first:last]), entry["shape"]
    take = lambda i, n: raw[i * n : (i + 1) * n]
    if columns:
        lines = (take(r, 2 * width) for r in range(rows))
        data[first:last] = b"".join(b"".join(line[2 * j : 2 * j + 2] for j in order) for line in lines)
    else:
        data[first:last] = b"".join(take(j, 2 * width) for j in order)


def shuffle_channels(model, to, seed):
    """Write an equivalent checkpoint with each expert's channels in an order drawn from the seed."""
    data = bytearray((model / "model.safetensors").read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    draw = random.Random(seed)
    for gate, up, down in expert_tensors(header):
        order = draw.sample(range(header[gate]["shape"][0]), header[gate]["shape"][0])
        for name in (gate, up, down):
            permute(data, start, header[name], order, name == down)
    to.mkdir(parents=True, exist_ok=True)
    for file in (*model.glob("*.json"), model / "LICENSE"):
        (to / file.name).write_bytes(file.read_bytes())
    part = to / "model.part"
    part.write_bytes(data)
    part.rename(to / "model.safetensors")


# --- runs -------------------------------------------------------------------------------------------


class Study:
    def __init__(self, folder, threads):
        self.dir, self.threads = folder, threads

    def report(self, model, cell, seed):
        return self.dir / model / f"{cell.name}-{seed}.json"

    def command(self, model, cell, seed):
        """The command as typed in the root of the tree, without the report."""
        folder, here = MODELS[model], self.dir / model
        of = here / f"checkpoint-{seed}" if cell.shuffled else folder
        test = MADE / model / "test.npy"
        if cell.tool == "fm-bench":
            line = ["fm-bench", "quality", "--model", of, "--eval-tokens", test, "--seq-len", "128", "--precision", "f32",
                    "--seed", seed, "--budgets", "all", here / f"{cell.source}-{seed}.stage"]
            return [str(x) for x in line]
        line = [cell.tool, "--model", of, "--tokens", folder / "calib.npy", *COMMON, "--seed", seed,
                "--eval-tokens", test, *cell.options,
                "-o", here / f"{cell.name}-{seed}.stage"]
        return [str(x) for x in line] + ([str(here / f"{cell.source}-{seed}.stage")] if cell.source else [])

    def run(self, model, cell, seed):
        to = self.report(model, cell, seed)
        if to.exists():
            return
        to.parent.mkdir(parents=True, exist_ok=True)
        shuffled = to.parent / f"checkpoint-{seed}"
        if cell.shuffled and not (shuffled / "model.safetensors").exists():
            shuffle_channels(ROOT / MODELS[model], shuffled, seed)
        tool, *rest = self.command(model, cell, seed)
        tools = Path(os.environ.get("BUILD", "build")) / "bin"
        part = to.with_suffix(".part")
        extra = ("--json", "--force", "--quiet", *(("-T", self.threads) if self.threads else ()))
        print(f"{model} {cell.name} {seed}", flush=True)
        done = subprocess.run([str(tools / tool), *map(str, extra), *rest], capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"study.py: {shlex.join([tool, *rest])}\n{done.stderr.strip()}")
        part.write_text(done.stdout)
        part.rename(to)

    def losses(self, model, name, seed):
        """[(budget, loss)] of a cell, or a control of fm-bench quality, the full model first; None if it was not run."""
        if name in CONTROLS:
            path = self.dir / model / f"controls-{seed}.json"
            rows = json.loads(path.read_text())["rows"] if path.exists() else []
            return [(row[name]["budget"], row[name]["ce"]) for row in rows] or None
        path = self.dir / model / f"{name}-{seed}.json"
        if not path.exists():
            return None
        rows = json.loads(path.read_text())["budgets"]
        return [(row["budget"], (row.get("recovered") or row["quality"])["ce"]) for row in rows if row["quality"]]


def main(arguments):
    options, rest = getopt.getopt(arguments, "d:m:s:T:o:t")
    given = dict(options)
    if rest:
        raise SystemExit(__doc__)
    models = given["-m"].split(",") if "-m" in given else list(MODELS)
    seeds = [int(x) for x in given.get("-s", "0,1,2").split(",")]
    os.chdir(ROOT)
    study = Study(Path(given.get("-d", "build/study")), given.get("-T"))
    cells = list(plan(models, seeds))
    for cell in () if "-t" in given else cells:
        study.run(*cell)
    out = Path(given.get("-o", "tests/measure/study.md"))
    out.write_text(studytable.write(study, models, seeds, cells, STRATEGIES_ON))


if __name__ == "__main__":
    main(sys.argv[1:])
