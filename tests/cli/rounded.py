#!/usr/bin/env python3
"""Round experts by the formats' definitions, in plain Python, and compare exports of fm-pack --weights.

    rounded.py make OUT DTYPE        make a small Qwen3-MoE, F32, F16 or BF16, with blocks that are hard to round
    rounded.py compare PLAIN DIR     check that the uniform export DIR has the rounded experts of the export
                                     PLAIN, and everything else as in PLAIN
    rounded.py flat PLAIN DIR        the same for a ragged, elastic or layer export with PLAIN's widths
    rounded.py integers MODEL OUT G  quantise routed and shared experts to compressed-tensors' W4A16, groups of G
    rounded.py values MODEL DIR      gpt-oss: check that the gate and up blocks of DIR have MODEL's values, in any
                                     order of channels
"""
import bisect
import json
import math
import random
import struct
import sys
from pathlib import Path

from fp8 import CODES, bf16_value, pack, read, to_bf16, to_f32, write

H, I, E, L, V = 128, 128, 2, 1, 61
E4M3, E2M1 = CODES[:127], [0, 0.5, 1, 1.5, 2, 3, 4, 6]
TOP, EPSILON = 448, {"F32": 2.0**-23, "BF16": 2.0**-7, "F16": 2.0**-10}


def words(dtype, values):
    if dtype == "F32":
        return struct.pack(f"<{len(values)}f", *values)
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    return struct.pack(f"<{len(values)}H", *map(to_bf16, values))


def numbers(tensor):
    dtype, _, data = tensor
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    return [bf16_value(w) for w in struct.unpack(f"<{len(data) // 2}H", data)]


def rounded(x, dtype):
    if dtype == "F16":
        return struct.unpack("<e", struct.pack("<e", to_f32(x)))[0]
    return to_f32(x) if dtype == "F32" else bf16_value(to_bf16(to_f32(x)))


# --- a checkpoint -----------------------------------------------------------------------------------
def make(out, dtype):
    rng, tensors = random.Random(17), {}

    def add(name, *shape, std=0.1, mean=0.0):
        values = [rng.gauss(mean, std) for _ in range(math.prod(shape))]
        if name.endswith("experts.0.down_proj"):
            for i in range(0, H):
                values[i * I : i * I + 32] = [0.0] * 32
            values[3 * I : 4 * I] = [0.0] * I
            values[5 * I : 5 * I + 64] = [x * 1e-30 for x in values[5 * I : 5 * I + 64]]
            values[6 * I : 7 * I] = [x * 1e-38 for x in values[6 * I : 7 * I]]
            values[7 * I + 100], values[8 * I + 90] = 3e4, -0.0
        if name.endswith("experts.1.down_proj"):
            values = [0.0] * len(values)
        if dtype == "F16" and ".mlp.experts." in name:
            values = [x / 16 if abs(x) < 1e3 else x / 1e6 for x in values]  # small: F16 cannot hold 2688 / x
        tensors[name + ".weight"] = dtype, list(shape), words(dtype, values)

    add("model.embed_tokens", V, H, std=1)
    add("lm_head", V, H)
    add("model.norm", H, mean=1)
    for l in range(L):
        at = f"model.layers.{l}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            add(at + name, H, mean=1)
        for name, n in (("q", 64), ("k", 32), ("v", 32)):
            add(at + f"self_attn.{name}_proj", n, H)
        add(at + "self_attn.o_proj", H, 64)
        for name in "qk":
            add(at + f"self_attn.{name}_norm", 32, mean=1)
        add(at + "mlp.gate", E, H)
        for e in range(E):
            for name, shape in (("gate", (I, H)), ("up", (I, H)), ("down", (H, I))):
                add(at + f"mlp.experts.{e}.{name}_proj", *shape)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": H,
        "moe_intermediate_size": I, "intermediate_size": I, "num_experts": E, "num_experts_per_tok": 1,
        "num_hidden_layers": L, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "vocab_size": V, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "hidden_act": "silu", "norm_topk_prob": True,
        "max_position_embeddings": 512, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "tie_word_embeddings": False, "attention_bias": False, "use_sliding_window": False,
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype],
    }  # fmt: skip
    out = Path(out)
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out / "model.safetensors").write_bytes(pack(tensors))
    ids = [rng.randrange(V) for _ in range(4 * 17)]
    head = "{'descr': '<i4', 'fortran_order': False, 'shape': (4, 17), }"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    (out / "tokens.npy").write_bytes(
        b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<68i", *ids))


# --- formats ----------------------------------------------------------------------------------------
def nearest(x, grid):
    """The index of the nearest value of an increasing grid, ties to the even index."""
    i = min(bisect.bisect_left(grid, x), len(grid) - 1)
    if i == 0 or grid[i] <= x:
        return i
    low, high = x - grid[i - 1], grid[i] - x
    return i if high < low or (high == low and i % 2 == 0) else i - 1


def e4m3(x):
    return nearest(abs(x), E4M3) | (128 if math.copysign(1, x) < 0 else 0)


def e2m1(x):
    return nearest(abs(x), E2M1) | (8 if x < 0 else 0)


def quotient(x, s):
    try:
        return to_f32(x / s) if s else 0.0
    except OverflowError:
        return math.copysign(3e38, x)


def pairs(codes):
    return bytes(a | b << 4 for a, b in zip(codes[::2], codes[1::2]))


def power(most, offset):
    m, e = math.frexp(most)
    return max(0, min(254, e - 1 + (m >= 0.875) - offset + 127)) if most else 0


def blocks(w, rows, columns, high, wide):
    """(block of each element, the largest magnitude of each block)"""
    across = columns // wide
    of = [i // columns // high * across + i % columns // wide for i in range(rows * columns)]
    most = [0.0] * (rows // high * across)
    for b, x in zip(of, w):
        most[b] = max(most[b], abs(x))
    return of, most


def quantised(name, dtype, w, rows, columns, both):
    """Quantise a matrix: {end of the name: (dtype, shape, bytes)}.  NVFP4's second scale is computed from
    `both`, the largest magnitude in the matrix or, for gate and up, in both of them."""
    scale_type, f32 = dtype, "F32"
    if name in ("fp8-block", "fp8"):
        high, wide = (128, 128) if name == "fp8-block" else (1, columns)
        of, most = blocks(w, rows, columns, high, wide)
        scale_type = f32 if name == "fp8-block" else dtype
        s = [rounded(to_f32(m / TOP), scale_type) for m in most]
        small = (lambda x: x < 2.0**-126, 1.0) if name == "fp8-block" else (lambda x: x == 0, EPSILON[dtype])
        s = [small[1] if small[0](x) else x for x in s]
        codes = bytes(e4m3(quotient(x, s[b])) for x, b in zip(w, of))
        end = "weight_scale_inv" if name == "fp8-block" else "weight_scale"
        return {"weight": ("F8_E4M3", [rows, columns], codes),
                end: (scale_type, [rows // high, columns // wide], words(scale_type, s))}  # fmt: skip
    if name.startswith("w4a16"):
        wide = int(name.partition(":")[2] or 128)
        of, most = blocks(w, rows, columns, 1, wide)
        s = [rounded(to_f32(m / 7.5), dtype) or EPSILON[dtype] for m in most]
        codes = [max(-8, min(7, round(quotient(x, s[b])))) + 8 for x, b in zip(w, of)]
        return {"weight_packed": ("I32", [rows, columns // 8], pairs(codes)),
                "weight_scale": (dtype, [rows, columns // wide], words(dtype, s)),
                "weight_shape": ("I64", [2], struct.pack("<2q", rows, columns))}  # fmt: skip
    if name == "nvfp4":
        of, most = blocks(w, rows, columns, 1, 16)
        second = to_f32(both / 2688) or 1.0
        byte = [e4m3(1 if m == 0 else min(448, max(2.0**-9, quotient(m, to_f32(6 * second))))) for m in most]
        s = [to_f32(E4M3[b] * second) for b in byte]
        codes = [e2m1(quotient(x, s[b])) for x, b in zip(w, of)]
        return {"weight": ("U8", [rows, columns // 2], pairs(codes)),
                "weight_scale": ("F8_E4M3", [rows, columns // 16], bytes(byte)),
                "weight_scale_2": (f32, [], struct.pack("<f", second)),
                "input_scale": (f32, [], struct.pack("<f", 1))}  # fmt: skip
    if name == "nvfp4:ct":
        of, most = blocks(w, rows, columns, 1, 16)
        dtype = "F32" if dtype == "F16" else dtype
        second = rounded(rounded(1 / both, dtype) * 2688, dtype) if both else 1.0
        byte = [e4m3(min(448, to_f32(rounded(to_f32(m / 6), dtype) * second))) or e4m3(0.125) for m in most]
        s = [to_f32(E4M3[b] / second) for b in byte]
        codes = [e2m1(quotient(x, s[b])) for x, b in zip(w, of)]
        return {"weight_packed": ("U8", [rows, columns // 2], pairs(codes)),
                "weight_scale": ("F8_E4M3", [rows, columns // 16], bytes(byte)),
                "weight_global_scale": (f32, [1], struct.pack("<f", second))}  # fmt: skip
    of, most = blocks(w, rows, columns, 1, 32)
    byte = [power(m, 2 if name == "mxfp4" else 8) for m in most]
    scaled = (quotient(x, 2.0 ** (byte[b] - 127)) for x, b in zip(w, of))
    scale = "U8", [rows, columns // 32], bytes(byte)
    if name == "mxfp4":
        return {"weight_packed": ("U8", [rows, columns // 2], pairs(list(map(e2m1, scaled)))), "weight_scale": scale}
    return {"weight": ("F8_E4M3", [rows, columns], bytes(map(e4m3, scaled))), "weight_scale": scale}


def compare(plain, directory):
    have, from_ = read(directory), read(plain)
    config = json.loads((Path(directory) / "config.json").read_text())
    name = json.loads((Path(directory) / "fm-export.json").read_text())["weights"]
    quantisation = config["quantization_config"]
    ignored = quantisation.get("ignore", quantisation.get("modules_to_not_convert"))
    done = 0
    for weight, tensor in from_.items():
        base = weight.removesuffix("weight")
        if ".experts." not in weight:
            if have.pop(weight) != tensor:
                sys.exit(f"{weight} differs")
            if len(tensor[1]) == 2 and "embed" not in weight and base[:-1] not in ignored:
                sys.exit(f"{weight} is not in the list of what stays")
            continue
        dtype, (rows, columns), _ = tensor
        parts = ["down"] if "down_proj" in weight else ["gate", "up"]
        own = next(p for p in parts if p + "_proj" in weight)
        both = max(max(map(abs, numbers(from_[weight.replace(own + "_proj", p + "_proj")]))) for p in parts)
        for end, want in quantised(name, dtype, numbers(tensor), rows, columns, both).items():
            got = have.pop(base + end, None)
            if got != want:
                bad = sum(a != b for a, b in zip(got[2], want[2])) if got else 0
                sys.exit(f"{base + end}: {got and got[:2]}, {want[:2]}, {bad} bytes differ")
            done += 1
    if have:
        sys.exit(f"{sorted(have)[0]} does not belong there")
    print(f"{name}: {done} tensors equal the rounded values, {len(ignored)} modules are unchanged")


def joined(name, k, group, made):
    """Join an expert's quantised matrices as a flat export stores them: {end of the name: bytes}."""
    codes, scales, second = [], [], []
    for parts in made:
        ends = sorted(parts, key=lambda e: (e not in ("weight", "weight_packed"), "scale_2" in e or "global" in e))
        codes.append(parts[ends[0]])
        scales.append(next(parts[e] for e in ends if e in ("weight_scale", "weight_scale_inv")))
        second += [parts[e][2] for e in ends if e in ("weight_scale_2", "weight_global_scale")]
    out = {"_factor": b"".join(second)} if second else {}
    for end, planes in ("", codes), ("_scale", scales):
        rows_ = [[t[2][i : i + len(t[2]) // t[1][0]] for i in range(0, len(t[2]), len(t[2]) // t[1][0])] for t in planes]
        if name == "gate_up":
            out[end] = b"".join(g + u for g, u in zip(*rows_))
        elif end and planes[0][1][1] == 1 and k > group:  # one per row, independent of channels
            out[end] = planes[0][2]
        else:
            item = len(rows_[0][0]) * group // k
            out[end] = b"".join(r[i : i + item] for i in range(0, len(rows_[0][0]), item) for r in rows_[0])
    return out


def flat(plain, directory):
    """Compare a layout that stores experts one after another with an unquantised one of the same widths."""
    have, from_ = read(directory), read(plain)
    config = json.loads((Path(directory) / "config.json").read_text())
    export = json.loads((Path(directory) / "fm-export.json").read_text())
    if json.loads((Path(plain) / "fm-export.json").read_text())["widths"] != export["widths"]:
        sys.exit("the other export has other widths")
    name, group, H, done = export["weights"], config["fm_codes"]["group"], config["hidden_size"], 0
    for weight, tensor in from_.items():
        part = weight.rpartition(".")[2]
        if part not in ("gate_up", "down"):
            if have.pop(weight) != tensor:
                sys.exit(f"{weight} differs")
            continue
        values, want, at = numbers(tensor), {}, 0
        for k in export["widths"][int(weight.split(".")[2])]:
            w = values[at * H : (at + (2 * k if part == "gate_up" else k)) * H]
            at += len(w) // H
            both = max(map(abs, w))
            if part == "gate_up":
                rows_ = [w[i : i + H] for i in range(0, len(w), H)]
                matrices = [([x for r in rows_[s::2] for x in r], k, H) for s in (0, 1)]
            else:
                matrices = [([w[c * H + r] for r in range(H) for c in range(k)], H, k)]
            made = [quantised(name, tensor[0], m, rows, columns, both) for m, rows, columns in matrices]
            for end, data in joined(part, k, group, made).items():
                want[end] = want.get(end, b"") + data
        for end, data in want.items():
            if have.pop(weight + end)[2] != data:
                sys.exit(f"{weight + end} differs")
            done += 1
    if have:
        sys.exit(f"{sorted(have)[0]} does not belong there")
    print(f"{export['layout']}, {name}: {done} tensors equal the rounded values")


def integers(model, out, group):
    tensors, ignored = read(model), ["lm_head"]
    for name, (dtype, shape, data) in sorted(tensors.items()):
        if ".layers." not in name or len(shape) != 2:
            continue
        if "experts." not in name:
            ignored.append(name.removesuffix(".weight"))
            continue
        parts = quantised("w4a16:" + group, dtype, numbers(tensors.pop(name)), *shape, 0)
        tensors |= {name.removesuffix("weight") + end: t for end, t in parts.items()}
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": int(group)}
    write(model, out, tensors, lambda config: config.update(quantization_config={
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ignored}))  # fmt: skip


def decoded(tensors, name):
    codes, scales = tensors[name + "_blocks"], tensors[name + "_scales"]
    values = []
    for b, byte in enumerate(codes[2]):
        scale = 2.0 ** (scales[2][b // 16] - 127)
        values += [E2M1[c & 7] * scale * (-1 if c & 8 else 1) for c in (byte & 15, byte >> 4)]
    return codes[1], values


def values(model, directory):
    a, b = read(model), read(directory)
    names = [n.removesuffix("_blocks") for n in b if n.endswith("gate_up_proj_blocks")]
    for name in names:
        if sorted(decoded(a, name)[1]) != sorted(decoded(b, name)[1]) or decoded(a, name)[0] != decoded(b, name)[0]:
            sys.exit(f"{name} has other values")
    print(f"{len(names)} tensors of blocks have the values of the original")


if __name__ == "__main__":
    {"make": make, "compare": compare, "flat": flat, "values": values, "integers": integers}[sys.argv[1]](*sys.argv[2:])
