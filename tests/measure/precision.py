#!/usr/bin/env python3
"""Measure what --precision bf16 costs: the rank correlation with f32 per expert, the share of channels on
the other side of the cut at budgets of 20, 40 and 60 %, and the held-out losses, in float32, of
families made with each precision.

    precision.py [-s SEED,SEED,...] [-n TOKENS] [-l LENGTH] [-t STEPS] [-d DIR] MODEL CALIBRATION [HELD-OUT]

Run make first, on a processor with bfloat16 instructions; needs numpy.  The seed determines the order of the
calibration data, of which TOKENS (-n) are used, and the noise of training.  With a HELD-OUT file, families
are made by saliency and, if STEPS is not 0 (the default), by learning in that many steps.  Existing files in
DIR (build/precision) are not made again.
"""

import getopt
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CUTS = (0.2, 0.4, 0.6)
PRECISIONS = ("f32", "bf16")


def run(tool, *options):
    done = subprocess.run([str(Path(os.environ.get("FM_BIN", ROOT / "build/bin")) / tool), *map(str, options)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"precision.py: {tool} failed: {done.stderr.strip()}")
    return done.stdout


def scores_of(stream):
    with tarfile.open(stream) as tar:
        raw = tar.extractfile("ranking.safetensors").read()
    size = int.from_bytes(raw[:8], "little")
    entries = {name: e for name, e in json.loads(raw[8 : 8 + size]).items() if name.endswith(".scores")}
    layers = []
    for name in sorted(entries, key=lambda name: int(name.split(".")[1])):
        first, last = (8 + size + at for at in entries[name]["data_offsets"])
        layers.append(np.frombuffer(raw[first:last], "<f8").reshape(entries[name]["shape"]))
    return np.stack(layers)


def places(x):
    """The rank of every channel in its expert, the best first; of equal ones, the lower channel first."""
    order = np.argsort(-x, axis=-1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(x.shape[-1])[None, None, :], axis=-1)
    return place


def compare(a, b):
    """The rank correlation (minimum and mean over experts), and the share of channels that change sides at
    each cut."""
    p, q = places(a).astype(float), places(b).astype(float)
    n = p.shape[-1]
    rho = 1 - 6 * ((p - q) ** 2).sum(-1) / (n * (n * n - 1))
    kept = [round((1 - cut) * n) for cut in CUTS]
    return rho.min(), rho.mean(), [float(((p < k) != (q < k)).mean()) for k in kept]


class Study:
    def __init__(self, model, tokens, held, given, folder):
        self.model, self.tokens, self.held, self.dir = model, tokens, held, folder
        self.steps = int(given.get("-t", "0"))
        self.length = ("--seq-len", given.get("-l", "128"))
        self.part = ("--max-tokens", given["-n"]) if "-n" in given else ()

    def stage(self, name, tool, *options):
        to = self.dir / name
        if not to.exists():
            given = ("--model", self.model, "--tokens", self.tokens, *self.length, *self.part, "--shuffle")
            run(tool, *given, "--quiet", "-o", to, *options)
        return to

    def rank(self, seed, precision):
        return self.stage(f"rank-{precision}-{seed}", "fm-rank", "--seed", seed, "--precision", precision,
                          "--eval-tokens", self.held)

    def losses(self, name, seed, precision, rank, *method):
        """Losses in float32 at the masks nearest to the cuts."""
        stream = self.stage(f"{name}-{precision}-{seed}", "fm-train", "--seed", seed, "--precision", precision,
                            "--eval-tokens", self.held, *method, rank)
        family = self.dir / f"{stream.name}.fm"
        if not family.exists():
            run("fm-pack", "--quiet", "--model", self.model, "-o", family, stream)
        out = run("fm-bench", "quality", "--precision", "f32", "--eval-tokens", self.held, *self.length, "--json", "--budgets",
                  ",".join(map(str, CUTS)), family)
        return [(row["family"]["budget"], row["family"]["ce"]) for row in json.loads(out)["rows"]]


def families(study, seed):
    methods = {"saliency": ("--method", "saliency", "--budget-step", "0.2")}
    if study.steps:
        methods["learned"] = ("--method", "learned", "--steps", study.steps, "--budget-step", "0.2", "--until", "0.6")
    for name, method in methods.items():
        for precision in PRECISIONS:
            rows = study.losses(name, seed, precision, study.rank(seed, precision), *method)
            print(f"seed {seed}  {name:9} {precision:5}", "  ".join(f"{b:.3f}: {ce:.4f}" for b, ce in rows), flush=True)


def main():
    options, paths = getopt.getopt(sys.argv[1:], "s:n:l:t:d:")
    given = dict(options)
    if len(paths) not in (2, 3):
        raise SystemExit(__doc__)
    folder = Path(given.get("-d", ROOT / "build/precision"))
    folder.mkdir(parents=True, exist_ok=True)
    held = paths[2] if len(paths) == 3 else None
    study = Study(paths[0], paths[1], held, given, folder)
    for seed in given.get("-s", "0,1,2").split(","):
        a, b = (scores_of(study.rank(seed, p)) for p in PRECISIONS)
        least, mean, sides = compare(a, b)
        print(f"seed {seed}  rank correlation per expert: minimum {least:.5f}, mean {mean:.5f}; other side at",
              ", ".join(f"{cut:.0%}: {side:.2%}" for cut, side in zip(CUTS, sides)), flush=True)
        if held:
            families(study, seed)


if __name__ == "__main__":
    main()
