#!/usr/bin/env python3
"""Measure time and bytes of exports in each format, compared with cp of the same export in BF16.

usage: BUILD=build tests/measure/quantise.py DIR [LAYERS]

The first layers of Qwen3-30B-A3B are made with random BF16 weights (fullsize.py) and a small vocabulary; four layers
are 5 GB.  The model is ranked on a few tokens, packed and exported at budget 0.25.  `ratio` is the time of cp
divided by that of the export, each the shortest of three, with files in the page cache and synced to disk."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import fullsize

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / os.environ.get("BUILD", "build") / "bin"
FORMATS = ["bf16", "fp8-block", "fp8", "w4a16", "w4a16:32", "nvfp4", "nvfp4:ct", "mxfp4", "mxfp8"]


def seconds(command):
    best = 1e9
    for _ in range(3):
        os.sync()
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        os.sync()
        best = min(best, time.monotonic() - began)
    return best


def run(tool, *arguments):
    subprocess.run([str(TOOLS / tool), "-q", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def size(path):
    return sum(f.stat().st_size for f in path.iterdir()) if path.is_dir() else path.stat().st_size


at, layers = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
model = at / "model"
if not model.exists():
    config = fullsize.cut({**fullsize.SHAPES["qwen3-30b"], "vocab_size": 1024}, layers)
    fullsize.make(model, config, False)
    fullsize.make_tokens(at / "tokens.npy", 512, 1024)
if not (at / "family.fm").exists():
    data = ["-m", model, "-t", at / "tokens.npy", "--seq-len", 64, "-f"]
    run("fm-rank", *data, "-o", at / "ranked")
    run("fm-train", *data, "--method", "saliency", "--budget-step", "0.05", "-o", at / "trained", at / "ranked")
    run("fm-pack", "-m", model, "-f", "-o", at / "family.fm", at / "trained")
print(f"source {size(model) / 1e9:.2f} GB, bundle {size(at / 'family.fm') / 1e9:.2f} GB", flush=True)
export = [str(TOOLS / "fm-pack"), "-q", "-f", "-b", "0.25", "--layout", "uniform", "-x"]
cp = None
print(f"{'format':10} {'GB':>6} {'s':>7} {'cp s':>7} {'ratio':>6}")
for name in FORMATS:
    out = at / "out"
    took = seconds([*export, str(out), "--weights", name, str(at / "family.fm")])
    if name == "bf16":
        cp = seconds(["cp", "-rT", str(out), str(at / "copy")])
        shutil.rmtree(at / "copy")
    print(f"{name:10} {size(out) / 1e9:6.2f} {took:7.2f} {cp:7.2f} {cp / took:6.2f}", flush=True)
    shutil.rmtree(out)
