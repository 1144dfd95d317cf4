#!/usr/bin/env python3
"""Make and decode FP8 checkpoints by the format's definition, in plain Python.

    fp8.py quantise MODEL OUT [R C [routers | mxfp8 | compressed]]
                                      quantise a BF16 or F16 checkpoint in blocks of R x C (default
                                      16 x 24).  routers: also its routers; mxfp8: scales are powers of
                                      two in one byte, as in MiniMax's mxfp8; compressed: the names and
                                      keys of compressed-tensors
    fp8.py plain MODEL OUT DTYPE      decode the values to F32 or BF16
    fp8.py bundle MODEL BUNDLE        check that a bundle's weights are these values, rounded once to BF16
    fp8.py spoil MODEL OUT CASE       a copy with one fault
    fp8.py cases                      list the faults

value = code * scale of its block, rounded to float32.
"""
import bisect
import json
import math
import shutil
import struct
import sys
import tarfile
from pathlib import Path

SCALE, COMPRESSED = "_scale_inv", "_scale"
SMALL = (16, 24)  # default size of blocks
BITS = {"I8": 8, "I16": 16, "F8_E4M3": 8, "F8_E8M0": 8, "U8": 8, "BF16": 16, "F16": 16, "F32": 32, "F64": 64, "I32": 32, "I64": 64}


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
    """Round a finite float32 to a bfloat16 word, to nearest, ties to even."""
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
    """Write the tensors to one file; copy the model's tokens.npy and its config.json, changed by `edit`."""
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


def blocks_of(model):
    config = json.loads((Path(model) / "config.json").read_text())
    return config["quantization_config"]["weight_block_size"]


def values(tensors, name, block):
    """The float32 values of a tensor of codes."""
    (_, (rows, columns), data), scale = tensors[name], scale_values(*tensors[name + (SCALE if name + SCALE in tensors else COMPRESSED)][::2])
    across = -(-columns // block[1])
    return [
        to_f32(CODES[data[i * columns + j]] * scale[i // block[0] * across + j // block[1]])
        for i in range(rows)
        for j in range(columns)
    ]


def as_bf16(tensors, name, block):
    """Rows of bfloat16 words: decoded and rounded if the tensor has codes, else as they are."""
    dtype, shape, data = tensors[name]
    if dtype == "BF16":
        words = struct.unpack(f"<{len(data) // 2}H", data)
    else:
        words = [to_bf16(x) for x in values(tensors, name, block)]
    return [words[i : i + shape[1]] for i in range(0, len(words), shape[1])]


def plain(model, out, dtype):
    tensors, made, block = read(model), {}, blocks_of(model)
    for name, (kind, shape, data) in tensors.items():
        if name.endswith((SCALE, COMPRESSED)):
            continue
        if kind == "F8_E4M3" and dtype == "F32":
            x = values(tensors, name, block)
            data = struct.pack(f"<{len(x)}f", *x)
        elif kind == "F8_E4M3":
            rows = as_bf16(tensors, name, block)
            data = b"".join(struct.pack(f"<{shape[1]}H", *row) for row in rows)
        elif dtype == "F32" and kind == "BF16":
            data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
        made[name] = (kind if kind == "F32" else dtype, shape, data)
    names = {"F32": "float32", "BF16": "bfloat16"}

    def edit(config):
        del config["quantization_config"]
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = names[dtype]

    write(model, out, made, edit)


def expert_names(tensors, l, e):
    """gate, up, down"""
    qwen = [f"model.layers.{l}.mlp.experts.{e}.{part}_proj.weight" for part in ("gate", "up", "down")]
    mixtral = [f"model.layers.{l}.block_sparse_moe.experts.{e}.{w}.weight" for w in ("w1", "w3", "w2")]
    return qwen if qwen[0] in tensors else mixtral


def bundle(model, path):
    """Compare a bundle's weights.  Channels are in ranked order, gate and up rows alternate, and down is
    transposed."""
    tensors, wrong, seen, block = read(model), 0, 0, blocks_of(model)
    with tarfile.open(path) as tar:
        member = {m.name: unpack(tar.extractfile(m).read()) for m in tar if m.name.endswith("tensors")}
    for name, (dtype, shape, data) in member["weights/rest.safetensors"].items():
        seen += 1
        want = tensors[name][2]
        if tensors[name][0] == "F8_E4M3":
            rows = as_bf16(tensors, name, block)
            want = b"".join(struct.pack(f"<{shape[1]}H", *row) for row in rows)
        wrong += dtype not in ("BF16", tensors[name][0]) or data != want
    for file in sorted(name for name in member if name.startswith("weights/layers-")):
        layer, l = member[file], int(file[15:20])
        experts, channels = member["ranking.safetensors"][f"layers.{l}.order"][1]
        order = struct.unpack(f"<{experts * channels}i",
                              member["ranking.safetensors"][f"layers.{l}.order"][2])
        gate_up, down = [], []
        for e in range(experts):
            gate, up, back = (
                as_bf16(tensors, name, block) for name in expert_names(tensors, l, e)
            )
            for c in order[e * channels : (e + 1) * channels]:
                gate_up += [*gate[c], *up[c]]
                down += [row[c] for row in back]
        for part, words in (("gate_up", gate_up), ("down", down)):
            seen += 1
            wrong += layer[f"layers.{l}.{part}"][2] != struct.pack(f"<{len(words)}H", *words)
    print(f"{seen} tensors, {wrong} differ from the definition")


def quantise_matrix(words, rows, columns, block, powers=False):
    """Quantise bfloat16 words to (codes, scales, shape of the scales); the largest value of a block becomes
    448, or less if scales are powers of two."""
    down, across = (-(-n // b) for n, b in zip((rows, columns), block))
    x = [bf16_value(w) for w in words]
    most = [0.0] * (down * across)
    place = [i // block[0] * across + j // block[1] for i in range(rows) for j in range(columns)]
    for at, v in zip(place, x):
        most[at] = max(most[at], abs(v))
    scale = [to_f32(m / 448 or 1.0) for m in most]
    if powers:
        scale = [2.0 ** math.ceil(math.log2(x)) for x in scale]
    positive = CODES[:0x7F]
    codes = bytearray()
    for at, v in zip(place, x):
        i = bisect.bisect(positive, abs(v) / scale[at]) - 1
        codes.append(i | (128 if v < 0 else 0))
    if powers:
        return bytes(codes), bytes(int(math.log2(x)) + 127 for x in scale), [down, across]
    return bytes(codes), struct.pack(f"<{len(scale)}f", *scale), [down, across]


def quantise(model, out, *block):
    how = block[2] if len(block) > 2 else ""
    block = tuple(map(int, block[:2])) or SMALL
    tensors = read(model)
    for name, (dtype, shape, data) in sorted(tensors.items()):
        if dtype not in ("BF16", "F16"):
            continue
        words = struct.unpack(f"<{len(data) // 2}H", data)
        if dtype == "F16":
            words = [to_bf16(x) for x in struct.unpack(f"<{len(words)}e", data)]
        tensors[name] = ("BF16", shape, struct.pack(f"<{len(words)}H", *words))
        if len(shape) != 2 or ".layers." not in name or (".gate.weight" in name and how != "routers"):
            continue
        codes, scales, grid = quantise_matrix(words, *shape, block, how == "mxfp8")
        tensors[name] = ("F8_E4M3", shape, codes)
        tensors[name + (COMPRESSED if how == "compressed" else SCALE)] = ("U8" if how == "mxfp8" else "F32", grid, scales)

    def edit(config):
        config["quantization_config"] = {
            "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "mxfp8" if how == "mxfp8" else "fp8",
            "weight_block_size": list(block),
        }  # fmt: skip
        if how == "compressed":
            weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": list(block)}
            config["quantization_config"] = {
                "quant_method": "compressed-tensors", "format": "float-quantized", "weight_block_size": list(block),
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            }  # fmt: skip

    write(model, out, tensors, edit)


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


def unread(t, c):
    _, _, data = t[QUERY]
    t["score.weight"] = ("F8_E4M3", [3, 4], data[:12])


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
    "codes-of-no-module": unread,
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
        {"quantise": quantise, "plain": plain, "bundle": bundle, "spoil": spoil}[sys.argv[1]](*sys.argv[2:])
