#!/usr/bin/env python3
"""An FP8 checkpoint taken apart by the format's definition, with nothing but Python.

    fp8.py plain MODEL OUT DTYPE      the same values as plain F32 or BF16
    fp8.py bundle MODEL BUNDLE        are a bundle's weights those values as BF16, rounded once?
    fp8.py spoil MODEL OUT CASE       a copy with one fault
    fp8.py cases                      their names

value = code * scale of its block of 128 x 128: one product, rounded to float32.
"""
import json
import shutil
import struct
import sys
import tarfile
from pathlib import Path

BLOCK, SCALE = 128, "_scale_inv"
BITS = {"F8_E4M3": 8, "F8_E8M0": 8, "U8": 8, "BF16": 16, "F32": 32, "F64": 64, "I32": 32, "I64": 64}


def code_value(b):
    exponent, fraction = b >> 3 & 15, b & 7
    value = (1 + fraction / 8) * 2.0 ** (exponent - 7) if exponent else fraction * 2.0**-9
    return -value if b & 128 else value


CODES = [code_value(b) for b in range(256)]


def bf16_value(word):
    return struct.unpack("<f", struct.pack("<I", word << 16))[0]


def to_f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def to_bf16(x):
    """The word of a finite float32, to nearest, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def unpack(data):
    """{name: (dtype, shape, bytes)}"""
    n = struct.unpack("<Q", data[:8])[0]
    table = json.loads(data[8 : 8 + n])
    table.pop("__metadata__", None)
    body = memoryview(data)[8 + n :]
    return {
        name: (t["dtype"], t["shape"], bytes(body[slice(*t["data_offsets"])]))
        for name, t in table.items()
    }


def pack(tensors):
    table, at, body = {}, 0, []
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda x: (-BITS[x[1][0]], x[0])):
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
        body.append(data)
    text = json.dumps({"__metadata__": {"format": "pt"}} | table).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(body)


def read(model):
    tensors = {}
    for file in sorted(Path(model).glob("model*.safetensors")):
        tensors |= unpack(file.read_bytes())
    return tensors


def write(model, out, tensors, edit=None):
    """One file of these tensors, beside the other files of the model."""
    out = Path(out)
    out.mkdir()
    config = json.loads((Path(model) / "config.json").read_text())
    if edit:
        edit(config)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(Path(model) / "tokens.npy", out)
    (out / "model.safetensors").write_bytes(pack(tensors))


def scale_values(dtype, data):
    if dtype == "F32":
        return struct.unpack(f"<{len(data) // 4}f", data)
    if dtype == "BF16":
        return [bf16_value(w) for w in struct.unpack(f"<{len(data) // 2}H", data)]
    return [2.0 ** (b - 127) for b in data]


def values(tensors, name):
    """Of a tensor of codes, float32."""
    (_, (rows, columns), data), scale = tensors[name], scale_values(*tensors[name + SCALE][::2])
    across = -(-columns // BLOCK)
    return [
        to_f32(CODES[data[i * columns + j]] * scale[i // BLOCK * across + j // BLOCK])
        for i in range(rows)
        for j in range(columns)
    ]


def as_bf16(tensors, name):
    """Rows of words: of codes, rounded; or as they are."""
    dtype, shape, data = tensors[name]
    if dtype == "BF16":
        words = struct.unpack(f"<{len(data) // 2}H", data)
    else:
        words = [to_bf16(x) for x in values(tensors, name)]
    return [words[i : i + shape[1]] for i in range(0, len(words), shape[1])]


def plain(model, out, dtype):
    tensors, made = read(model), {}
    for name, (kind, shape, data) in tensors.items():
        if name.endswith(SCALE):
            continue
        if kind == "F8_E4M3" and dtype == "F32":
            x = values(tensors, name)
            data = struct.pack(f"<{len(x)}f", *x)
        elif kind == "F8_E4M3":
            data = b"".join(struct.pack(f"<{shape[1]}H", *row) for row in as_bf16(tensors, name))
        elif dtype == "F32":
            data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
        made[name] = (dtype, shape, data)
    names = {"F32": "float32", "BF16": "bfloat16"}

    def edit(config):
        del config["quantization_config"]
        config["torch_dtype"] = names[dtype]

    write(model, out, made, edit)


def bundle(model, path):
    """The bundle's experts are ranked, gate and up rows in turn, down transposed."""
    tensors, wrong, seen = read(model), 0, 0
    with tarfile.open(path) as tar:
        member = {m.name: unpack(tar.extractfile(m).read()) for m in tar if m.name.endswith("tensors")}
    for name, (dtype, shape, data) in member["weights/rest.safetensors"].items():
        seen += 1
        want = tensors[name][2]
        if tensors[name][0] == "F8_E4M3":
            want = b"".join(struct.pack(f"<{shape[1]}H", *row) for row in as_bf16(tensors, name))
        wrong += dtype != "BF16" or data != want
    for l in range(json.loads((Path(model) / "config.json").read_text())["num_hidden_layers"]):
        layer = member[f"weights/layers-{l:05}.safetensors"]
        experts, channels = member["ranking.safetensors"][f"layers.{l}.order"][1]
        order = struct.unpack(f"<{experts * channels}i",
                              member["ranking.safetensors"][f"layers.{l}.order"][2])
        gate_up, down = [], []
        for e in range(experts):
            gate, up, back = (
                as_bf16(tensors, f"model.layers.{l}.mlp.experts.{e}.{part}_proj.weight")
                for part in ("gate", "up", "down")
            )
            for c in order[e * channels : (e + 1) * channels]:
                gate_up += [*gate[c], *up[c]]
                down += [row[c] for row in back]
        for part, words in (("gate_up", gate_up), ("down", down)):
            seen += 1
            wrong += layer[f"layers.{l}.{part}"][2] != struct.pack(f"<{len(words)}H", *words)
    print(f"{seen} tensors, {wrong} differ from the definition")


# --- faults -----------------------------------------------------------------------------------------

EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


def put(tensors, name, at, new):
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape, data[:at] + new + data[at + len(new) :])


def quantization(key, value):
    def edit(tensors, config):
        config["quantization_config"][key] = value

    return edit


def scale_of_f32(value):
    return lambda t, c: put(t, QUERY + SCALE, 4, struct.pack("<f", value))


def reshaped(t, c):
    dtype, (rows, columns), data = t[QUERY + SCALE]
    t[QUERY + SCALE] = (dtype, [columns * rows], data)


def short(t, c):
    dtype, (_, columns), data = t[QUERY + SCALE]
    t[QUERY + SCALE] = (dtype, [1, columns], data[: 4 * columns])


def other_dtype(t, c):
    _, shape, data = t[QUERY + SCALE]
    t[QUERY + SCALE] = ("I32", shape, data)


def plain_weight(t, c):
    _, shape, data = t[QUERY]
    t[QUERY] = ("BF16", shape, b"\0\0" * len(data))


def vector(t, c):
    name = "model.layers.0.input_layernorm.weight"
    _, shape, data = t[name]
    t[name] = ("F8_E4M3", shape, data[::2])


def other_expert(t, c):
    t["model.layers.0.mlp.experts.9.up_proj.weight" + SCALE] = t[EXPERT + SCALE]


def other_module(t, c):
    t["score.weight" + SCALE] = t[EXPERT + SCALE]


CASES = {
    "none": lambda t, c: None,
    "nan": lambda t, c: put(t, EXPERT, 1000, b"\x7f"),
    "minus-nan": lambda t, c: put(t, QUERY, 7, b"\xff"),
    "scale-nan": scale_of_f32(float("nan")),
    "scale-infinite": scale_of_f32(float("inf")),
    "scale-zero": scale_of_f32(0.0),
    "scale-negative": scale_of_f32(-1.0),
    "scale-too-large": scale_of_f32(1e36),
    "scale-ue8m0-nan": lambda t, c: put(t, "model.layers.1.mlp.experts.1.up_proj.weight" + SCALE, 3,
                                        b"\xff"),
    "scale-ue8m0-too-large": lambda t, c: put(t, "model.layers.1.self_attn.o_proj.weight" + SCALE,
                                              0, b"\xfe"),
    "scales-missing": lambda t, c: t.pop(EXPERT + SCALE),
    "scales-short": short,
    "scales-flat": reshaped,
    "scales-dtype": other_dtype,
    "scales-of-plain": plain_weight,
    "scales-of-nothing": lambda t, c: t.pop(QUERY),
    "scales-of-no-expert": other_expert,
    "scales-of-no-module": other_module,
    "vector": vector,
    "not-said": lambda t, c: c.pop("quantization_config"),
    "block-smaller": quantization("weight_block_size", [64, 64]),
    "block-zero": quantization("weight_block_size", [0, 128]),
    "block-fraction": quantization("weight_block_size", [128, 127.5]),
    "block-one-size": quantization("weight_block_size", [128]),
    "block-null": quantization("weight_block_size", None),
    "static": quantization("activation_scheme", "static"),
    "e5m2": quantization("fmt", "e5m2"),
    "fp4": quantization("expert_dtype", "fp4"),
    "compressed-tensors": quantization("quant_method", "compressed-tensors"),
}


def spoil(model, out, case):
    tensors = read(model)
    write(model, out, tensors, lambda config: CASES[case](tensors, config))


if __name__ == "__main__":
    if sys.argv[1] == "cases":
        print(*(case for case in CASES if case != "none"))
    else:
        {"plain": plain, "bundle": bundle, "spoil": spoil}[sys.argv[1]](*sys.argv[2:])
