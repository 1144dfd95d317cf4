#!/usr/bin/env python3
"""Make and decode MXFP4 checkpoints by the format's definition, in plain Python.

    mxfp4.py make MODEL OUT           make a gpt-oss checkpoint in MXFP4 from a fixed seed, with MODEL's
                                      config except 64 channels and a hidden size of 64
    mxfp4.py plain MODEL OUT          decode the values to BF16, fused and transposed as in transformers
    mxfp4.py spoil MODEL OUT CASE     a copy with one fault
    mxfp4.py cases                    list the faults

value = code * 2^(scale - 127); the low half of a byte comes first.
"""
import json
import random
import struct
import sys
from pathlib import Path

from fp8 import pack, put, read, to_bf16, write

CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
H = I = 64


def words(values):
    return struct.pack(f"<{len(values)}H", *map(to_bf16, values))


def normals(rng, shape, std, mean=0.0):
    count = 1
    for n in shape:
        count *= n
    return ("BF16", list(shape), words([rng.gauss(mean, std) for _ in range(count)]))


def blocks(rng, E, rows):
    """Random codes and scales of (E, rows, H) values: all codes, and four different scales."""
    count = E * rows * H // 32
    scales = bytes(rng.choice((121, 122, 123, 124)) for _ in range(count))
    return ("U8", [E, rows, H // 32, 16], rng.randbytes(16 * count)), ("U8", [E, rows, H // 32], scales)


def make(model, out):
    rng, c = random.Random(4), json.loads((Path(model) / "config.json").read_text())
    E, V, L, Q, G, C = (c[k] for k in ("num_local_experts", "vocab_size", "num_hidden_layers",
                                       "num_attention_heads", "num_key_value_heads", "head_dim"))
    t = {"model.embed_tokens.weight": normals(rng, (V, H), 0.4), "lm_head.weight": normals(rng, (V, H), 0.3),
         "model.norm.weight": normals(rng, (H,), 0.3, 1)}
    for l in range(L):
        p = f"model.layers.{l}."
        for norm in ("input", "post_attention"):
            t[p + norm + "_layernorm.weight"] = normals(rng, (H,), 0.3, 1)
        for x, n in (("q", Q * C), ("k", G * C), ("v", G * C)):
            t[p + f"self_attn.{x}_proj.weight"] = normals(rng, (n, H), 0.2)
            t[p + f"self_attn.{x}_proj.bias"] = normals(rng, (n,), 0.4)
        t[p + "self_attn.o_proj.weight"] = normals(rng, (H, Q * C), 0.1)
        t[p + "self_attn.o_proj.bias"] = normals(rng, (H,), 0.3)
        t[p + "self_attn.sinks"] = normals(rng, (Q,), 1)
        t[p + "mlp.router.weight"] = normals(rng, (E, H), 0.3)
        t[p + "mlp.router.bias"] = normals(rng, (E,), 0.3)
        x = p + "mlp.experts."
        t[x + "gate_up_proj_blocks"], t[x + "gate_up_proj_scales"] = blocks(rng, E, 2 * I)
        t[x + "down_proj_blocks"], t[x + "down_proj_scales"] = blocks(rng, E, H)
        t[x + "gate_up_proj_bias"] = normals(rng, (E, 2 * I), 0.5)
        t[x + "down_proj_bias"] = normals(rng, (E, H), 0.2)

    def edit(config):
        config |= {"hidden_size": H, "intermediate_size": I}
        config["quantization_config"] = {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                       "model.embed_tokens", "lm_head"],
            "quant_method": "mxfp4",
        }  # fmt: skip

    write(model, out, t, edit)


def decoded(codes, scales):
    """Decode (E, rows, columns) values to bfloat16 words, transposed to (E, columns, rows)."""
    (_, (E, rows, across, _), data), width = codes, 32 * codes[1][2]
    out = []
    for b, byte in enumerate(data):
        scale = 2.0 ** (scales[2][b // 16] - 127)
        for code in (byte & 15, byte >> 4):
            out.append(to_bf16(CODES[code & 7] * scale * (-1 if code & 8 else 1)))
    turned = [out[(e * rows + r) * width + h] for e in range(E) for h in range(width) for r in range(rows)]
    return ("BF16", [E, width, rows], struct.pack(f"<{len(turned)}H", *turned))


def plain(model, out):
    tensors = read(model)
    for name in [n for n in tensors if n.endswith("_blocks")]:
        base = name.removesuffix("_blocks")
        tensors[base] = decoded(tensors.pop(name), tensors.pop(base + "_scales"))
    write(model, out, tensors, lambda config: config.pop("quantization_config"))


# --- faults -----------------------------------------------------------------------------------------

DOWN = "model.layers.1.mlp.experts.down_proj"
GATE_UP = "model.layers.2.mlp.experts.gate_up_proj"


def shaped(name, shape):
    def edit(tensors, config):
        dtype, _, data = tensors[name]
        tensors[name] = (dtype, shape, data)

    return edit


def shorter(name, parts):
    """The tensor without its last expert."""

    def edit(tensors, config):
        dtype, shape, data = tensors[name]
        tensors[name] = (dtype, [shape[0] - 1, *shape[1:]], data[: len(data) // shape[0] * (shape[0] - 1)])

    return edit


def renamed(old, new):
    def edit(tensors, config):
        tensors[new] = tensors.pop(old)

    return edit


def copied(old, new):
    def edit(tensors, config):
        tensors[new] = tensors[old]

    return edit


def typed(name, dtype):
    def edit(tensors, config):
        _, shape, data = tensors[name]
        tensors[name] = (dtype, shape, data)

    return edit


def said(key, value):
    def edit(tensors, config):
        config[key] = value

    return edit


def scale(at, value):
    return lambda t, c: put(t, DOWN + "_scales", at, bytes([value]))


def huge(t, c):
    put(t, DOWN + "_scales", 5, bytes([254]))
    put(t, DOWN + "_blocks", 16 * 5, b"\x77" * 16)


CASES = {
    "none": lambda t, c: None,
    "scale-nan": scale(700, 255),
    "scale-infinite": huge,
    "scales-missing": lambda t, c: t.pop(GATE_UP + "_scales"),
    "codes-missing": lambda t, c: t.pop(GATE_UP + "_blocks"),
    "scales-short": shorter(DOWN + "_scales", 1),
    "codes-short": shorter(DOWN + "_blocks", 1),
    "codes-flat": shaped(DOWN + "_blocks", [7, 64, 32]),
    "codes-turned": shaped(DOWN + "_blocks", [7, 2, 64, 16]),
    "scales-turned": shaped(DOWN + "_scales", [7, 2, 64]),
    "scales-dtype": typed(DOWN + "_scales", "F8_E8M0"),
    "codes-dtype": typed(DOWN + "_blocks", "F8_E4M3"),
    "codes-of-attention": copied(DOWN + "_blocks", "model.layers.1.self_attn.q_proj.weight_blocks"),
    "codes-of-no-layer": copied(DOWN + "_blocks", "model.layers.9.mlp.experts.down_proj_blocks"),
    "scales-of-nothing": copied(DOWN + "_scales", "score_scales"),
    "both": lambda t, c: t.update({DOWN: ("BF16", [7, 64, 64], bytes(2 * 7 * 64 * 64))}),
    "channels-no-blocks": said("intermediate_size", 48),
    "not-said": lambda t, c: c.pop("quantization_config"),
    "blocks-of-16": lambda t, c: c["quantization_config"].update(block_size=16),
    "bias-missing": lambda t, c: t.pop("model.layers.1.mlp.experts.down_proj_bias"),
    "router-bias-missing": lambda t, c: t.pop("model.layers.3.mlp.router.bias"),
    "sinks-missing": lambda t, c: t.pop("model.layers.0.self_attn.sinks"),
    "sinks-of-two-heads": shaped("model.layers.0.self_attn.sinks", [2, 3]),
    "attention-bias-off": said("attention_bias", False),
    "no-attention-bias": lambda t, c: t.pop("model.layers.0.self_attn.o_proj.bias"),
}


def spoil(model, out, case):
    tensors = read(model)
    write(model, out, tensors, lambda config: CASES[case](tensors, config))


if __name__ == "__main__":
    if sys.argv[1] == "cases":
        print(*(case for case in CASES if case != "none"))
    else:
        {"make": make, "plain": plain, "spoil": spoil}[sys.argv[1]](*sys.argv[2:])
