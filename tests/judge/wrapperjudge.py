#!/usr/bin/env python3
"""Check that exports with --keep-extra are complete multimodal checkpoints.  Run by `make judge`.

transformers saves a small Qwen3.5 and a small MiniMax-M3 with vision parts, and a family is made from each.
The multimodal class loads the padded export with all parts: no tensor may be missing or unused, the
vision weights must be the original's, and the logits for text must be those of an export without the
vision part.  Without that part, MiniMax-M3's export has other tensor names and needs our modelling file.
"""
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from judge import tool

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
EAGER = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}


# Keys that the multimodal configurations have and the golden ones do not.
QWEN = {"in_channels": 3, "spatial_merge_size": 2, "temporal_patch_size": 2}
M3 = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "image_token_index": 90,
    "model_type": "minimax_m3_vl",
    "projector_hidden_size": 40,
    "video_token_index": 91,
    "vision_config": {
        "hidden_size": 24, "image_size": 28, "intermediate_size": 20, "num_attention_heads": 2,
        "num_hidden_layers": 1, "patch_size": 14,
    },
}  # fmt: skip
# Model -> the layout of its export without vision, and a substring of the names of its vision tensors.
ROWS = {"odd-q35": ("padded", "visual"), "odd-m3": ("ragged", "vision_tower")}


def config_of(name):
    config = json.loads((GOLDEN / name / "config.json").read_text())
    if name == "odd-m3":
        return M3 | {"text_config": config}
    config["vision_config"].update(QWEN)
    return config


def make(name, folder):
    (folder / "config").mkdir()
    (folder / "config/config.json").write_text(json.dumps(config_of(name)))
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder / "config"))
    for part, p in model.named_parameters():
        if "experts" in part or "embed" in part:
            torch.nn.init.normal_(p, std=0.2)
    model.to(torch.bfloat16).save_pretrained(folder / "model")


def make_exports(name, folder):
    tokens = GOLDEN / name / "tokens.npy"
    stage = ["--model", folder / "model", "--tokens", tokens, "--precision", "f32", "--quiet"]
    tool("fm-rank", *stage, "-o", folder / "rank")
    masks = ["--method", "saliency", "--budget-step", "0.2", "--until", "0.4"]
    tool("fm-train", *stage, *masks, "-o", folder / "masks", folder / "rank")
    tool("fm-pack", "--model", folder / "model", "--quiet", "-o", folder / "family", folder / "masks")
    for out, options in (("whole", ["padded", "--keep-extra"]), ("text", [ROWS[name][0]])):
        tool("fm-pack", "--quiet", "--export", folder / out, "--budget", "0.4", "--layout", *options,
             folder / "family")  # fmt: skip


def judge(name):
    ids = torch.tensor(np.load(GOLDEN / name / "tokens.npy").astype(np.int64))[:2]
    layout, mark = ROWS[name]
    with tempfile.TemporaryDirectory() as top, torch.no_grad():
        folder = Path(top)
        make(name, folder)
        make_exports(name, folder)
        load = AutoModelForImageTextToText.from_pretrained
        whole, info = load(folder / "whole", output_loading_info=True, **EAGER)
        loose = [n for what in ("missing_keys", "unexpected_keys", "mismatched_keys") for n in info[what]]
        original = load(folder / "model", **EAGER)
        text = AutoModelForCausalLM.from_pretrained(folder / "text", trust_remote_code=layout != "padded", **EAGER)
        have = dict(whole.named_parameters())
        vision = [torch.equal(p, have[n]) for n, p in original.named_parameters() if mark in n]
        logits = whole(input_ids=ids).logits
        far = ((logits - text(input_ids=ids).logits).abs().max() / logits.abs().max()).item()
        cut = (logits - original(input_ids=ids).logits).abs().max().item()
    good = not loose and vision and all(vision) and far <= (0 if layout == "padded" else 1e-5) and cut > 0
    print(f"{'ok  ' if good else 'FAIL'} {type(whole).__name__} loads an export with all parts: missing or unused tensors {loose}, "
          f"{sum(vision)} of {len(vision)} vision tensors, text logits differ by {far:.1e}")
    return not good


def main():
    return max([judge(name) for name in ROWS])


if __name__ == "__main__":
    sys.exit(main())
