#!/usr/bin/env python3
"""Is a multimodal checkpoint whole again with --keep-extra?  Part of `make judge`.

A small Qwen3.5 with a vision part, as transformers saves it, becomes a family; its padded export
with all parts is loaded by the multimodal class: nothing missing or left, the vision part's weights
those of the original, the logits of text those of the text class's export.
"""
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from judge import tool

MODEL = Path(__file__).resolve().parents[2] / "golden/odd-q35"
EAGER = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}


def make(folder):
    config = json.loads((MODEL / "config.json").read_text())
    config["vision_config"].update(in_channels=3, spatial_merge_size=2, temporal_patch_size=2)
    (folder / "config").mkdir()
    (folder / "config/config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder / "config"))
    for name, p in model.named_parameters():
        if "experts" in name or "embed" in name:
            torch.nn.init.normal_(p, std=0.2)
    model.to(torch.bfloat16).save_pretrained(folder / "model")


def make_exports(folder):
    stage = ["--model", folder / "model", "--tokens", MODEL / "tokens.npy", "--precision", "f32", "--quiet"]
    tool("fm-rank", *stage, "-o", folder / "rank")
    masks = ["--method", "saliency", "--budget-step", "0.2", "--until", "0.4"]
    tool("fm-train", *stage, *masks, "-o", folder / "masks", folder / "rank")
    tool("fm-pack", "--model", folder / "model", "--quiet", "-o", folder / "family", folder / "masks")
    for name, options in (("whole", ["--keep-extra"]), ("text", [])):
        tool("fm-pack", "--quiet", "--export", folder / name, "--budget", "0.4", "--layout", "padded",
             *options, folder / "family")  # fmt: skip


def main():
    ids = torch.tensor(np.load(MODEL / "tokens.npy").astype(np.int64))[:2]
    with tempfile.TemporaryDirectory() as top, torch.no_grad():
        folder = Path(top)
        make(folder)
        make_exports(folder)
        load = AutoModelForImageTextToText.from_pretrained
        whole, info = load(folder / "whole", output_loading_info=True, **EAGER)
        loose = [name for what in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in info[what]]
        original = load(folder / "model", **EAGER)
        text = AutoModelForCausalLM.from_pretrained(folder / "text", **EAGER)
        have = dict(whole.named_parameters())
        vision = [torch.equal(p, have[n]) for n, p in original.named_parameters() if "visual" in n]
        far = (whole(input_ids=ids).logits - text(input_ids=ids).logits).abs().max().item()
        cut = (whole(input_ids=ids).logits - original(input_ids=ids).logits).abs().max().item()
    good = not loose and vision and all(vision) and far == 0 and cut > 0
    print(f"{'ok  ' if good else 'FAIL'} {type(whole).__name__} loads an export with all parts: loose {loose}, "
          f"{sum(vision)} of {len(vision)} vision tensors, text logits differ by {far}")
    return not good


if __name__ == "__main__":
    sys.exit(main())
