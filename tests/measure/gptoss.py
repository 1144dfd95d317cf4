#!/usr/bin/env python3
"""The pipeline on a checkpoint of gpt-oss-20b's exact shapes, MXFP4 of random codes: rank, pack,
export, verify under a memory limit, with the peak memory and the time of each tool beside what its
dry run says.

usage: BUILD=build tests/measure/gptoss.py [--layers 8] [--memory 8GiB] [--tokens 2048] [--dir DIR]

A layer takes 0.4 GB in the checkpoint, 1.6 GB in the bundle and 1 GB in the export; embedding and
head take 2.3 GB in each.  DIR (build/gpt-oss) is removed at the end unless --keep.  Needs Python
alone."""

import json
import math
import os
import struct

import moonlight

CONFIG = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088,
    "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "attention_bias": True, "sliding_window": 128, "swiglu_limit": 7.0, "hidden_act": "silu",
    "initial_context_length": 4096, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 150000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "original_max_position_embeddings": 4096, "truncate": False},
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}


class Weights(moonlight.Weights):
    """And bytes of codes, any, and of their scales: values of about 1 / 64."""

    def __init__(self, seed):
        super().__init__(seed)
        self.bytes = {"_blocks": self.draw.randbytes(1048573),
                      "_scales": bytes(self.draw.choice((119, 120, 121)) for _ in range(1048573))}

    def write_bytes(self, out, end, count):
        at = self.draw.randrange(1048573)
        while count:
            piece = self.bytes[end][at:at + count]
            out.write(piece)
            count, at = count - len(piece), 0


def layer(l):
    c, p = CONFIG, f"model.layers.{l}."
    H, I, E, heads, size = (c[k] for k in ("hidden_size", "intermediate_size", "num_local_experts",
                                           "num_attention_heads", "head_dim"))
    yield p + "input_layernorm.weight", (H,)
    yield p + "post_attention_layernorm.weight", (H,)
    for x, n in (("q", heads), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
        yield p + f"self_attn.{x}_proj.weight", (n * size, H)
        yield p + f"self_attn.{x}_proj.bias", (n * size,)
    yield p + "self_attn.o_proj.weight", (H, heads * size)
    yield p + "self_attn.o_proj.bias", (H,)
    yield p + "self_attn.sinks", (heads,)
    yield p + "mlp.router.weight", (E, H)
    yield p + "mlp.router.bias", (E,)
    for x, rows, columns in (("gate_up_proj", 2 * I, H), ("down_proj", H, I)):
        yield p + f"mlp.experts.{x}_blocks", (E, rows, columns // 32, 16)
        yield p + f"mlp.experts.{x}_scales", (E, rows, columns // 32)
        yield p + f"mlp.experts.{x}_bias", (E, rows)


def write_shard(path, tensors, weights):
    header, at = {}, 0
    for name, shape in tensors:
        codes = name[-7:] in weights.bytes
        size = (1 if codes else 2) * math.prod(shape)
        header[name] = {"dtype": "U8" if codes else "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            if name[-7:] in weights.bytes:
                weights.write_bytes(out, name[-7:], math.prod(shape))
            elif name.endswith("norm.weight"):
                out.write(struct.pack("<H", moonlight.bf16(1.0)) * math.prod(shape))
            else:
                weights.write(out, math.prod(shape))
    return at


def make(model, layers):
    os.makedirs(model)
    weights, names, total = Weights(11), {}, 0
    V, H = CONFIG["vocab_size"], CONFIG["hidden_size"]
    ends = [("model.embed_tokens.weight", (V, H)), ("model.norm.weight", (H,)), ("lm_head.weight", (V, H))]
    for i, tensors in enumerate([ends] + [list(layer(l)) for l in range(layers)]):
        shard = f"model-{i:05d}-of-{layers:05d}.safetensors"
        total += write_shard(os.path.join(model, shard), tensors, weights)
        names.update((name, shard) for name, _ in tensors)
    with open(os.path.join(model, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": names}, f)
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump(dict(CONFIG, num_hidden_layers=layers), f, indent=2)
    return total


if __name__ == "__main__":
    moonlight.main("gpt-oss", make, CONFIG["vocab_size"], layers=8)
