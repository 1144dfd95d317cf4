#!/usr/bin/env python3
"""Codes and scales that a bundle or an export keeps, against the checkpoint's own bytes.

    codes.py resize MODEL OUT I       experts of I channels, the first of them again where there were
                                      fewer; shared experts that config.json counts in experts, too
    codes.py bundle MODEL BUNDLE      channels are permuted in whole groups, and no byte changes
    codes.py export MODEL BUNDLE DIR  a uniform export has the first channels of that order

Works on bytes: what a code is worth does not matter here.
"""
import json
import re
import struct
import sys
import tarfile
from pathlib import Path

from fp8 import read, write

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
    """n equal pieces."""
    size = len(data) // n
    return [data[i * size : (i + 1) * size] for i in range(n)]


def rows(tensor, n, fused, e):
    """The n rows of a matrix, or of expert e of all."""
    dtype, shape, data = tensor
    return cut(cut(data, shape[0])[e] if fused else data, n)


class Source:
    def __init__(self, model):
        self.tensor = read(model)
        self.used = set()

    def planes(self, layer, e, of):
        """[(tensor, fused)]: codes and what belongs to them, for one of gate, up, down or gate_up."""
        found = []
        for name in sorted(self.tensor):
            m = re.search(rf"\.layers\.{layer}\..*(?<!shared_)experts\.(?:(\d+)\.)?(\w+?)(_blocks|_scales|\.\w+)$", name)
            if not m or m[2] not in of or (m[1] and int(m[1]) != e) or name.endswith("bias"):
                continue
            self.used.add(name)
            codes = m[3] in ("_blocks", ".weight", ".weight_packed")
            found.append((not codes, name, self.tensor[name], m[1] is None))
        return [f[1:] for f in sorted(found)]


def put(order, items, group):
    """items, of `group` channels each, in order."""
    return [items[order[i] // group] for i in range(0, len(order), group)]


def part(source, layer, e, order, parts, I, H):
    """What the bundle has of an expert: {tensor: bytes} by the suffixes of its planes."""
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


def keep(tensor, order, k, down, group, fused, E, I):
    """One tensor of codes or scales with the first k channels of each expert, in order."""
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
    """A matrix of a wider shared expert: codes with zeros after them, scales with the last one again."""
    dtype, (n, k), data = tensor
    rows_, size = [cut(r, k) for r in cut(data, n)], len(data) // n // k
    zero = bytes(size)
    wide = [r + [r[-1] if scales else zero] * (have[1][1] - k) for r in rows_]
    wide += [[wide[-1][-1] if scales else zero] * have[1][1]] * (have[1][0] - n)
    return b"".join(b"".join(r) for r in wide)


def export(model, path, directory):
    source, order, (M, E, I) = bundle(model, path)
    config = json.loads((Path(directory) / "config.json").read_text())
    k = config.get("moe_intermediate_size", config.get("intermediate_size"))
    moe = sorted({int(m[1]) for n in source.used if (m := re.search(r"layers\.(\d+)\.", n))})
    files = members(path)
    first = tensors(files[sorted(f for f in files if f.startswith("weights/layers-"))[0]])
    group = I // next(v for n, v in first.items() if n.endswith(".down"))[1][1]
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
            want = keep(t, order[at:], k, down, group, expert is None, E, I)
        elif "shared_expert" in name and have[name][1] != t[1]:
            want, t = grown(have[name], t, "scale" in name), have[name]
        if have[name][0] != t[0] or have[name][2] != want:
            sys.exit(f"{name} differs in the export")
        done += 1
    source_quant = json.loads((Path(model) / "config.json").read_text())["quantization_config"]
    if config["quantization_config"] != source_quant:
        sys.exit("quantization_config differs")
    print(f"width {k} of {I}: {done} tensors of the export are codes of the checkpoint")


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


if __name__ == "__main__":
    {"resize": resize, "bundle": bundle, "export": export}[sys.argv[1]](*sys.argv[2:])
