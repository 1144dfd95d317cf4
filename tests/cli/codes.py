"""The formats of quantised weights by their definitions, in plain Python.

This module is a second implementation for the tests and judges, independent of the C code.  It
decodes every format that the suite reads, and encodes every format that it writes:

    fp8          a scale for each row, or for the whole matrix
    fp8-block    a scale for each block, 128 x 128 or R x C in `fp8-block:RxC`; blocks are cut at the edges;
                 one for each matrix is decoded, too
    w4a16        four-bit integers in groups of 128 columns, or G in `w4a16:G`; decoded in compressed-tensors'
                 format and in GPTQ's, and with zero points in AWQ's
    nvfp4        four-bit floats in groups of 16, as ModelOpt writes them; `nvfp4:ct` as compressed-tensors does
    mxfp4 mxfp8  groups of 32 whose scale is a power of two; mxfp4 is also decoded as gpt-oss stores it

value = code * scale, rounded to float32.
"""
import bisect
import math
import struct

from tensors import config_of, read, write


# --- numbers ----------------------------------------------------------------------------------------
def e4m3_value(b):
    exponent, fraction = b >> 3 & 15, b & 7
    value = (1 + fraction / 8) * 2.0 ** (exponent - 7) if exponent else fraction * 2.0**-9
    return -value if b & 128 else value


E4M3 = [e4m3_value(b) for b in range(256)]  # 127 and 255 are NaN
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1 += [-x for x in E2M1]


def to_f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def bf16_value(word):
    return struct.unpack("<f", struct.pack("<I", word << 16))[0]


def to_bf16(x):
    """Round a finite float32 to a bfloat16 word, to nearest, ties to even."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def numbers(tensor):
    dtype, _, data = tensor
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if dtype == "BF16":
        return [bf16_value(w) for w in struct.unpack(f"<{len(data) // 2}H", data)]
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    if dtype == "F8_E4M3":
        return [E4M3[b] for b in data]
    return [2.0 ** (b - 127) for b in data]


def words(dtype, values):
    if dtype == "F32":
        return struct.pack(f"<{len(values)}f", *values)
    if dtype == "F16":
        return struct.pack(f"<{len(values)}e", *values)
    return struct.pack(f"<{len(values)}H", *map(to_bf16, values))


def rounded(x, dtype):
    return numbers((dtype, None, words(dtype, [to_f32(x)])))[0]


def share(data, n, i):
    """Share i of n equal ones."""
    size = len(data) // n
    return data[i * size : (i + 1) * size]


# --- decoding ---------------------------------------------------------------------------------------
def halves(data):
    """The low half of each byte comes first."""
    return [b >> s & 15 for b in data for s in (0, 4)]


def integers(data):
    return [w >> 4 * i & 15 for w in struct.unpack(f"<{len(data) // 4}I", data) for i in range(8)]


CODES = {"I32": lambda data: [x - 8 for x in integers(data)], "U8": lambda data: [E2M1[x] for x in halves(data)],
         "F8_E4M3": lambda data: [E4M3[b] for b in data]}  # fmt: skip


def block_of(quant, shape, grid):
    """The block that each scale of a grid belongs to.  If blocks are cut, only config.json has their size."""
    groups = [g["weights"] for g in quant.get("config_groups", {}).values()]
    for block in [quant.get("weight_block_size"), *(g.get("block_structure") for g in groups)]:
        if block and grid == [-(-n // b) for n, b in zip(shape, block)]:
            return block
    return [n // g for n, g in zip(shape, grid)]


def matrix(tensors, name, quant):
    """Decode `name`, whose module has scales."""
    base = name[: name.rindex(".")]
    get = lambda end: tensors.get(f"{base}.{end}")
    dtype, shape, data = tensors[name]
    code, stored = CODES[dtype](data), get("weight_scale") or get("weight_scale_inv")
    scale, grid = numbers(stored), [*stored[1], 1, 1][:2]
    if factor := get("weight_global_scale"):
        scale = [to_f32(s / numbers(factor)[0]) for s in scale]
    if factor := get("weight_scale_2"):
        scale = [to_f32(s * numbers(factor)[0]) for s in scale]
    rows, columns = shape[0], len(code) // shape[0]
    high, wide = block_of(quant, [rows, columns], grid)
    return [rows, columns], [to_f32(code[i * columns + j] * scale[i // high * grid[1] + j // wide])
                             for i in range(rows) for j in range(columns)]  # fmt: skip


def gptq_matrix(tensors, base, quant):
    """Codes are stored transposed, with a zero point for each group; `checkpoint_format` gptq stores it minus 1."""
    qweight, scales, zeros, order = (tensors[base + end] for end in ("qweight", "scales", "qzeros", "g_idx"))
    (k8, n), scale = qweight[1], numbers(scales)
    word = struct.unpack(f"<{k8 * n}I", qweight[2])
    zero = [z + (quant.get("checkpoint_format") != "gptq_v2") for z in integers(zeros[2])]
    group = struct.unpack(f"<{8 * k8}i", order[2])
    return [n, 8 * k8], [
        to_f32(((word[k // 8 * n + r] >> 4 * (k % 8) & 15) - zero[group[k] * n + r]) * scale[group[k] * n + r])
        for r in range(n) for k in range(8 * k8)]  # fmt: skip


AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each nibble of a word, lowest first


def awq_matrix(tensors, base, quant):
    """Codes and zero points are packed along the columns of the transposed matrix."""
    qweight, scales, zeros = (tensors[base + end] for end in ("qweight", "scales", "qzeros"))
    (k, n8), scale, group = qweight[1], numbers(scales), quant["group_size"]

    def nibbles(data):
        word = struct.unpack(f"<{len(data) // 4}I", data)
        return [word[i + c // 8] >> 4 * AWQ.index(c % 8) & 15 for i in range(0, len(word), n8) for c in range(8 * n8)]

    code, zero, n = nibbles(qweight[2]), nibbles(zeros[2]), 8 * n8
    return [n, k], [to_f32((code[j * n + r] - zero[j // group * n + r]) * scale[j // group * n + r])
                    for r in range(n) for j in range(k)]  # fmt: skip


def gptoss_experts(blocks, scales):
    """Decode (E, rows, columns / 32, 16) bytes; the plain tensor is (E, columns, rows)."""
    (E, rows, across, _), scale = blocks[1], numbers(scales)
    x, columns = [to_f32(c * scale[i // 32]) for i, c in enumerate(CODES["U8"](blocks[2]))], 32 * across
    return [E, columns, rows], [x[(e * rows + r) * columns + c] for e in range(E) for c in range(columns) for r in range(rows)]


def experts(tensors, name, quant):
    """Decode a tensor that stacks the matrices of all experts; its scales are stacked the same way."""
    own = {"x.weight" + end: tensors[name + end] for end in ("", "_scale_inv", "_scale", "_scale_2") if name + end in tensors}
    E, found = tensors[name][1][0], []
    for e in range(E):
        one = {n: (dtype, shape[1:], share(data, E, e)) for n, (dtype, shape, data) in own.items()}
        shape, x = matrix(one, "x.weight", quant)
        found += x
    return [E, *shape], found


def decoded(model):
    """Decode all matrices that are stored as codes: {name of the plain tensor: (shape, values)}."""
    tensors, quant, found = read(model), config_of(model).get("quantization_config", {}), {}
    for name in tensors:
        base, _, end = name.rpartition(".")
        if end == "qweight":
            of = awq_matrix if quant["quant_method"] == "awq" else gptq_matrix
            found[base + ".weight"] = of(tensors, base + ".", quant)
        elif end.endswith("_blocks"):
            whole = name.removesuffix("_blocks")
            found[whole] = gptoss_experts(tensors[name], tensors[whole + "_scales"])
        elif {name + "_scale_inv", name + "_scale"} & tensors.keys() and len(tensors[name][1]) == 3:
            found[name] = experts(tensors, name, quant)
        elif end in ("weight", "weight_packed") and {base + ".weight_scale", base + ".weight_scale_inv"} & tensors.keys():
            found[base + ".weight"] = matrix(tensors, name, quant)
    return found


PARTS = (".weight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_global_scale", ".weight_scale_2",
         ".weight_shape", ".input_scale", ".qweight", ".qzeros", ".scales", ".g_idx", "_blocks", "_scales", "_scale_inv",
         ".activation_scale", "_activation_scale")  # fmt: skip


def plain_tensors(model, dtype):
    """All tensors of a model, decoded to F32 or BF16; with F32, other floats become F32, too."""
    values, tensors = decoded(model), read(model)
    for name in values:
        for end in PARTS:
            tensors.pop(name.removesuffix(".weight") + end, None)
    for name, t in tensors.items():
        if dtype == "F32" and t[0] in ("BF16", "F16"):
            tensors[name] = dtype, t[1], words(dtype, numbers(t))
    return tensors | {name: (dtype, shape, words(dtype, x)) for name, (shape, x) in values.items()}


def plain(model, out, dtype="F32"):
    """Write a copy of a model without codes."""

    def edit(config):
        del config["quantization_config"]
        key = "torch_dtype" if "torch_dtype" in config else "dtype"
        config[key] = {"F32": "float32", "BF16": "bfloat16"}[dtype]

    write(model, out, plain_tensors(model, dtype), edit)


# --- encoding ---------------------------------------------------------------------------------------
E4M3_GRID, E2M1_GRID = E4M3[:127], E2M1[:8]
EPSILON = {"F32": 2.0**-23, "BF16": 2.0**-7, "F16": 2.0**-10}


def nearest(x, grid):
    """The index of the nearest value of an increasing grid, ties to the even index."""
    i = min(bisect.bisect_left(grid, x), len(grid) - 1)
    if i == 0 or grid[i] <= x:
        return i
    low, high = x - grid[i - 1], grid[i] - x
    return i if high < low or (high == low and i % 2 == 0) else i - 1


def e4m3(x):
    return nearest(abs(x), E4M3_GRID) | (128 if math.copysign(1, x) < 0 else 0)


def e2m1(x):
    return nearest(abs(x), E2M1_GRID) | (8 if x < 0 else 0)


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
    """(block of each element, the largest magnitude of each block, shape of the grid of blocks)"""
    grid = [-(-rows // high), -(-columns // wide)]
    of = [i // columns // high * grid[1] + i % columns // wide for i in range(rows * columns)]
    most = [0.0] * (grid[0] * grid[1])
    for b, x in zip(of, w):
        most[b] = max(most[b], abs(x))
    return of, most, grid


def encoded(name, dtype, w, rows, columns, both=0):
    """Encode a matrix: {end of the name: (dtype, shape, bytes)}.  NVFP4's second scale is computed from `both`,
    the largest magnitude in the matrix or, for gate and up, in both of them."""
    name, _, size = (name, "", "") if name == "nvfp4:ct" else name.partition(":")
    if name == "fp8-block":
        of, most, grid = blocks(w, rows, columns, *(map(int, size.split("x")) if size else (128, 128)))
        s = [to_f32(m / 448) for m in most]
        s = [1.0 if x < 2.0**-126 else x for x in s]
        codes = bytes(e4m3(quotient(x, s[b])) for x, b in zip(w, of))
        return {"weight": ("F8_E4M3", [rows, columns], codes), "weight_scale_inv": ("F32", grid, words("F32", s))}
    if name == "fp8":
        of, most, grid = blocks(w, rows, columns, 1, columns)
        s = [rounded(to_f32(m / 448), dtype) or EPSILON[dtype] for m in most]
        codes = bytes(e4m3(quotient(x, s[b])) for x, b in zip(w, of))
        return {"weight": ("F8_E4M3", [rows, columns], codes), "weight_scale": (dtype, grid, words(dtype, s))}
    if name == "w4a16":
        of, most, grid = blocks(w, rows, columns, 1, int(size or 128))
        s = [rounded(to_f32(m / 7.5), dtype) or EPSILON[dtype] for m in most]
        codes = [max(-8, min(7, round(quotient(x, s[b])))) + 8 for x, b in zip(w, of)]
        return {"weight_packed": ("I32", [rows, columns // 8], pairs(codes)),
                "weight_scale": (dtype, grid, words(dtype, s)),
                "weight_shape": ("I64", [2], struct.pack("<2q", rows, columns))}  # fmt: skip
    if name == "nvfp4":
        of, most, grid = blocks(w, rows, columns, 1, 16)
        second = to_f32(both / 2688) or 1.0
        byte = [e4m3(1 if m == 0 else min(448, max(2.0**-9, quotient(m, to_f32(6 * second))))) for m in most]
        s = [to_f32(E4M3[b] * second) for b in byte]
        codes = [e2m1(quotient(x, s[b])) for x, b in zip(w, of)]
        return {"weight": ("U8", [rows, columns // 2], pairs(codes)),
                "weight_scale": ("F8_E4M3", grid, bytes(byte)),
                "weight_scale_2": ("F32", [], struct.pack("<f", second)),
                "input_scale": ("F32", [], struct.pack("<f", 1))}  # fmt: skip
    if name == "nvfp4:ct":
        of, most, grid = blocks(w, rows, columns, 1, 16)
        dtype = "F32" if dtype == "F16" else dtype
        second = rounded(rounded(1 / both, dtype) * 2688, dtype) if both else 1.0
        byte = [e4m3(min(448, to_f32(rounded(to_f32(m / 6), dtype) * second))) or e4m3(0.125) for m in most]
        s = [to_f32(E4M3[b] / second) for b in byte]
        codes = [e2m1(quotient(x, s[b])) for x, b in zip(w, of)]
        return {"weight_packed": ("U8", [rows, columns // 2], pairs(codes)),
                "weight_scale": ("F8_E4M3", grid, bytes(byte)),
                "weight_global_scale": ("F32", [1], struct.pack("<f", second))}  # fmt: skip
    of, most, grid = blocks(w, rows, columns, 1, 32)
    byte = [power(m, 2 if name == "mxfp4" else 8) for m in most]
    scaled = [quotient(x, 2.0 ** (byte[b] - 127)) for x, b in zip(w, of)]
    scale = "U8", grid, bytes(byte)
    if name == "mxfp4":
        return {"weight_packed": ("U8", [rows, columns // 2], pairs([e2m1(x) for x in scaled])), "weight_scale": scale}
    return {"weight": ("F8_E4M3", [rows, columns], bytes(e4m3(x) for x in scaled)), "weight_scale": scale}
