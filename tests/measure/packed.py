#!/usr/bin/env python3
"""Measure the sizes of quantised checkpoints, their bundles, and exports in every layout at half the channels.

usage: BUILD=build tests/measure/packed.py DIR

Models in the formats of golden/make/packed.py (which needs compressed-tensors, nvidia-modelopt and torch)
have two layers of 16 experts with 768 channels, hidden size 1024, blocks of 128 x 128 and groups of 16 or 32;
FP8 blocks are also measured under DeepSeek's names.  `least` is the size divided by the smallest possible size:
for a bundle, that of the checkpoint, the ranking and the masks; for a uniform export, that of the retained
channels and of all tensors outside the experts."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT / "golden" / "make")  # this folder has a random.py
import packed  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

packed.H, packed.I, packed.E, packed.L, packed.V = 1024, 768, 16, 2, 1024
packed.HEADS, packed.HEAD = 8, 64
packed.CT["fp8-block"][1]["block_structure"] = [128, 128]
packed.compare = lambda out, values: None
LAYOUTS = ("padded", "native", "ragged", "layer", "elastic")
TOOLS = ROOT / os.environ.get("BUILD", "build") / "bin"


def run(tool, *arguments):
    subprocess.run([str(TOOLS / tool), "-q", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def size(path):
    return sum(f.stat().st_size for f in path.iterdir()) if path.is_dir() else path.stat().st_size


def deepseek(model):
    """Give FP8 blocks the names and the scales of DeepSeek-V3."""
    tensors = load_file(model / "model.safetensors")
    scales = [k for k in tensors if k.endswith(".weight_scale")]
    tensors |= {k + "_inv": tensors.pop(k).float() for k in scales}
    save_file(tensors, model / "model.safetensors")
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [128, 128]}
    (model / "config.json").write_text(json.dumps(config))


def export(layout, at):
    report = subprocess.run([str(TOOLS / "fm-pack"), "-q", "--json", "-f", "--export", str(at / "out"), "--budget",
                             "0.5", "--layout", layout, "--weights", "keep", str(at / "family.fm")], check=True,
                            capture_output=True)  # fmt: skip
    return json.loads(report.stdout), size(at / "out")


def measure(name, at):
    model, tokens = at / name, at / name / "tokens.npy"
    data = ["-m", model, "-t", tokens, "-f"]
    packed.make("fp8-block" if name == "fp8 (DeepSeek)" else name, model)
    if name == "fp8 (DeepSeek)":
        deepseek(model)
    tokens.rename(at / "tokens.npy")
    data[3] = at / "tokens.npy"
    run("fm-rank", *data, "-o", at / "ranked")
    run("fm-train", *data, "--method", "saliency", "-o", at / "trained", at / "ranked")
    run("fm-pack", "-m", model, "-f", "-o", at / "family.fm", at / "trained")
    report, uniform = export("uniform", at)
    width, tensors = report["width_uniform"], load_file(model / "model.safetensors")
    experts = sum(t.nbytes for k, t in tensors.items() if ".experts." in k and "global" not in k)
    source, bundle = size(model), size(at / "family.fm")
    least = [source + size(at / "trained"), source - experts * (1 - width / packed.I)]
    print(f"{name:15} {source / 1e6:8.2f} {bundle / 1e6:8.2f} {bundle / least[0]:6.3f} {width:6d} "
          f"{uniform / 1e6:8.2f} {uniform / least[1]:6.3f}", end="")  # fmt: skip
    print(*(f" {export(layout, at)[1] / 1e6:8.2f}" for layout in LAYOUTS), sep="", flush=True)


print(f"{'format':15} {'source':>8} {'bundle':>8} {'least':>6} {'width':>6} {'uniform':>8} {'least':>6}", end="")
print(*(f" {layout:>8}" for layout in LAYOUTS), sep="")
for name in [*packed.CT, "nvfp4-modelopt", "fp8 (DeepSeek)"]:
    if name == "fp8-static":  # bundles do not keep its codes
        continue
    measure(name, Path(sys.argv[1]))
