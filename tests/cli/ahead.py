#!/usr/bin/env python3
"""Add layers for multi-token prediction to a checkpoint, with random bytes, in a separate file.

    ahead.py FROM TO LAYERS COUNT [KEY=VALUE...] [WORD...]

LAYERS are the indices of the added layers, separated by commas.  In config.json, COUNT is the value of
num_nextn_predict_layers, and VALUE, which is JSON, that of KEY.
WORD is fp8: store an expert's matrix in FP8; scaled: and a scale for it, of a wrong shape; unmarked: leave out the tensor that identifies such a layer;
ernie: use the names of ERNIE-4.5; beside: use names that begin with mtp.; index: add a tensor of an indexer; buffer: add an unused tensor that
belongs to no layer.
"""
import json
import math
import os
import random
import shutil
import sys
from pathlib import Path

from tensors import BITS, pack, unpack


def shapes(config, layers, words):
    """name: (dtype, shape)"""
    H, V, out = config["hidden_size"], config["vocab_size"], {}
    if "buffer" in words:
        out["score.weight"] = ("F32", [3, H])
    for x in layers:
        if "ernie" in words:
            out[f"model.mtp_linear_proj.{x}.weight"] = ("BF16", [H, 2 * H])
            out[f"model.mtp_block.{x}.mlp.up_proj.weight"] = ("BF16", [7, H])
            continue
        if "beside" in words:
            out["mtp.fc.weight"] = ("BF16", [H, 2 * H])
            out[f"mtp.layers.{x}.mlp.up_proj.weight"] = ("BF16", [7, H])
            continue
        of = f"model.layers.{x}."
        out[of + "eh_proj.weight"] = ("BF16", [H, 2 * H])
        out[of + "enorm.weight"] = ("BF16", [H])
        out[of + "embed_tokens.weight"] = ("BF16", [V, H])
        out[of + "mlp.experts.0.gate_proj.weight"] = ("F8_E4M3" if "fp8" in words else "BF16", [7, H])
        if "scaled" in words:
            out[of + "mlp.experts.0.gate_proj.weight_scale_inv"] = ("F32", [1, 1])
        if "index" in words:
            out[of + "self_attn.indexer.wk.weight"] = ("BF16", [3, H])
        if "unmarked" in words:
            del out[of + "eh_proj.weight"]
    return out


def main():
    source, to, layers, count, *words = sys.argv[1:]
    os.makedirs(to)
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    where = {}
    for name in sorted(os.listdir(source)):
        if name.startswith("model") and name.endswith(".safetensors"):
            into = f"a-{name}"
            shutil.copy(os.path.join(source, name), os.path.join(to, into))
            where |= dict.fromkeys(unpack(Path(to, into).read_bytes()), into)
        elif name == "tokens.npy":
            shutil.copy(os.path.join(source, name), to)
    rng = random.Random(13)
    added = {name: (dtype, shape, rng.randbytes(math.prod(shape) * BITS[dtype] // 8))
             for name, (dtype, shape) in shapes(config, [int(x) for x in layers.split(",") if x], words).items()}
    if added:
        Path(to, "z-ahead.safetensors").write_bytes(pack(added))
        where |= dict.fromkeys(added, "z-ahead.safetensors")
    for word in words:
        if "=" in word:
            key, value = word.split("=")
            config[key] = json.loads(value)
    config["num_nextn_predict_layers"] = int(count)
    with open(os.path.join(to, "config.json"), "w") as f:
        json.dump(config, f, indent=2)
    with open(os.path.join(to, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {}, "weight_map": where}, f)


main()
