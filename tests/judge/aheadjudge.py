#!/usr/bin/env python3
"""Check exported layers for multi-token prediction (MTP) in transformers, which drafts tokens with them.

An MTP layer is added to a checkpoint: a slightly changed copy of its last layer, and the tensors that
combine a hidden state with the next token's embedding.  A family is made and exported.  With --keep-extra,
transformers must find every tensor of the layer, in layouts padded and ragged with the source's values and in
uniform with the width of config.json, and generate the same tokens with and without it.  Without --keep-extra,
config.json must declare no such layer, and the generated tokens must be the same.  Run by `make judge`; prints one line per check, and exits with 1 if one fails.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from judge import Judge, stock_model, tool
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3ForCausalLM, Glm4MoeForCausalLM
from transformers.modeling_layers import MtpModel

HERE = Path(__file__).resolve().parents[2] / "golden"
ROWS = {"odd-glm4": Glm4MoeForCausalLM, "odd-dsv3": DeepseekV3ForCausalLM}
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}


def add_layer(source, to):
    """Write `source` with one more layer to the new directory `to`; return the number of that layer."""
    to.mkdir()
    config = json.loads((source / "config.json").read_text())
    layer, hidden, have = config["num_hidden_layers"], config["hidden_size"], {}
    for path in sorted(source.glob("model*.safetensors")):
        have |= load_file(path)
    torch.manual_seed(5)
    dtype, last, name = have["model.norm.weight"].dtype, f"model.layers.{layer - 1}.", f"model.layers.{layer}."
    for key in [key for key in have if key.startswith(last)]:
        have[key.replace(last, name)] = have[key] + 0.02 * torch.randn(have[key].shape).to(have[key].dtype)
    have[name + "eh_proj.weight"] = (0.1 * torch.randn(hidden, 2 * hidden)).to(dtype)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        have[name + norm + ".weight"] = (1 + 0.1 * torch.randn(hidden)).to(dtype)
    have[name + "shared_head.head.weight"] = have["lm_head.weight"].clone()
    have[name + "embed_tokens.weight"] = have["model.embed_tokens.weight"].clone()
    save_file(have, to / "model.safetensors", metadata={"format": "pt"})
    (to / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}, indent=2))
    shutil.copy(source / "tokens.npy", to)
    return layer


def make_family(model, folder):
    common = ("--model", model, "--tokens", model / "tokens.npy", "--precision", "f32", "-q")
    tool("fm-rank", *common, "--keep-extra", "-o", folder / "ranked")
    tool("fm-train", *common, "--method", "saliency", "--budget-step", "0.2", "--until", "0.4",
         "-o", folder / "trained", folder / "ranked")
    tool("fm-pack", "-q", "--model", model, "-o", folder / "family.fm", folder / "trained")
    return folder / "family.fm"


def generate(model, ids, **more):
    return model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None, **more)


def weights_ahead(model):
    """Return the MTP layer's tensors as transformers loads them; raise an exception if one is missing."""
    return {k: v.clone() for k, v in MtpModel.from_pretrained(model).state_dict().items()}


def judge_family(judge, source, folder):
    model = folder / "model"
    layer = add_layer(source, model)
    family = make_family(model, folder)
    ids = torch.from_numpy(np.load(model / "tokens.npy")[:1, :8].astype(np.int64))
    # By default, transformers ignores an MTP layer only at its number in the published models.
    ROWS[source.name]._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layer}\..*"]
    full = stock_model(judge, model, **EAGER)
    want = weights_ahead(full)
    for layout, options in (("padded", {}), ("ragged", {"trust_remote_code": True}), ("uniform", {})):
        export = ("fm-pack", "-q", "--layout", layout, "--budget", "0.2", "--export")
        kept_at, left_at = folder / f"{layout}-kept", folder / f"{layout}-left"
        tool(*export, kept_at, "--keep-extra", family)
        tool(*export, left_at, family)
        kept, left = (stock_model(judge, at, **EAGER, **options) for at in (kept_at, left_at))
        have = weights_ahead(kept)
        if layout == "uniform":
            judge.say(have.keys() == want.keys(), f"{layout}: {len(want)} tensors of layer {layer}")
        else:
            judge.say(have.keys() == want.keys() and all(torch.equal(have[k], want[k]) for k in want),
                      f"{layout}: {len(want)} tensors of layer {layer} have the values of the source")
        judge.say(kept.config.num_nextn_predict_layers == 1, "--keep-extra: config.json declares one layer")
        judge.say(left.config.num_nextn_predict_layers == 0, "without it: config.json declares none")
        alone = generate(kept, ids)
        judge.say(torch.equal(alone, generate(kept, ids, use_mtp=True)), "drafting with the layer changes no token")
        judge.say(torch.equal(alone, generate(left, ids)), "the export without the layer generates the same tokens")


def main(names):
    torch.set_num_threads(1)
    judge = Judge()
    for name in names:
        print(f"{name}, multi-token prediction")
        with tempfile.TemporaryDirectory(prefix="fm-judge-") as folder, judge.attempt(name):
            judge_family(judge, HERE / name, Path(folder))
    print(f"{judge.made} checks, {judge.failed} failed")
    return judge.failed != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ROWS))
