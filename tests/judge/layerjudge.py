#!/usr/bin/env python3
"""Why layout layer has no per_layer_config: transformers' classes do not read widths of experts from it.
Part of `make judge`.

The key gives attributes of single layers other values (transformers 5.15 and later).  A class that reads
the attribute from the configuration of the whole model then gets an exception, and so does every stock
class of our families while it is made, and our modelling file's, which inherit from them.  A line that
fails says that a class now reads the layer's own width: then exports should have the key.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from familyjudge import HERE, ROWS
from judge import MODEL, Judge, tool

ERROR = "AmbiguousGlobalPerLayerAttributeError"


def width_key(config):
    return "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"


def exception_of(make):
    try:
        make()
    except Exception as error:
        return type(error).__name__
    return "none"


def judge_stock(judge, name, folder):
    whole = json.loads((HERE / name / "config.json").read_text())
    whole.pop("quantization_config", None)
    config = whole.get("text_config", whole)
    key, last = width_key(config), config["num_hidden_layers"] - 1
    config["per_layer_config"] = {str(last): {key: config[key] + 8}}
    (folder / "config.json").write_text(json.dumps(whole))
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        error = exception_of(lambda: AutoModelForCausalLM.from_config(config))
    judge.say(error == ERROR, f"{name}: a width of one layer is {error}")


def judge_ours(judge, folder):
    """An export of layout layer loads, and with the key it does not."""
    tokens = ["--tokens", MODEL / "calib.npy", "--seq-len", "128", "--precision", "f32", "--quiet"]
    masks = ["--method", "saliency", "--granularity", "layer", "--budget-step", "0.1", "--until", "0.4"]
    tool("fm-rank", "--model", MODEL, *tokens, "-o", folder / "rank")
    tool("fm-train", "--model", MODEL, *tokens, *masks, "-o", folder / "train", folder / "rank")
    tool("fm-pack", "--model", MODEL, "--quiet", "-o", folder / "family", folder / "train")
    out = folder / "out"
    tool("fm-pack", "--quiet", "--export", out, "--layout", "layer", "--budget", "0.4", folder / "family")
    load = lambda: AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    error = exception_of(load)
    judge.say(error == "none", f"layout layer as it is: exception {error}")
    config = json.loads((out / "config.json").read_text())
    widths = {str(l): {"intermediate_size": row[0]} for l, row in enumerate(config["fm_widths"])}
    (out / "config.json").write_text(json.dumps(config | {"per_layer_config": widths}))
    error = exception_of(load)
    judge.say(error == ERROR, f"layout layer with its widths as per_layer_config: {error}")


def main():
    judge = Judge()
    with tempfile.TemporaryDirectory() as top:
        for name in ROWS:
            judge_stock(judge, name, Path(top))
    with tempfile.TemporaryDirectory() as top:
        judge_ours(judge, Path(top))
    print(f"{judge.made} judgements, {judge.failed} failed")
    return 1 if judge.failed else 0


if __name__ == "__main__":
    sys.exit(main())
