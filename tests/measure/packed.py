#!/usr/bin/env python3
"""Bytes of quantised checkpoints, of their bundles and of uniform exports at half the channels.

usage: BUILD=build tests/measure/packed.py DIR

For each format of golden/make/packed.py, which needs compressed-tensors, nvidia-modelopt and torch: two
layers of 16 experts of 768 channels, width 1024, blocks of 128 x 128 and groups of 32.  `least` of a
bundle is the checkpoint and the ranking with its masks, of an export the retained channels' share of the
experts and everything else."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "golden" / "make"))
import packed  # noqa: E402

packed.H, packed.I, packed.E, packed.L, packed.V = 1024, 768, 16, 2, 1024
packed.HEADS, packed.HEAD = 8, 64
packed.CT["fp8-block"][1]["block_structure"] = [128, 128]
packed.compare = lambda out, values: None
TOOLS = ROOT / os.environ.get("BUILD", "build") / "bin"


def run(tool, *arguments):
    subprocess.run([str(TOOLS / tool), "-q", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def size(path):
    return sum(f.stat().st_size for f in path.iterdir()) if path.is_dir() else path.stat().st_size


def measure(name, at):
    model, tokens = at / name, at / name / "tokens.npy"
    data = ["-m", model, "-t", tokens, "-f"]
    packed.make(name, model)
    tokens.rename(at / "tokens.npy")
    data[3] = at / "tokens.npy"
    run("fm-rank", *data, "-o", at / "ranked")
    run("fm-train", *data, "--method", "saliency", "-o", at / "trained", at / "ranked")
    run("fm-pack", "-m", model, "-f", "-o", at / "family.fm", at / "trained")
    report = subprocess.run([str(TOOLS / "fm-pack"), "-q", "--json", "-f", "--export", str(at / "out"), "--budget",
                             "0.5", "--layout", "uniform", str(at / "family.fm")], check=True, capture_output=True)  # fmt: skip
    width = json.loads(report.stdout)["width_uniform"]
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", "pt") as f:
        experts = sum(f.get_tensor(k).nbytes for k in f.keys() if ".experts." in k and "global" not in k)
    source, bundle, export = size(model), size(at / "family.fm"), size(at / "out")
    least = [source + size(at / "trained"), source - experts * (1 - width / packed.I)]
    print(f"{name:15} {source / 1e6:8.2f} {bundle / 1e6:8.2f} {bundle / least[0]:6.3f} {width:6d} "
          f"{export / 1e6:8.2f} {export / least[1]:6.3f}")  # fmt: skip


print(f"{'format':15} {'source':>8} {'bundle':>8} {'least':>6} {'width':>6} {'export':>8} {'least':>6}")
for name in [*packed.CT, "nvfp4-modelopt"]:
    measure(name, Path(sys.argv[1]))
