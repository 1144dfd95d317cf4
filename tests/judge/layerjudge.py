#!/usr/bin/env python3
"""Check that transformers still cannot read widths of experts from per_layer_config, which is why exports
of layout layer do not have this key.  Run by `make judge`.

The key overrides attributes of the configuration for single layers (transformers 5.15 and later).  If a
class reads such an attribute from the configuration of the whole model, an exception is raised.  The
stock classes of all our families read the width from there in their constructors, and so do the classes
of our modelling file, which inherit from them.  If a check fails, a class reads the width of each layer,
and exports should have the key.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

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
        error = exception_of(lambda: AutoModel.from_config(config))
    judge.say(error == ERROR, f"{name}: a width for one layer raises {error}")


def judge_ours(judge, folder):
    """An export of layout layer loads, but not if the key is added."""
    tokens = ["--tokens", MODEL / "calib.npy", "--seq-len", "128", "--precision", "f32", "--quiet"]
    masks = ["--method", "saliency", "--granularity", "layer", "--budget-step", "0.1", "--until", "0.4"]
    tool("fm-rank", "--model", MODEL, *tokens, "-o", folder / "rank")
    tool("fm-train", "--model", MODEL, *tokens, *masks, "-o", folder / "train", folder / "rank")
    tool("fm-pack", "--model", MODEL, "--quiet", "-o", folder / "family", folder / "train")
    out = folder / "out"
    tool("fm-pack", "--quiet", "--export", out, "--layout", "layer", "--budget", "0.4", folder / "family")
    load = lambda: AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    error = exception_of(load)
    judge.say(error == "none", f"layout layer unchanged: exception {error}")
    config = json.loads((out / "config.json").read_text())
    widths = {str(l): {"intermediate_size": row[0]} for l, row in enumerate(config["fm_widths"])}
    (out / "config.json").write_text(json.dumps(config | {"per_layer_config": widths}))
    error = exception_of(load)
    judge.say(error == ERROR, f"layout layer with its widths as per_layer_config: exception {error}")


def main():
    judge = Judge()
    with tempfile.TemporaryDirectory() as top:
        for name in ROWS:
            judge_stock(judge, name, Path(top))
    with tempfile.TemporaryDirectory() as top:
        judge_ours(judge, Path(top))
    print(f"{judge.made} checks, {judge.failed} failed")
    return 1 if judge.failed else 0


if __name__ == "__main__":
    sys.exit(main())
