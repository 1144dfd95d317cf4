#!/usr/bin/env python3
"""Checkpoints with a layer for multi-token prediction, of golden/ahead, and the scores of its experts.

    mtp.py make GOLDEN NAME TO          odd-NAME with the layer
    mtp.py compare STREAM GOLDEN NAME BATCH
                                    whether the ranking has the golden scores and tokens
    mtp.py others STREAM STREAM     whether the second has all tensors of the first but the layer's
    mtp.py forecast WITH WITHOUT MODEL
                                    whether a dry run counts the layer's weights and work
    mtp.py near STREAM STREAM       whether the scores are equal up to rounding
    mtp.py narrow EXPORT MODEL STREAM
                                    whether the experts have the channels that the ranking puts first
    mtp.py whole EXPORT MODEL       whether the layer is as it was
    mtp.py fuse MODEL TO            the same model with one tensor for all experts of the layer
    mtp.py joined EXPORT FUSED      whether the second has the first's experts of the layer in one tensor
    mtp.py coded EXPORT MODEL STREAM
                                    whether the layer has the values of a quantised model's, of the channels that
                                    the ranking puts first
    mtp.py damage EXPORT TENSOR     change a byte
    mtp.py spoil MODEL              as the name of the directory says
"""
import json
import math
import re
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from codes import decoded, numbers, plain_tensors, words
from tensors import members, pack, read, span, unpack


def make(golden, name, to):
    source, to = Path(golden, f"odd-{name}"), Path(to)
    to.mkdir()
    where = {}
    shutil.copy(Path(golden, "ahead", f"{name}.safetensors"), to / "ahead.safetensors")
    shutil.copy(source / "tokens.npy", to)
    for path in [*sorted(source.glob("model*.safetensors")), to / "ahead.safetensors"]:
        file = path.name if path.parent == to else f"a-{path.name}"
        tensors = unpack(path.read_bytes())
        if path.parent != to:
            tensors = {n: x for n, x in tensors.items() if not n.startswith("mtp.")}
            (to / file).write_bytes(pack(tensors))
        where |= dict.fromkeys(tensors, file)
    config = json.loads((source / "config.json").read_text())
    said = {} if "text_config" in config else {"num_nextn_predict_layers": 1}
    (to / "config.json").write_text(json.dumps(config | said, indent=2))
    (to / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def config_of(folder):
    config = json.loads(Path(folder, "config.json").read_text())
    return config.get("text_config", config)


def values(tensor, letter):
    data = tensor[2]
    return struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)


def compare(stream, golden, name, batch):
    layer = config_of(Path(golden, f"odd-{name}"))["num_hidden_layers"]
    ours = unpack(members(stream)["ranking.safetensors"])
    want = unpack(Path(golden, "ahead", f"{name}.golden.safetensors").read_bytes())
    experts, channels = ours[f"layers.{layer}.scores"][1]
    a, b = values(ours[f"layers.{layer}.scores"], "d"), values(want[f"rank{batch}.scores"], "d")
    error = 0.0
    for e in range(experts):
        at = slice(e * channels, (e + 1) * channels)
        scale = math.sqrt(sum(x * x for x in b[at]))
        error = max(error, math.dist(a[at], b[at]) / scale if scale else float(any(a[at])))
    losses = values(want[f"rank{batch}.losses"], "d")
    manifest = json.loads(members(stream)["manifest.json"])
    ce = manifest["history"][0]["result"]["extra_ce"]
    print(f"{name}, batches of {batch}: scores", "within 1e-4," if error <= 1e-4 else f"off by {error:.3g},",
          "loss", "within 1e-5," if abs(ce - sum(losses) / len(losses)) <= 1e-5 * ce else f"{ce},",
          "tokens", "equal" if ours[f"layers.{layer}.tokens"][2] == want["rank.tokens"][2] else "differ")


def ranking(stream):
    return unpack(members(stream)["ranking.safetensors"])


def others(stream, without):
    have, want = ranking(stream), ranking(without)
    print("the other layers:", "same" if all(have[name] == x for name, x in want.items()) else "differ",
          len(have) - len(want), "more")


def forecast(with_, without, model):
    """The layer's tensors without the three that combine, the embedding and the head are read once.  FLOPs are at
    least those of head and experts: forward, gradients at their inputs, and at the experts' weights."""
    have, had = (json.loads(Path(path).read_text()) for path in (with_, without))
    config, tensors = json.loads(Path(model, "config.json").read_text()), {}
    for path in sorted(Path(model).glob("*.safetensors")):
        tensors |= unpack(path.read_bytes())
    layer = f"model.layers.{config['num_hidden_layers']}."
    joint = [layer + name + ".weight" for name in ("eh_proj", "enorm", "hnorm")]
    read = [name for name in tensors if name.startswith(layer) and name not in joint]
    read = sum(len(tensors[name][2]) for name in [*read, "model.embed_tokens.weight", "lm_head.weight"])
    H, I, K = (config[key] for key in ("hidden_size", "moe_intermediate_size", "num_experts_per_tok"))
    tokens = had["tokens_used"] / 67 * 66
    least = tokens * (2 * 2 * H * config["vocab_size"] + (1 + 1 / 3 + 1) * K * 6 * H * I)
    more = have["flops"] - had["flops"]
    print("forecast:", "its weights," if have["read"] - had["read"] == read else "other weights,",
          "its work" if least < more < 4 * least else f"{more} instead of {least} or more")


def near(a, b):
    a, b = ranking(a), ranking(b)
    scores = [name for name in b if name.endswith(".scores")]
    pairs = [pair for name in scores for pair in zip(values(a[name], "d"), values(b[name], "d"), strict=True)]
    print(len(scores), "layers:", "near" if all(math.isclose(x, y, rel_tol=1e-12) for x, y in pairs) else "differ")


def narrow(export, model, stream):
    """The export's channels are computed here again, with Python's own loops."""
    have, own = (unpack(Path(folder, file).read_bytes()) for folder, file in
                 ((export, "model.safetensors"), (model, "ahead.safetensors")))
    layer = config_of(model)["num_hidden_layers"]
    order, wrong, grown = ranking(stream)[f"layers.{layer}.order"], 0, []
    experts, channels = order[1]
    order = values(order, "i")
    for name, (dtype, shape, data) in own.items():
        if ".experts." not in name:
            same = have[name] == (dtype, shape, data)
            grown += [] if same else [name.rsplit(".", 2)[1]]
            continue
        of = order[int(name.split(".experts.")[1].split(".")[0]) * channels :][:channels]
        kept, width = have[name], config_of(export)["moe_intermediate_size"]
        down = "down_proj" in name
        old, new = memoryview(data).cast("H"), memoryview(kept[2]).cast("H")
        H = shape[0] if down else shape[1]
        want = [old[h * channels + j] for h in range(H) for j in of[:width]] if down else \
            [x for j in of[:width] for x in old[j * H : (j + 1) * H]]
        wrong += want != list(new) or kept[1] != ([H, width] if down else [width, H])
    print(f"{experts} experts, {channels} -> {width} channels:", f"{wrong} wrong," if wrong else "right,",
          "wider:", *sorted(grown))


def whole(export, model):
    have, own = (unpack(Path(*place).read_bytes())
                 for place in ((export, "model.safetensors"), (model, "ahead.safetensors")))
    print(f"{export}:", len(own), "tensors,", "as they were" if own.items() <= have.items() else "changed")


def join(tensors):
    """One tensor for gate and up, and one for down, of all experts."""
    out, rows = {n: t for n, t in tensors.items() if ".experts." not in n}, {}
    for name, (dtype, shape, data) in tensors.items():
        if name not in out:
            of, e, part = re.fullmatch(r"(.*\.experts\.)(\d+)\.(.*)_proj\.weight", name).groups()
            rows[of, int(e), part] = dtype, shape, data
    for of in {key[0] for key in rows}:
        experts = range(1 + max(key[1] for key in rows))
        for name, parts in (("gate_up_proj", ("gate", "up")), ("down_proj", ("down",))):
            dtype, (n, columns), _ = rows[of, 0, parts[0]]
            data = b"".join(rows[of, e, part][2] for e in experts for part in parts)
            out[of + name] = dtype, [len(experts), len(parts) * n, columns], data
    return out


def fuse(model, to):
    shutil.copytree(model, to)
    path, index = Path(to, "ahead.safetensors"), Path(to, "model.safetensors.index.json")
    tensors, table = join(unpack(path.read_bytes())), json.loads(index.read_text())
    path.write_bytes(pack(tensors))
    files = {name: file for name, file in table["weight_map"].items() if file != path.name}
    index.write_text(json.dumps(table | {"weight_map": files | dict.fromkeys(tensors, path.name)}))


def joined(export, fused):
    have, want = ({n: t for n, t in read(path).items() if n.startswith("mtp.")} for path in (fused, export))
    print(len(have), "tensors,", "the same experts" if have == join(want) else "others")


def picked(shape, x, order, down):
    """The rows of a matrix, or the columns of down, in that order."""
    rows = [x[i : i + shape[1]] for i in range(0, len(x), shape[1])]
    return [row[i] for row in rows for i in order] if down else [v for i in order for v in rows[i]]


def coded(export, model, stream):
    """Codes are decoded here again.  Exports without codes have these values rounded to BF16."""
    layer, plain = config_of(model)["num_hidden_layers"], "quantization_config" not in config_of(export)
    with tempfile.TemporaryDirectory() as folder:
        only = [Path(folder, name) for name in ("have", "want")]
        for source, to in zip((export, model), only):
            to.mkdir()
            shutil.copy(Path(source, "config.json"), to)
            found = {n: t for n, t in read(source).items() if n.startswith(f"model.layers.{layer}.")}
            (to / "model.safetensors").write_bytes(pack(found))
        have, want, stored = *(plain_tensors(x, "F32") for x in only), decoded(only[1])
    order = ranking(stream)[f"layers.{layer}.order"]
    channels, of, wrong, codes = order[1][1], values(order, "i"), [], 0
    for name, (_, shape, _) in want.items():
        down, x, (_, grown, y) = "down_proj" in name, numbers(want[name]), have[name]
        codes += name in stored and not plain
        if plain and name in stored:
            x = numbers(("BF16", shape, words("BF16", x)))
        if ".experts." in name:
            first = channels * int(name.split(".experts.")[1].split(".")[0])
            x = picked(shape, x, of[first : first + grown[down]] if grown != shape else range(shape[down]), down)
        y = numbers(have[name])
        if ".shared_experts." in name and grown != shape:
            y = picked(grown, y, range(shape[down]), down)
        wrong += [name] if x != y else []
    kept = [t[0] for n, t in read(export).items() if n.startswith(f"model.layers.{layer}.mlp.experts.0.")]
    print(f"{len(wrong)} wrong," if wrong else "right,", f"{codes} with codes,", *sorted(set(kept)))


def damage(export, name):
    path = Path(export, "model.safetensors")
    data = bytearray(path.read_bytes())
    data[span(bytes(data), name)[0] + 5] ^= 1
    path.write_bytes(data)


def spoil(model):
    path, index = Path(model, "ahead.safetensors"), Path(model, "model.safetensors.index.json")
    path = path if path.exists() else Path(model, "model.safetensors")
    tensors, of = unpack(path.read_bytes()), "model.layers.4."
    dtype, shape, data = tensors[of + "enorm.weight"]
    change = Path(model).name
    scales = of + "mlp.experts.2.up_proj.weight_scale_inv"
    if change == "missing-enorm":
        del tensors[of + "enorm.weight"]
    elif change == "missing-expert":
        del tensors[of + "mlp.experts.7.up_proj.weight"]
    elif change == "missing-norm":
        del tensors[of + "shared_head.norm.weight"]
    elif change == "shape":
        tensors[of + "eh_proj.weight"] = (dtype, [shape[0], shape[0]], bytes(2 * shape[0] ** 2))
    elif change == "dtype":
        tensors[of + "enorm.weight"] = ("F8_E4M3", shape, bytes(shape[0]))
    elif change == "infinite":
        tensors[of + "enorm.weight"] = (dtype, shape, b"\x80\x7f" + data[2:])
    elif change == "second":
        tensors |= {name.replace(of, "model.layers.5."): x for name, x in tensors.items()}
    elif change == "unscaled":
        del tensors[scales]
    elif change == "coarse":
        dtype, shape, data = tensors[scales]
        tensors[scales] = (dtype, [1, *shape[1:]], data[: len(data) // shape[0]])
    path.write_bytes(pack(tensors))
    if not index.exists():
        return
    table = json.loads(index.read_text())
    files = {name: file for name, file in table["weight_map"].items() if file != path.name}
    index.write_text(json.dumps(table | {"weight_map": files | dict.fromkeys(tensors, path.name)}))


def main():
    word, *rest = sys.argv[1:]
    commands = {x.__name__: x for x in (make, compare, others, forecast, near, narrow, whole, fuse, joined, coded, damage, spoil)}
    commands[word](*rest)


main()
