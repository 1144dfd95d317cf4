#!/usr/bin/env python3
"""Make quantised checkpoints, and compare the codes and scales of bundles and exports with them.

These make a checkpoint OUT from MODEL:

    codes.py resize MODEL OUT I       experts of I channels, repeating the first ones if there were
                                      fewer; shared experts get n_shared_experts times I channels
    codes.py grow MODEL OUT H         a hidden size of H, repeating the first elements
    codes.py plain MODEL OUT          decode the codes of compressed-tensors or ModelOpt to F32
    codes.py join MODEL OTHER EXPRESSION OUT   take matching modules from OTHER, for a mixture of schemes
    codes.py ease MODEL EXPRESSION OUT         store matching modules in BF16, and ignore them
    codes.py gptq MODEL OUT [CASE]    store W4A16 in GPTQ's format; `codes.py gptqs` lists its faults
    codes.py whole MODEL OUT          store fp8.py's blocks, one per matrix, as ModelOpt's FP8
    codes.py unite MODEL WHOLE OUT    routed experts from MODEL, in ModelOpt's NVFP4, all else from WHOLE
    codes.py spoil MODEL OUT CASE     a copy with one fault; `codes.py cases` lists them
    codes.py twist DIR OUT CASE       a ragged export with one fault; `codes.py twists` lists them

These check bundles and exports, comparing bytes, not values:

    codes.py bundle MODEL BUNDLE      channels are permuted in whole groups, and no byte changes
    codes.py export MODEL BUNDLE DIR  a uniform export has the first channels in the bundle's order
    codes.py blank MODEL BUNDLE DIR   a padded export has them, too, followed by codes of zero
    codes.py flat MODEL BUNDLE DIR [PLAIN]   a native, ragged, elastic or layer export has the first
                                      groups of every expert, expert after expert; everything else is
                                      as in the checkpoint, or as in PLAIN, an export of values
"""
import json
import re
import struct
import sys
import tarfile
from pathlib import Path

from fp8 import CODES, bf16_value, read, to_f32, write

GATE, UP, DOWN = ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")


def members(bundle):
    with tarfile.open(bundle) as t:
        return {m.name: t.extractfile(m).read() for m in t if m.isfile()}


def tensors(data):
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]])
            for k, v in header.items()}


def cut(data, n):
    """Cut data into n equal pieces."""
    size = len(data) // n
    return [data[i * size : (i + 1) * size] for i in range(n)]


def rows(tensor, n, fused, e):
    """The n rows of a matrix; if it is fused, those of expert e."""
    dtype, shape, data = tensor
    return cut(cut(data, shape[0])[e] if fused else data, n)


# --- values -----------------------------------------------------------------------------------------
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
E2M1 += [-x for x in E2M1]
ENDS = (".weight_packed", ".weight")
ASIDE = (".weight_scale", ".weight_global_scale", ".weight_scale_2", ".weight_shape", ".input_scale")


def numbers(tensor):
    dtype, _, data = tensor
    if dtype == "F32":
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    if dtype == "BF16":
        return [bf16_value(w) for w in struct.unpack(f"<{len(data) // 2}H", data)]
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    if dtype == "F8_E4M3":
        return [CODES[b] for b in data]
    return [2.0 ** (b - 127) for b in data]


def decoded(model):
    """Decode all weights that are stored as codes: {name: (shape, values)}."""
    tensor, found = read(model), {}
    for name, (dtype, shape, data) in tensor.items():
        end = next((e for e in ENDS if name.endswith(e)), None)
        base = name.removesuffix(end) if end else name
        if not end or base + ".weight_scale" not in tensor:
            continue
        if dtype == "I32":
            code = [(w >> 4 * i & 15) - 8 for w in struct.unpack(f"<{len(data) // 4}I", data) for i in range(8)]
        elif dtype == "U8":
            code = [E2M1[b >> s & 15] for b in data for s in (0, 4)]
        else:
            code = [CODES[b] for b in data]
        scale, grid = numbers(tensor[base + ".weight_scale"]), [*tensor[base + ".weight_scale"][1], 1, 1]
        if base + ".weight_global_scale" in tensor:
            factor = numbers(tensor[base + ".weight_global_scale"])[0]
            scale = [to_f32(s / factor) for s in scale]
        if base + ".weight_scale_2" in tensor:
            factor = numbers(tensor[base + ".weight_scale_2"])[0]
            scale = [to_f32(s * factor) for s in scale]
        rows, columns = shape[0], len(code) // shape[0]
        r, c = rows // grid[0], columns // grid[1]
        found[base + ".weight"] = [rows, columns], [
            to_f32(code[i * columns + j] * scale[i // r * grid[1] + j // c])
            for i in range(rows) for j in range(columns)
        ]  # fmt: skip
    return found


def plain(model, out):
    values, tensors = decoded(model), {}
    for name, t in read(model).items():
        if not name.endswith(ASIDE + ENDS) or name in values or (name.endswith(".weight") and t[0] in ("BF16", "F16", "F32")):
            tensors[name] = t
    for name, (shape, x) in values.items():
        tensors[name] = "F32", shape, struct.pack(f"<{len(x)}f", *x)
    for name, (dtype, shape, data) in tensors.items():
        if dtype in ("BF16", "F16"):
            x = numbers((dtype, shape, data))
            tensors[name] = "F32", shape, struct.pack(f"<{len(x)}f", *x)

    def edit(config):
        del config["quantization_config"]
        config["torch_dtype"] = "float32"

    write(model, out, tensors, edit)


# --- faults -----------------------------------------------------------------------------------------
EXPERT = "model.layers.1.mlp.experts.2.up_proj."


def poke(end, at, data):
    def spoil(tensors, config):
        dtype, shape, old = tensors[EXPERT + end]
        tensors[EXPERT + end] = dtype, shape, old[:at] + data + old[at + len(data) :]

    return spoil


def drop(end):
    return lambda tensors, config: tensors.pop(EXPERT + end)


def weights(**keys):
    return lambda tensors, config: config["quantization_config"]["config_groups"]["group_0"]["weights"].update(keys)


def quantization(**keys):
    return lambda tensors, config: config["quantization_config"].update(keys)


UP_MODULE = EXPERT.removesuffix(".")


def layer(module, says):
    return lambda tensors, config: config["quantization_config"]["quantized_layers"].update({module: says})


def rename_layers(change):
    def spoil(tensors, config):
        layers = config["quantization_config"]["quantized_layers"]
        config["quantization_config"]["quantized_layers"] = {change(k): v for k, v in layers.items()}

    return spoil


def second_scheme(*targets):
    def spoil(tensors, config):
        groups = config["quantization_config"]["config_groups"]
        groups["group_1"] = json.loads(json.dumps(groups["group_0"]))
        groups["group_1"]["weights"]["group_size"] = 16
        groups["group_1"]["targets"] = list(targets)

    return spoil


def targets(name, *entries):
    return lambda tensors, config: config["quantization_config"]["config_groups"][name].update(targets=list(entries))


def plain_experts(tensors, config):
    targets("group_1", "re:.*none")(tensors, config)
    for name in [n for n in tensors if ".experts." in n]:
        _, shape, data = tensors.pop(name)
        if name.endswith(".weight_packed"):
            n, k = shape[0], 2 * shape[1]
            tensors[name.removesuffix("_packed")] = "BF16", [n, k], b"\0\x3d" * (n * k)


CASES = {  # by format; faults.py has the faults that every format can have
    "fp8-block block-zero": weights(block_structure=[16, 0]),
    "fp8-block block-huge": weights(block_structure=[1 << 32, 16]),
    "fp8-block tensor-wise": weights(strategy="tensor"),
    "fp8-block group-wise": weights(strategy="group", group_size=32),
    "w4a16 shape-wrong": poke("weight_shape", 0, b"\x3f"),
    "w4a16 asymmetric": weights(symmetric=False),
    "w4a16 act-order": weights(actorder="group"),
    "w4a16 eight-bits": weights(num_bits=8),
    "w4a16 other-scheme": second_scheme("re:.*up_proj"),
    "w4a16 other-class": second_scheme("Conv1D"),
    "w4a16 other-lookahead": second_scheme("re:(?!.*experts).*"),
    "w4a16 other-deep": second_scheme("re:" + "(" * 100 + ")" * 100),
    "w4a16 other-many": second_scheme(*(f"re:x{i}" for i in range(257))),
    "w4a16 ignored-many": quantization(ignore=["lm_head"] + ["re:x"] * 257),
    "mixed experts-plain": plain_experts,
    "mixed targets-none": targets("group_0"),
    "mixed targets-number": targets("group_0", 3),
    "mixed targets-swapped": targets("group_0", "re:.*experts.*"),
    "mixed targets-elsewhere": targets("group_0", "re:.*q_proj$"),
    "mixed factor-missing": drop("weight_global_scale"),
    "w4a16 odd-group": weights(group_size=24),
    "w4a16 not-compressed": quantization(quantization_status="frozen"),
    "w4a16 ignored-expression": quantization(ignore=["re:.*(router|up_proj)$"]),
    "nvfp4-modelopt ignored-pattern": quantization(ignore=["lm_head", "*layers.1.*up_proj"]),
    "nvfp4-modelopt algorithm": quantization(quant_algo="NVFP4_AWQ"),
    "nvfp4-modelopt other-algorithm": quantization(quant_algo="FP8"),
    "modelopt-mixed layers-none": lambda t, c: c["quantization_config"].pop("quantized_layers"),
    "modelopt-mixed layers-empty": quantization(quantized_layers={}),
    "modelopt-mixed layers-list": quantization(quantized_layers=[UP_MODULE]),
    "modelopt-mixed layer-word": layer(UP_MODULE, "NVFP4"),
    "modelopt-mixed layer-algorithm": layer(UP_MODULE, {"quant_algo": "W4A8_AWQ"}),
    "modelopt-mixed layer-group": layer(UP_MODULE, {"quant_algo": "NVFP4", "group_size": 32}),
    "modelopt-mixed layer-other": layer(UP_MODULE, {"quant_algo": "FP8"}),
    "modelopt-mixed layer-missing": lambda t, c: c["quantization_config"]["quantized_layers"].pop(UP_MODULE),
    "modelopt-mixed query-other": layer("model.layers.1.self_attn.q_proj", {"quant_algo": "MXFP8", "group_size": 32}),
    "modelopt-mixed output-other": layer("model.layers.1.self_attn.o_proj", {"quant_algo": "FP8"}),
    "modelopt-mixed norm-listed": layer("model.layers.1.input_layernorm", {"quant_algo": "FP8"}),
    "modelopt-mixed part-unread": layer("mtp.layers.0.mlp.experts", {"quant_algo": "FP8_PB_WO", "group_size": 128}),
    "modelopt-mixed names-wrapped": rename_layers(lambda name: name.replace("model.", "model.language_model.", 1)),
    "modelopt-mixed names-outside": rename_layers(lambda name: "language_model." + name),
    "modelopt-mixed names-parents": rename_layers(lambda name: re.sub(r"(experts)\..*", r"\1", name)),
}


def join(model, other, expression, out):
    """Copy a compressed-tensors model, with matching modules taken from another."""
    tensors = {k: t for k, t in read(model).items() if not re.match(expression, k)}
    tensors |= {k: t for k, t in read(other).items() if re.match(expression, k)}
    theirs = json.loads((Path(other) / "config.json").read_text())["quantization_config"]

    def edit(config):
        quant = config["quantization_config"]
        groups = quant["config_groups"]
        groups["group_0"]["format"], quant["format"] = quant["format"], "mixed-precision"
        groups["group_1"] = theirs["config_groups"]["group_0"] | {"targets": ["re:" + expression], "format": theirs["format"]}

    write(model, out, tensors, edit)


def ease(model, expression, out):
    """Copy a model, with matching modules stored in BF16."""
    values, tensors = decoded(model), {k: t for k, t in read(model).items() if not re.match(expression, k)}
    for name, (shape, x) in values.items():
        if re.match(expression, name):
            bits = [struct.unpack("<I", struct.pack("<f", v))[0] for v in x]
            words = [(b + 0x7FFF + (b >> 16 & 1)) >> 16 for b in bits]
            tensors[name] = "BF16", shape, struct.pack(f"<{len(words)}H", *words)
    write(model, out, tensors, lambda config: config["quantization_config"]["ignore"].append("re:" + expression))


def turned(tensor, size):
    """Transpose a matrix with elements of `size` bytes."""
    dtype, (n, k), data = tensor
    return dtype, [k, n], b"".join(data[(i * k + j) * size : (i * k + j + 1) * size] for j in range(k) for i in range(n))


def gptq(model, out, case="none"):
    """Store a model's W4A16 in GPTQ's format."""
    tensors, group = {}, 32
    for name, t in read(model).items():
        base, _, end = name.rpartition(".")
        if end == "weight_packed":
            tensors[base + ".qweight"] = turned(t, 4)
        elif end == "weight_scale":
            tensors[base + ".scales"] = turned(t, 2)
        elif end == "weight_shape":
            n, k = struct.unpack("<2q", t[2])
            zero = 0x88 if case == "v2" else 0x77
            tensors[base + ".qzeros"] = "I32", [k // group, n // 8], bytes([zero]) * (k // group * n // 2)
            tensors[base + ".g_idx"] = "I32", [k], struct.pack(f"<{k}i", *(i // group for i in range(k)))
        else:
            tensors[name] = t

    def edit(config):
        config["quantization_config"] = quant = {
            "quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True,
        }  # fmt: skip
        if case == "v2":
            quant["checkpoint_format"] = "gptq_v2"
        elif case in GPTQ:
            GPTQ[case](tensors, quant)

    write(model, out, tensors, edit)


def whole(model, out):
    """Convert FP8 in blocks as large as the matrices to ModelOpt's format, with one scale per matrix."""
    tensors = {}
    for name, t in read(model).items():
        scale = name.endswith("_scale_inv")
        tensors[name.removesuffix("_inv") if scale else name] = (t[0], [], t[2]) if scale else t

    def edit(config):
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}

    write(model, out, tensors, edit)


def unite(model, rest, out):
    """ModelOpt's MIXED_PRECISION: NVFP4 for the routed experts, FP8 for the other matrices of a layer."""
    routed = re.compile(r"\.(?<!shared_)experts\.")
    tensors = {k: t for k, t in read(rest).items() if not routed.search(k)}
    tensors |= {k: t for k, t in read(model).items() if routed.search(k)}
    algorithms = {"U8": {"quant_algo": "NVFP4", "group_size": 16}, "F8_E4M3": {"quant_algo": "FP8"}}
    layers = {k.removesuffix(".weight"): algorithms[t[0]] for k, t in tensors.items()
              if k.endswith(".weight") and t[0] in algorithms}  # fmt: skip

    def edit(config):
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}

    write(rest, out, tensors, edit)


def gptq_poke(end, at, data):
    def spoil(tensors, quant):
        dtype, shape, old = tensors[EXPERT + end]
        tensors[EXPERT + end] = dtype, shape, old[:at] + data + old[at + len(data) :]

    return spoil


def gptq_shape(end, *shape):
    def spoil(tensors, quant):
        tensors[EXPERT + end] = tensors[EXPERT + end][0], list(shape), tensors[EXPERT + end][2]

    return spoil


GPTQ = {
    "act-order": gptq_poke("g_idx", 4, b"\1"),
    "negative-order": gptq_poke("g_idx", 3, b"\xff"),
    "asymmetric": gptq_poke("qzeros", 3, b"\x76"),
    "v1-said-v2": lambda tensors, quant: quant.update(checkpoint_format="gptq_v2"),
    "v2-said-v1": lambda tensors, quant: (quant.update(checkpoint_format="gptq"), tensors.update(
        {k: (d, s, b"\x88" * len(x)) for k, (d, s, x) in tensors.items() if k.endswith("qzeros")})),
    "eight-bits": lambda tensors, quant: quant.update(bits=8),
    "no-groups": lambda tensors, quant: quant.update(group_size=-1),
    "other-group": lambda tensors, quant: quant.update(group_size=16),
    "marlin": lambda tensors, quant: quant.update(checkpoint_format="marlin"),
    "scale-nan": gptq_poke("scales", 0, b"\xc0\x7f"),
    "zeros-missing": lambda tensors, quant: tensors.pop(EXPERT + "qzeros"),
    "order-missing": lambda tensors, quant: (quant.update(desc_act=True), tensors.pop(EXPERT + "g_idx")),
    "head-coded": lambda tensors, quant: tensors.update(  # and it is not listed in `ignore`
        {"lm_head.qweight": ("I32", [4, 64], bytes(1024)), "lm_head.scales": ("BF16", [1, 64], b"\x80\x3f" * 64),
         "lm_head.qzeros": ("I32", [1, 8], b"\x77" * 32)}) or tensors.pop("lm_head.weight"),
    "codes-flat": gptq_shape("qweight", 256),
    "codes-turned": gptq_shape("qweight", 64, 4),
    "zeros-turned": gptq_shape("qzeros", 8, 1),
    "scales-missing": lambda tensors, quant: tensors.pop(EXPERT + "scales"),
    "codes-twice": lambda tensors, quant: tensors.update({EXPERT + "weight": ("BF16", [64, 32], bytes(4096))}),
}


def spoil(model, out, case):
    tensors = read(model)
    write(model, out, tensors, lambda config: CASES[case](tensors, config) if case != "none" else None)


# --- bytes ------------------------------------------------------------------------------------------
class Source:
    def __init__(self, model):
        self.tensor = read(model)
        self.used = set()

    def planes(self, layer, e, of):
        """The codes, then their scales, of gate, up, down or gate_up, as [(name, tensor, fused)]."""
        found = []
        for name in sorted(self.tensor):
            m = re.search(rf"\.layers\.{layer}\..*(?<!shared_)experts\.(?:(\d+)\.)?(\w+?)(_blocks|_scales|\.\w+)$", name)
            codes = m and m[3] in ("_blocks", ".weight", ".weight_packed")
            scales = m and m[3] in ("_scales", ".weight_scale", ".weight_scale_inv")
            if not (codes or scales) or m[2] not in of or (m[1] and int(m[1]) != e):
                continue
            self.used.add(name)
            found.append((not codes, name, self.tensor[name], m[1] is None))
        return [f[1:] for f in sorted(found)]


def put(order, items, group):
    """Put items of `group` channels each into the given order."""
    return [items[order[i] // group] for i in range(0, len(order), group)]


def part(source, layer, e, order, parts, I, H):
    """What the bundle must store for an expert: {last part of a tensor's name: bytes}."""
    G = parts["down"][1][1] and I // parts["down"][1][1]
    want = {}
    for of, of2 in ((GATE, UP), (("gate_up_proj",), None)):
        first = source.planes(layer, e, of)
        second = source.planes(layer, e, of2) if of2 else [None] * len(first)
        for plane, (a, b) in enumerate(zip(first, second)):
            key = "gate_up" + ("_scale" if plane else "")
            if key not in parts:
                continue
            per = 1 if b else 2
            n = parts[key][1][1] // 2 * per
            x = rows(a[1], n, a[2], e)
            if b:
                items = [p + q for p, q in zip(x, rows(b[1], n, b[2], e))]
            else:
                items = [x[i] + x[i + 1] for i in range(0, n, 2)]
            want[key] = b"".join(put(order, items, I // len(items)))
    for plane, (name, t, fused) in enumerate(source.planes(layer, e, DOWN)):
        key = "down" + ("_scale" if plane else "")
        if key not in parts:
            source.used.discard(name)
            continue
        height = parts[key][1][2] if len(parts[key][1]) > 2 else H
        matrix = [cut(r, I // G) for r in rows(t, height, fused, e)]
        columns = [b"".join(r[i] for r in matrix) for i in range(I // G)]
        want[key] = b"".join(put(order, columns, G))
    return want


def bundle(model, path):
    source, files = Source(model), members(path)
    manifest = json.loads(files["manifest.json"])["model"]
    ranking = tensors(files["ranking.safetensors"])
    orders = sorted((int(re.search(r"\d+", k)[0]), v) for k, v in ranking.items() if k.endswith("order"))
    M, (E, I) = len(orders), orders[0][1][1]
    order = struct.unpack(f"<{M * E * I}i", b"".join(v[2] for _, v in orders))
    layers = sorted(f for f in files if f.startswith("weights/layers-"))
    done = 0
    for m, f in enumerate(layers):
        layer = int(re.search(r"\d+", f)[0])
        parts = {k.split(".")[-1]: v for k, v in tensors(files[f]).items()}
        for e in range(E):
            at = (m * E + e) * I
            want = part(source, layer, e, order[at : at + I], parts, I, manifest["hidden"])
            for key, data in want.items():
                if cut(parts[key][2], E)[e] != data:
                    sys.exit(f"layer {layer}, expert {e}: {key} differs")
                done += 1
    rest = tensors(files["weights/rest.safetensors"])
    for name, t in source.tensor.items():
        if name in source.used or "experts" in name and name.endswith("bias"):
            continue
        if rest.get(name) != t:
            sys.exit(f"{name} differs")
        done += 1
    print(f"storage {manifest['storage']}, scales {manifest['scales']}: {done} planes and tensors are the checkpoint's")
    return source, order, (M, E, I)


def groups(files, I):
    """The number of channels in a group, for each layer of a bundle."""
    layers = [tensors(files[f]) for f in sorted(files) if f.startswith("weights/layers-")]
    return [I // next(v for n, v in layer.items() if n.endswith(".down"))[1][1] for layer in layers]


def keep(tensor, order, k, down, group, fused, E, I):
    """Keep the first k channels of each expert, in order, in a tensor of codes or scales."""
    dtype, shape, data = tensor
    out = b""
    for e in range(E if fused else 1):
        mine, mask = (cut(data, E)[e] if fused else data), order[e * I : e * I + k]
        if not down:
            n = shape[1] if fused else shape[0]
            r = n // I if n >= I else 0
            if r:
                x = cut(mine, I)
                out += b"".join(x[c] for c in mask)
            else:
                x = cut(mine, n)
                out += b"".join(x[mask[i] * n // I] for i in range(0, k, I // n))
            continue
        H = shape[1] if fused else shape[0]
        for r in cut(mine, H):
            x = cut(r, I // group)
            out += b"".join(x[mask[i] // group] for i in range(0, k, group))
    return out


def grown(have, tensor, scales):
    """Widen a matrix of a shared expert: codes are followed by zeros, scales by copies of the last one."""
    dtype, (n, k), data = tensor
    rows_, size = [cut(r, k) for r in cut(data, n)], len(data) // n // k
    zero = (b"\x88" if dtype == "I32" else b"\0") * size
    wide = [r + [r[-1] if scales else zero] * (have[1][1] - k) for r in rows_]
    wide += [[wide[-1][-1] if scales else zero] * have[1][1]] * (have[1][0] - n)
    return b"".join(b"".join(r) for r in wide)


def export(model, path, directory):
    source, order, (M, E, I) = bundle(model, path)
    config = json.loads((Path(directory) / "config.json").read_text())
    k = config.get("moe_intermediate_size", config.get("intermediate_size"))
    moe = sorted({int(m[1]) for n in source.used if (m := re.search(r"layers\.(\d+)\.", n))})
    group = groups(members(path), I)
    have = read(directory)
    done = 0
    for name, t in source.tensor.items():
        if "experts" in name and name.endswith("bias"):
            continue
        want = t[2]
        if name in source.used:
            layer = moe.index(int(re.search(r"layers\.(\d+)\.", name)[1]))
            expert = re.search(r"experts\.(\d+)\.", name)
            at = (layer * E + (int(expert[1]) if expert else 0)) * I
            down = re.search(r"\.(down_proj|w2)\b|\.down_proj_", name) is not None
            want = keep(t, order[at:], k, down, group[layer], expert is None, E, I)
        elif "shared_expert" in name and name.endswith("weight_shape"):
            rows, words = have[name.replace("_shape", "_packed")][1]
            want = struct.pack("<2q", rows, 8 * words)
        elif "experts" in name and name.endswith("weight_shape"):
            sizes = struct.unpack("<2q", t[2])
            want = struct.pack("<2q", *(k if n == I else n for n in sizes))
        elif "shared_expert" in name and have[name][1] != t[1]:
            want, t = grown(have[name], t, "scale" in name), have[name]
        if have[name][0] != t[0] or have[name][2] != want:
            sys.exit(f"{name} differs in the export")
        done += 1
    source_quant = json.loads((Path(model) / "config.json").read_text())["quantization_config"]
    if config["quantization_config"] != source_quant:
        sys.exit("quantization_config differs")
    print(f"width {k} of {I}: {done} tensors of the export are codes of the checkpoint")


def blank(model, path, directory):
    """Check a padded export: each expert has its first channels in the bundle's order, then codes of zero,
    and the scales of all channels in that order."""
    source, order, (M, E, I) = bundle(model, path)
    widths = json.loads((Path(directory) / "fm-export.json").read_text())["widths"]
    group = groups(members(path), I)
    moe = sorted({int(m[1]) for n in source.used if (m := re.search(r"layers\.(\d+)\.", n))})
    have = read(directory)
    done = 0
    for name in source.used:
        m = re.search(r"layers\.(\d+)\..*experts\.(\d+)\.", name)
        if not m or have[name][0] != source.tensor[name][0] or have[name][1] != source.tensor[name][1]:
            sys.exit(f"{name} has another type or shape in the export")
        layer, e = moe.index(int(m[1])), int(m[2])
        down, codes = re.search(r"\.(down_proj|w2)\b", name) is not None, not name.endswith("_scale")
        k = widths[int(m[1])][e] if codes else I
        t = have[name]
        want = keep(source.tensor[name], order[(layer * E + e) * I :], k, down, group[layer], False, E, I)
        if codes:
            zero = b"\x88" if name.endswith("_packed") and t[0] == "I32" else b"\0"
            n, row = (t[1][0], len(t[2]) // t[1][0]) if down else (1, len(t[2]))
            want = b"".join(r + zero * (row - len(r)) for r in cut(want, n)) if k else zero * len(t[2])
        if t[2] != want:
            sys.exit(f"{name} differs in the export")
        done += codes
    print(f"{done} tensors of codes, zero from the width on")


def flat(model, path, directory, plain=None):
    source, order, (M, E, I) = bundle(model, path)
    files, export = members(path), json.loads((Path(directory) / "fm-export.json").read_text())
    hidden = json.loads(files["manifest.json"])["model"]["hidden"]
    have = {n: t for f in Path(directory).glob("*.safetensors") for n, t in tensors(f.read_bytes()).items()}
    layers, done = sorted(f for f in files if f.startswith("weights/layers-")), 0
    native = export["layout"] == "native"
    for m, f in enumerate(layers):
        layer = int(re.search(r"\d+", f)[0])
        parts = {k.split(".")[-1]: v for k, v in tensors(files[f]).items()}
        want = {}
        for e, k in enumerate(export["widths"][layer]):
            at = (m * E + e) * I
            for key, data in part(source, layer, e, order[at : at + k], parts, I, hidden).items():
                want[key] = want.get(key, b"") + data
            for key, of in () if native else (("gate_up", GATE), ("gate_up", UP), ("down", DOWN)):
                for name in source.tensor:
                    m_ = re.search(rf"\.layers\.{layer}\.\S*(?<!shared_)experts\.{e}\.(\w+)\.(weight_\w+)$", name)
                    factor = m_ and m_[2] in ("weight_global_scale", "weight_scale_2")
                    apart = m_ and m_[2] == "weight_scale" and "down_scale" not in parts and key == "down"
                    if (factor or apart) and m_[1] in of:
                        key_ = key + ("_factor" if factor else "_scale")
                        want[key_] = want.get(key_, b"") + source.tensor[name][2]
        prefix = f"layers.{layer}." if native else f"model.layers.{layer}.mlp.experts."
        for key, data in want.items():
            if have.pop(prefix + key)[2] != data:
                sys.exit(f"{prefix}{key} differs")
            done += 1
    print(f"{done} tensors of {export['layout']} are codes and scales of the checkpoint")
    if plain:
        rest = {n: t for f in Path(plain).glob("*.safetensors") for n, t in tensors(f.read_bytes()).items()}
        rest = {n: t for n, t in rest.items() if not re.search(r"\.experts\.(gate_up|down)$", n)}
    else:
        rest = {n: t for n, t in source.tensor.items() if n not in source.used and not n.endswith("experts.gate_up_proj_bias")}
        for n, t in rest.items():
            if re.search(r"(?<!shared_)experts\.\d+\.\w+\.weight_shape$", n):
                e = int(re.search(r"experts\.(\d+)\.", n)[1])
                k = export["widths"][int(re.search(r"layers\.(\d+)\.", n)[1])][e]
                rest[n] = t[0], t[1], struct.pack("<2q", *(k if x == I else x for x in struct.unpack("<2q", t[2])))
    biases = {n for n in have if n.endswith(("bias_gate_up", ".gate_up_bias"))}
    for name in sorted((rest.keys() | have.keys()) - biases):
        if rest.get(name) != have.get(name):
            sys.exit(f"{name} differs")
    print("the rest is", "that of an export of values" if plain else "the checkpoint's")


def twist(directory, out, case):
    """Change one tensor of layer 0's experts, or a key of config.json."""
    name, _, how = case.partition(" ")
    tensor, config = {}, {}
    for f in Path(directory).glob("*.safetensors"):
        tensor |= tensors(f.read_bytes())

    def edit(config):
        codes = config["fm_codes"]
        if case == "codes none":
            del codes["quantization_config"]
        elif case == "codes other":
            codes["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [4, 4]}
        elif case == "codes word":
            config["fm_codes"] = 3
        elif case == "codes absent":
            del config["fm_codes"]
        elif case == "widths odd":
            config["fm_widths"][0][0] += 1

    key = f"model.layers.0.mlp.experts.{name}"
    if key in tensor:
        dtype, shape, data = tensor[key]
        number = {"nan": float("nan"), "zero": 0.0, "negative": -1.0}
        if how == "missing":
            del tensor[key]
        elif how == "short":
            row = len(data) // shape[0]
            tensor[key] = dtype, [shape[0] - 1, *shape[1:]], data[:-row]
        elif how == "type":
            tensor[key] = {"U8": "F8_E4M3", "F8_E4M3": "U8", "F32": "I32"}[dtype], shape, data
        elif dtype == "F32":
            tensor[key] = dtype, shape, struct.pack("<f", number[how]) + data[4:]
        else:
            tensor[key] = dtype, shape, b"\x7f" + data[1:]
    write(directory, out, tensor, edit)


TWISTS = [f"{n} {how}" for n in ("gate_up", "gate_up_scale", "down_scale", "down_factor") for how in ("missing", "short", "type")]
TWISTS += [f"down_factor {how}" for how in ("nan", "zero", "negative")]
TWISTS += ["gate_up_scale nan", "codes none", "codes other", "codes word", "codes absent", "widths odd"]


def resize(model, out, I):
    config = json.loads((Path(model) / "config.json").read_text())
    key = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    have, I, tensor = config[key], int(I), read(model)
    for name, (dtype, shape, data) in tensor.items():
        m = re.search(r"(shared_)?experts\..*(gate|up|down)_proj\.weight", name)
        if not m:
            continue
        n = config.get("n_shared_experts") or 1 if m[1] else 1
        matrix = [cut(row, shape[1]) for row in cut(data, shape[0])]
        at = [i % (n * have) for i in range(n * I)]
        if m[2] == "down":
            matrix = [[row[i] for i in at] for row in matrix]
        else:
            matrix = [matrix[i] for i in at]
        data = b"".join(b"".join(row) for row in matrix)
        tensor[name] = dtype, [len(matrix), len(matrix[0])], data
    write(model, out, tensor, lambda c: c.update({key: I}))


# Tensors whose number of columns is the hidden size, and tensors whose number of rows is.
COLUMNS = r"(embed_tokens|lm_head|\.[qkvg]_proj|gate_proj|up_proj|\.gate|q_a_proj|kv_a_proj_with_mqa|wk|weights_proj)\.weight$"
ROWS = r"(o_proj|down_proj)\.weight$|(input|post_attention|pre_mlp|post_mlp)_layernorm\.weight$|^model\.norm\.weight$|o_proj\.bias$"


def grow(model, out, H):
    tensor, H = read(model), int(H)
    have = json.loads((Path(model) / "config.json").read_text())["hidden_size"]
    for name, (dtype, shape, data) in tensor.items():
        if re.search(COLUMNS, name):
            assert shape[1] == have, name
            matrix = [cut(row, have) for row in cut(data, shape[0])]
            data = b"".join(b"".join(row[i % have] for i in range(H)) for row in matrix)
            tensor[name] = dtype, [shape[0], H], data
        elif re.search(ROWS, name):
            assert shape[0] == have, name
            row = cut(data, have)
            tensor[name] = dtype, [H, *shape[1:]], b"".join(row[i % have] for i in range(H))
    write(model, out, tensor, lambda c: c.update({"hidden_size": H}))


if __name__ == "__main__":
    if sys.argv[1] in ("cases", "twists", "gptqs"):
        print(*{"cases": CASES, "twists": TWISTS, "gptqs": GPTQ}[sys.argv[1]], sep="\n")
        sys.exit()
    {"flat": flat, "twist": twist, "join": join, "ease": ease, "gptq": gptq, "whole": whole, "unite": unite, "spoil": spoil, "resize": resize, "grow": grow, "plain": plain, "bundle": bundle, "export": export,
     "blank": blank}[sys.argv[1]](*sys.argv[2:])
