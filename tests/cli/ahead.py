#!/usr/bin/env python3
"""Add layers for multi-token prediction to a checkpoint, with random bytes, in a separate file.

    ahead.py FROM TO LAYERS COUNT [KEY=VALUE...] [WORD...]

LAYERS are the indices of the added layers, separated by commas.  In config.json, COUNT is the value of
num_nextn_predict_layers, and VALUE, which is JSON, that of KEY.
WORD is fp8: store an expert's matrix in FP8; unmarked: leave out the tensor that identifies such a layer;
ernie: use the names of ERNIE-4.5; index: add a tensor of an indexer; buffer: add an unused tensor that
belongs to no layer.
"""
import json
import os
import random
import shutil
import struct
import sys

SIZES = {"BF16": 2, "F8_E4M3": 1, "F32": 4}


def tensors(config, layers, words):
    """name: (dtype, shape)"""
    H, V, out = config["hidden_size"], config["vocab_size"], {}
    if "buffer" in words:
        out["score.weight"] = ("F32", [3, H])
    for x in layers:
        if "ernie" in words:
            out[f"model.mtp_linear_proj.{x}.weight"] = ("BF16", [H, 2 * H])
            out[f"model.mtp_block.{x}.mlp.up_proj.weight"] = ("BF16", [7, H])
            continue
        of = f"model.layers.{x}."
        out[of + "eh_proj.weight"] = ("BF16", [H, 2 * H])
        out[of + "enorm.weight"] = ("BF16", [H])
        out[of + "embed_tokens.weight"] = ("BF16", [V, H])
        out[of + "mlp.experts.0.gate_proj.weight"] = ("F8_E4M3" if "fp8" in words else "BF16", [7, H])
        if "index" in words:
            out[of + "self_attn.indexer.wk.weight"] = ("BF16", [3, H])
        if "unmarked" in words:
            del out[of + "eh_proj.weight"]
    return out


def names(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        return [name for name in json.loads(f.read(size)) if name != "__metadata__"]


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
            where |= {t: into for t in names(os.path.join(to, into))}
        elif name == "tokens.npy":
            shutil.copy(os.path.join(source, name), to)
    header, data, rng = {}, b"", random.Random(13)
    added = tensors(config, [int(x) for x in layers.split(",") if x], words)
    for name, (dtype, shape) in added.items():
        size = SIZES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += rng.randbytes(size)
        where[name] = "z-ahead.safetensors"
    if added:
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(to, "z-ahead.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + data)
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
