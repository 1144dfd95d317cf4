#!/usr/bin/env python3
"""Compare the weights of bundles and exports with the definitions of codes.py.

These compare bytes of a quantised checkpoint MODEL with those kept in a bundle or an export DIR:

    compare.py bundle MODEL BUNDLE      channels are permuted in whole groups, and no byte changes
    compare.py export MODEL BUNDLE DIR  a uniform export has the first channels in the bundle's order
    compare.py blank MODEL BUNDLE DIR   a padded export has them, too, followed by codes of zero
    compare.py flat MODEL BUNDLE DIR [PLAIN]   a native, ragged, elastic or layer export has the first groups of
                                        every expert, expert after expert; everything else is as in the
                                        checkpoint, or as in PLAIN, an export of values

These compare values:

    compare.py values MODEL BUNDLE      a bundle has the decoded values, rounded once to BF16
    compare.py blocks MODEL DIR         gpt-oss: gate and up of DIR have MODEL's values, in any order of channels

These compare experts that fm-pack --weights rounded with PLAIN, an export of values with the same widths:

    compare.py rounded PLAIN DIR        of a uniform export
    compare.py rounded-flat PLAIN DIR   of a ragged, elastic or layer export
"""
import json
import re
import struct
import sys
from pathlib import Path

from codes import decoded, encoded, numbers, share, words
from recode import cut
from tensors import config_of, members, read, unpack

ROUTED = r"\S*(?:(?<!shared_)experts|moe)\."
GATE, UP, DOWN = ("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")


def layer_files(files):
    """[(number of the layer, its tensors, {last part of a tensor's name: tensor})]"""
    layers = [(int(re.search(r"\d+", f)[0]), unpack(files[f])) for f in sorted(files) if f.startswith("weights/layers-")]
    return [(layer, {k.split(".")[-1]: t for k, t in found.items()}) for layer, found in layers]


def orders_of(files):
    """The channels of all experts in ranked order, as one list, and (M, E, I)."""
    ranking = unpack(files["ranking.safetensors"])
    orders = sorted((int(re.search(r"\d+", k)[0]), v) for k, v in ranking.items() if k.endswith("order"))
    M, (E, I) = len(orders), orders[0][1][1]
    return struct.unpack(f"<{M * E * I}i", b"".join(v[2] for _, v in orders)), (M, E, I)


def export_of(directory):
    return json.loads((Path(directory) / "fm-export.json").read_text())


def differs(name, what=""):
    sys.exit(f"{name} differs{what}")


# --- how bundles and flat exports store an expert ----------------------------------------------------
def put(order, items, group):
    """Put items of `group` channels each into the given order."""
    return b"".join(items[order[i] // group] for i in range(0, len(order), group))


def joined_rows(gate, up, order, I):
    """The rows of gate and up alternate, in ranked order; a row of scales may belong to several channels."""
    items = [g + u for g, u in zip(gate, up)]
    return put(order, items, I // len(items))


def turned_columns(rows, order, I, G):
    """Down is transposed in G groups of channels, which stay whole."""
    pieces = [cut(r, G) for r in rows]
    return put(order, [b"".join(p[i] for p in pieces) for i in range(G)], I // G)


def rows_of(tensor, fused, e):
    """The rows of a matrix; if all experts are in one tensor, those of expert e."""
    _, shape, data = tensor
    if fused:
        return cut(cut(data, shape[0])[e], shape[1])
    return cut(data, shape[0] if shape else 1)


def is_halves(name):
    """Whether an expert's gate rows come before its up rows."""
    return "gate_up" in name and not name.endswith(("_blocks", "_scales"))


def matrices(name, tensor, e, E):
    """[(expert, rows)] of the matrices in a tensor of expert e or, if e is None, of all experts."""
    experts = range(E) if e is None else [e]
    rows = [(n, rows_of(tensor, e is None, n)) for n in experts]
    return [(n, half) for n, x in rows for half in (cut(x, 2) if is_halves(name) else [x])]


# --- codes of a checkpoint ---------------------------------------------------------------------------
class Source:
    def __init__(self, model):
        self.tensor = read(model)
        self.used = set()

    def planes(self, layer, e, of):
        """[(name, rows)] of the codes, then of their scales, of gate, up, down or gate_up."""
        found = []
        for name in sorted(self.tensor):
            ends = r"|_blocks|_scales|_scale_inv|\.\w+"
            m = re.search(rf"^model\.layers\.{layer}\.{ROUTED}(?:(\d+)\.)?(\w+?)({ends})$", name)
            codes = m and m[3] in ("", "_blocks", ".weight", ".weight_packed")
            scales = m and m[3] in ("_scales", "_scale_inv", ".weight_scale", ".weight_scale_inv")
            if not (codes or scales) or m[2] not in of or (m[1] and int(m[1]) != e):
                continue
            self.used.add(name)
            found.append((not codes, name, rows_of(self.tensor[name], m[1] is None, e)))
        return [f[1:] for f in sorted(found)]

    def part(self, layer, e, order, parts, I):
        """What a bundle must store for an expert: {last part of a tensor's name: bytes}."""
        G, want = parts["down"][1][1], {}
        gate, up, both = (self.planes(layer, e, of) for of in (GATE, UP, ("gate_up_proj",)))
        halves = [((n,), cut(x, 2) if is_halves(n) else (x[0::2], x[1::2])) for n, x in both]
        halves = halves or [((a, b), (g, u)) for (a, g), (b, u) in zip(gate, up)]
        down = [((n,), x) for n, x in self.planes(layer, e, DOWN)]
        planes = [*zip(("gate_up", "gate_up_scale"), halves), *zip(("down", "down_scale"), down)]
        for key, (names, x) in planes:
            if key not in parts:
                self.used.difference_update(names)
            elif "down" in key:
                want[key] = turned_columns(x, order, I, G)
            else:
                want[key] = joined_rows(*x, order, I)
        return want

    def apart(self, layer, e, E, of, parts, key):
        """[(end of the name in a flat export, bytes)] of what belongs to no channel of a matrix of an expert."""
        for name in self.tensor:
            m = re.search(rf"^model\.layers\.{layer}\.{ROUTED}(?:(\d+)\.)?(\w+?)\.?(weight_\w+|_scale_inv)$", name)
            if not m or m[2] not in of or (m[1] and int(m[1]) != e):
                continue
            data = self.tensor[name][2] if m[1] else share(self.tensor[name][2], E, e)
            if m[3] in ("weight_global_scale", "weight_scale_2"):
                yield "_factor", data
            elif m[3] in ("weight_scale", "weight_scale_inv", "_scale_inv") and key + "_scale" not in parts:
                yield "_scale", data


def bundle(model, path):
    source, files = Source(model), members(path)
    manifest = json.loads(files["manifest.json"])["model"]
    order, (M, E, I) = orders_of(files)
    done = 0
    for m, (layer, parts) in enumerate(layer_files(files)):
        for e in range(E):
            at = (m * E + e) * I
            for key, data in source.part(layer, e, order[at : at + I], parts, I).items():
                if cut(parts[key][2], E)[e] != data:
                    differs(f"layer {layer}, expert {e}: {key}")
                done += 1
    rest = unpack(files["weights/rest.safetensors"])
    for name, t in source.tensor.items():
        if name in source.used or "experts" in name and name.endswith("bias"):
            continue
        if rest.get(name) != t:
            differs(name)
        done += 1
    print(f"storage {manifest['storage']}, scales {manifest['scales']}: {done} planes and tensors are the checkpoint's")
    return source, order, (M, E, I), [I // parts["down"][1][1] for _, parts in layer_files(files)]


def keep(x, mask, down, group, I):
    """Keep these channels in the rows of a matrix of codes or scales."""
    if down:
        return b"".join(put(mask, cut(r, I // group), group) for r in x)
    if len(x) >= I:
        r = len(x) // I
        return b"".join(b"".join(x[c * r : c * r + r]) for c in mask)
    return put(mask, x, I // len(x))


def grown(have, tensor, scales):
    """Widen a matrix of a shared expert: codes are followed by zeros, scales by copies of the last one."""
    dtype, (n, k), data = tensor
    rows_, size = [cut(r, k) for r in cut(data, n)], len(data) // n // k
    zero = (b"\x88" if dtype == "I32" else b"\0") * size
    wide = [r + [r[-1] if scales else zero] * (have[1][1] - k) for r in rows_]
    wide += [[wide[-1][-1] if scales else zero] * have[1][1]] * (have[1][0] - n)
    return b"".join(b"".join(r) for r in wide)


def place(name, moe):
    """(index among the layers with experts, expert or None, whether it is down)"""
    expert = re.search(r"experts\.(\d+)\.", name)
    down = re.search(r"\.(down_proj|w2)\b|\.down_proj_", name) is not None
    return moe.index(int(re.search(r"layers\.(\d+)\.", name)[1])), int(expert[1]) if expert else None, down


def moe_layers(source):
    return sorted({int(m[1]) for n in source.used if (m := re.search(r"layers\.(\d+)\.", n))})


def export(model, path, directory):
    source, order, (M, E, I), group = bundle(model, path)
    config, have, moe, done = config_of(directory), read(directory), moe_layers(source), 0
    k = config.get("moe_intermediate_size", config.get("intermediate_size"))
    for name, t in source.tensor.items():
        if "experts" in name and name.endswith("bias"):
            continue
        want = t[2]
        if name in source.used:
            layer, e, down = place(name, moe)
            first = lambda n: order[(layer * E + n) * I :][:k]
            want = b"".join(keep(x, first(n), down, group[layer], I) for n, x in matrices(name, t, e, E))
        elif "shared_expert" in name and name.endswith("weight_shape"):
            rows, words_ = have[name.replace("_shape", "_packed")][1]
            want = struct.pack("<2q", rows, 8 * words_)
        elif "experts" in name and name.endswith("weight_shape"):
            want = struct.pack("<2q", *(k if n == I else n for n in struct.unpack("<2q", t[2])))
        elif "shared_expert" in name and have[name][1] != t[1]:
            want, t = grown(have[name], t, "scale" in name), have[name]
        if have[name][0] != t[0] or have[name][2] != want:
            differs(name, " in the export")
        done += 1
    if config["quantization_config"] != config_of(model)["quantization_config"]:
        differs("quantization_config")
    print(f"width {k} of {I}: {done} tensors of the export are codes of the checkpoint")


def blank(model, path, directory):
    """Each expert has its first channels in the bundle's order, then codes of zero; and the scales of all
    channels in that order."""
    source, order, (M, E, I), group = bundle(model, path)
    widths, moe, have, done = export_of(directory)["widths"], moe_layers(source), read(directory), 0
    for name in source.used:
        layer, e, down = place(name, moe)
        t, codes, want = have[name], not name.endswith(("_scale", "_scale_inv")), b""
        if t[:2] != source.tensor[name][:2]:
            sys.exit(f"{name} has another type or shape in the export")
        zero = b"\x88" if name.endswith("_packed") and t[0] == "I32" else b"\0"
        for n, x in matrices(name, source.tensor[name], e, E):
            k = widths[moe[layer]][n] if codes else I
            lines = cut(keep(x, order[(layer * E + n) * I :][:k], down, group[layer], I), len(x) if down else 1)
            each = sum(map(len, x)) // len(lines)
            want += b"".join(line + zero * (each - len(line)) for line in lines)
        if t[2] != want:
            differs(name, " in the export")
        done += codes
    print(f"{done} tensors of codes, zero from the width on")


def flat(model, path, directory, plain=None):
    source, order, (M, E, I), _ = bundle(model, path)
    export, have, done = export_of(directory), read(directory), 0
    native = export["layout"] == "native"
    for m, (layer, parts) in enumerate(layer_files(members(path))):
        want = {}
        for e, k in enumerate(export["widths"][layer]):
            at = (m * E + e) * I
            for key, data in source.part(layer, e, order[at : at + k], parts, I).items():
                want[key] = want.get(key, b"") + data
            for key, of in () if native else (("gate_up", GATE), ("gate_up", UP), ("down", DOWN)):
                for end, data in source.apart(layer, e, E, (*of, key + "_proj"), parts, key):
                    want[key + end] = want.get(key + end, b"") + data
        prefix = f"layers.{layer}." if native else f"model.layers.{layer}.mlp.experts."
        for key, data in want.items():
            if have.pop(prefix + key)[2] != data:
                differs(prefix + key)
            done += 1
    print(f"{done} tensors of {export['layout']} are codes and scales of the checkpoint")
    if plain:
        rest = {n: t for n, t in read(plain).items() if not re.search(r"\.experts\.(gate_up|down)$", n)}
    else:
        rest = {n: t for n, t in source.tensor.items() if n not in source.used and not n.endswith("experts.gate_up_proj_bias")}
        for n, t in rest.items():
            if m := re.search(r"layers\.(\d+)\..*(?<!shared_)experts\.(\d+)\.\w+\.weight_shape$", n):
                k = export["widths"][int(m[1])][int(m[2])]
                rest[n] = t[0], t[1], struct.pack("<2q", *(k if x == I else x for x in struct.unpack("<2q", t[2])))
    biases = {n for n in have if n.endswith(("bias_gate_up", ".gate_up_bias"))}
    for name in sorted((rest.keys() | have.keys()) - biases):
        if rest.get(name) != have.get(name):
            differs(name)
    print("the rest is", "that of an export of values" if plain else "the checkpoint's")


# --- values ------------------------------------------------------------------------------------------
def values(model, path):
    tensors, coded, files, wrong, seen = read(model), decoded(model), members(path), 0, 0
    bf16 = lambda name: words("BF16", coded[name][1]) if name in coded else tensors[name][2]

    for name, (dtype, shape, data) in unpack(files["weights/rest.safetensors"]).items():
        seen += 1
        wrong += dtype not in ("BF16", tensors[name][0]) or data != bf16(name)
    order, (M, E, I) = orders_of(files)
    for m, (layer, parts) in enumerate(layer_files(files)):
        for key in ("gate_up", "down"):
            want = b""
            for e in range(E):
                mine = order[(m * E + e) * I : (m * E + e + 1) * I]
                rows = {}
                for name, (_, shape, _) in tensors.items():
                    if m_ := re.search(rf"^model\.layers\.{layer}\.{ROUTED}(?:{e}\.)?(\w+_proj|w\d)(?:\.weight)?$", name):
                        rows[m_[1]] = rows_of((None, shape, bf16(name)), len(shape) == 3, e)
                if both := rows.get("gate_up_proj"):
                    rows["gate_proj"], rows["up_proj"] = cut(both, 2)
                gate, up, down = (next(rows[x] for x in of if x in rows) for of in (GATE, UP, DOWN))
                want += joined_rows(gate, up, mine, I) if key == "gate_up" else turned_columns(down, mine, I, I)
            seen += 1
            wrong += parts[key][2] != want
    print(f"{seen} tensors, {wrong} differ from the definition")


def blocks(model, directory):
    a, b = decoded(model), decoded(directory)
    names = [n for n in a if n.endswith("gate_up_proj")]
    for name in names:
        if a[name][0] != b[name][0] or sorted(a[name][1]) != sorted(b[name][1]):
            sys.exit(f"{name} has other values")
    print(f"{len(names)} tensors of blocks have the values of the original")


# --- rounded -----------------------------------------------------------------------------------------
def rounded(plain, directory):
    have, from_ = read(directory), read(plain)
    name, quantisation = export_of(directory)["weights"], config_of(directory)["quantization_config"]
    ignored = quantisation.get("ignore", quantisation.get("modules_to_not_convert"))
    done = 0
    for weight, tensor in from_.items():
        base = weight.removesuffix("weight")
        if ".experts." not in weight:
            if have.pop(weight) != tensor:
                differs(weight)
            if len(tensor[1]) == 2 and "embed" not in weight and base[:-1] not in ignored:
                sys.exit(f"{weight} is not in the list of what stays")
            continue
        own = base.split(".")[-2]
        parts = [own] if own == "down_proj" else ["gate_proj", "up_proj"]
        both = max(max(map(abs, numbers(from_[weight.replace(own, p)]))) for p in parts)
        for end, want in encoded(name, tensor[0], numbers(tensor), *tensor[1], both).items():
            got = have.pop(base + end, None)
            if got != want:
                bad = sum(a != b for a, b in zip(got[2], want[2])) if got else 0
                sys.exit(f"{base + end}: {got and got[:2]}, {want[:2]}, {bad} bytes differ")
            done += 1
    if have:
        sys.exit(f"{sorted(have)[0]} does not belong there")
    print(f"{name}: {done} tensors equal the rounded values, {len(ignored)} modules are unchanged")


def planes_of(made):
    """Codes, scales and second scale, if there is one, of a quantised matrix."""
    order = ("weight", "weight_packed"), ("weight_scale", "weight_scale_inv"), ("weight_scale_2", "weight_global_scale")
    return [made[end] for ends in order for end in ends if end in made]


def flat_expert(name, dtype, matrices, both, k, group):
    """One expert's gate and up, or its down, quantised as a flat export stores them: {end of the name: bytes}."""
    made = [planes_of(encoded(name, dtype, w, rows, columns, both)) for w, rows, columns in matrices]
    out = {"_factor": b"".join(m[2][2] for m in made)} if len(made[0]) > 2 else {}
    for i, end in enumerate(("", "_scale")):
        rows = [rows_of(m[i], False, 0) for m in made]
        if len(made) == 2:
            out[end] = joined_rows(*rows, range(k), k)
        elif end and made[0][i][1][1] == 1 and k > group:  # one per row, independent of channels
            out[end] = made[0][i][2]
        else:
            out[end] = turned_columns(rows[0], range(k), k, k // group)
    return out


def rounded_flat(plain, directory):
    have, from_, export = read(directory), read(plain), export_of(directory)
    if export_of(plain)["widths"] != export["widths"]:
        sys.exit("the other export has other widths")
    config, done = config_of(directory), 0
    name, group, H = export["weights"], config["fm_codes"]["group"], config["hidden_size"]
    for weight, tensor in from_.items():
        part = weight.rpartition(".")[2]
        if part not in ("gate_up", "down"):
            if have.pop(weight) != tensor:
                differs(weight)
            continue
        x, want, at = numbers(tensor), {}, 0
        for k in export["widths"][int(weight.split(".")[2])]:
            w = x[at * H : (at + (2 * k if part == "gate_up" else k)) * H]
            at += len(w) // H
            if part == "gate_up":
                rows = [w[i : i + H] for i in range(0, len(w), H)]
                matrices = [([v for r in rows[s::2] for v in r], k, H) for s in (0, 1)]
            else:
                matrices = [([w[c * H + r] for r in range(H) for c in range(k)], H, k)]
            for end, data in flat_expert(name, tensor[0], matrices, max(map(abs, w)), k, group).items():
                want[end] = want.get(end, b"") + data
        for end, data in want.items():
            if have.pop(weight + end)[2] != data:
                differs(weight + end)
            done += 1
    if have:
        sys.exit(f"{sorted(have)[0]} does not belong there")
    print(f"{export['layout']}, {name}: {done} tensors equal the rounded values")


if __name__ == "__main__":
    commands = bundle, export, blank, flat, values, blocks, rounded, rounded_flat
    {f.__name__.replace("_", "-"): f for f in commands}[sys.argv[1]](*sys.argv[2:])
