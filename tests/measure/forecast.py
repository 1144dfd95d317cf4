#!/usr/bin/env python3
"""What the tools' dry runs say of Mixtral-8x7B and Qwen3-30B-A3B: memory, disk and time of every
step, on this machine and on ones with more cores.  Dry runs read headers alone, so the checkpoints
are config.json and safetensors headers of the real shapes over files of holes.

usage: BUILD=build tests/measure/forecast.py [--tokens 262144] [--seq-len 2048] [--memory 16GB]
           [--precision f32] [--dir DIR]

Needs Python alone, and a file system with sparse files."""

import argparse
import json
import math
import os
import shutil
import struct
import subprocess

MODELS = {
    "Mixtral-8x7B": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32000,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
}


def layer(c, l):
    p, H, heads = f"model.layers.{l}.", c["hidden_size"], c["num_attention_heads"]
    wide = c.get("head_dim", H // heads)
    yield p + "input_layernorm.weight", (H,)
    yield p + "post_attention_layernorm.weight", (H,)
    for name, rows in ("q", heads), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"]):
        yield p + f"self_attn.{name}_proj.weight", (rows * wide, H)
    yield p + "self_attn.o_proj.weight", (H, heads * wide)
    if c["model_type"] == "mixtral":
        gate, expert, names, I = "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2"), c["intermediate_size"]
        E = c["num_local_experts"]
    else:
        gate, expert, I = "mlp.gate", "mlp.experts", c["moe_intermediate_size"]
        names, E = ("gate_proj", "up_proj", "down_proj"), c["num_experts"]
        yield p + "self_attn.q_norm.weight", (wide,)
        yield p + "self_attn.k_norm.weight", (wide,)
    yield p + gate + ".weight", (E, H)
    for e in range(E):
        for name, shape in zip(names, ((I, H), (I, H), (H, I))):
            yield f"{p}{expert}.{e}.{name}.weight", shape


def make(c, path):
    os.makedirs(path)
    with open(f"{path}/config.json", "w") as out:
        json.dump(c, out, indent=2)
    V, H, L = c["vocab_size"], c["hidden_size"], c["num_hidden_layers"]
    shards = [[("model.embed_tokens.weight", (V, H)), ("model.norm.weight", (H,)), ("lm_head.weight", (V, H))]]
    shards += [list(layer(c, l)) for l in range(L)]
    index, total = {}, 0
    for i, tensors in enumerate(shards):
        name, header, at = f"model-{i + 1:05}-of-{len(shards):05}.safetensors", {}, 0
        for tensor, shape in tensors:
            size = 2 * math.prod(shape)
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            index[tensor], at = name, at + size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(f"{path}/{name}", "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + at)
        total += at
    with open(f"{path}/model.safetensors.index.json", "w") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": index}, out)
    return total


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--tokens", type=int, default=262144)
    a.add_argument("--seq-len", type=int, default=2048)
    a.add_argument("--memory", default="16GB")
    a.add_argument("--precision", default="f32")
    a.add_argument("--dir")
    o = a.parse_args()
    build = os.environ.get("BUILD", "build")
    top = o.dir or f"{build}/forecast"
    shutil.rmtree(top, ignore_errors=True)
    os.makedirs(top)
    tokens = f"{top}/tokens.bin"
    with open(tokens, "wb") as out:
        out.truncate(2 * o.tokens)
    for name, config in MODELS.items():
        path = f"{top}/{name}"
        print(f"\n{name}: {make(config, path) / 1e9:.1f} GB in bfloat16")
        for tool, more in ("fm-rank", []), ("fm-train", []), ("fm-train", ["--method", "saliency"]), ("fm-recover", []):
            command = [f"{build}/bin/{tool}", "--dry-run", "--model", path, "--tokens", tokens, "--token-dtype", "u16",
                       "--seq-len", str(o.seq_len), "--memory", o.memory, "--precision", o.precision, *more]
            done = subprocess.run(command, capture_output=True, text=True)
            print("$", " ".join([tool, *command[6:]]).replace(tokens, "calib.bin"))
            print(done.stdout + done.stderr, end="")
    shutil.rmtree(top)


main()
