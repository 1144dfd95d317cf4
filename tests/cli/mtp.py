#!/usr/bin/env python3
"""Checkpoints with a layer for multi-token prediction, of golden/ahead, and the scores of its experts.

    mtp.py make GOLDEN NAME TO          odd-NAME with the layer
    mtp.py compare STREAM GOLDEN NAME BATCH
                                    whether the ranking has the golden scores and tokens
    mtp.py others STREAM STREAM     whether the second has all tensors of the first but the layer's
    mtp.py near STREAM STREAM       whether the scores are equal up to rounding
    mtp.py narrow EXPORT MODEL STREAM
                                    whether the experts have the channels that the ranking puts first
    mtp.py damage EXPORT TENSOR     change a byte
    mtp.py spoil MODEL              as the name of the directory says
"""
import json
import math
import shutil
import struct
import sys
from pathlib import Path

from tensors import members, pack, span, unpack


def make(golden, name, to):
    source, to = Path(golden, f"odd-{name}"), Path(to)
    to.mkdir()
    where = {}
    shutil.copy(Path(golden, "ahead", f"{name}.safetensors"), to / "ahead.safetensors")
    shutil.copy(source / "tokens.npy", to)
    for path in [*sorted(source.glob("model*.safetensors")), to / "ahead.safetensors"]:
        file = path.name if path.parent == to else f"a-{path.name}"
        if path.parent != to:
            shutil.copy(path, to / file)
        where |= dict.fromkeys(unpack(path.read_bytes()), file)
    config = json.loads((source / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}, indent=2))
    (to / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def values(tensor, letter):
    data = tensor[2]
    return struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)


def compare(stream, golden, name, batch):
    layer = json.loads(Path(golden, f"odd-{name}", "config.json").read_text())["num_hidden_layers"]
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


def near(a, b):
    a, b = ranking(a), ranking(b)
    scores = [name for name in b if name.endswith(".scores")]
    pairs = [pair for name in scores for pair in zip(values(a[name], "d"), values(b[name], "d"), strict=True)]
    print(len(scores), "layers:", "near" if all(math.isclose(x, y, rel_tol=1e-12) for x, y in pairs) else "differ")


def narrow(export, model, stream):
    """The export's channels are computed here again, with Python's own loops."""
    have, own = (unpack(Path(folder, file).read_bytes()) for folder, file in
                 ((export, "model.safetensors"), (model, "ahead.safetensors")))
    config = json.loads(Path(model, "config.json").read_text())
    layer = config["num_hidden_layers"]
    order, wrong, grown = ranking(stream)[f"layers.{layer}.order"], 0, []
    experts, channels = order[1]
    order = values(order, "i")
    for name, (dtype, shape, data) in own.items():
        if ".experts." not in name:
            same = have[name] == (dtype, shape, data)
            grown += [] if same else [name.rsplit(".", 2)[1]]
            continue
        of = order[int(name.split(".experts.")[1].split(".")[0]) * channels :][:channels]
        kept, width = have[name], json.loads(Path(export, "config.json").read_text())["moe_intermediate_size"]
        down = "down_proj" in name
        old, new = memoryview(data).cast("H"), memoryview(kept[2]).cast("H")
        H = shape[0] if down else shape[1]
        want = [old[h * channels + j] for h in range(H) for j in of[:width]] if down else \
            [x for j in of[:width] for x in old[j * H : (j + 1) * H]]
        wrong += want != list(new) or kept[1] != ([H, width] if down else [width, H])
    print(f"{experts} experts, {channels} -> {width} channels:", f"{wrong} wrong," if wrong else "right,",
          "wider:", *sorted(grown))


def damage(export, name):
    path = Path(export, "model.safetensors")
    data = bytearray(path.read_bytes())
    data[span(bytes(data), name)[0] + 5] ^= 1
    path.write_bytes(data)


def spoil(model):
    path, index = Path(model, "ahead.safetensors"), Path(model, "model.safetensors.index.json")
    tensors, of = unpack(path.read_bytes()), "model.layers.4."
    dtype, shape, data = tensors[of + "enorm.weight"]
    change = Path(model).name
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
    path.write_bytes(pack(tensors))
    table = json.loads(index.read_text())
    files = {name: file for name, file in table["weight_map"].items() if file != path.name}
    index.write_text(json.dumps(table | {"weight_map": files | dict.fromkeys(tensors, path.name)}))


def main():
    word, *rest = sys.argv[1:]
    commands = {x.__name__: x for x in (make, compare, others, near, narrow, damage, spoil)}
    commands[word](*rest)


main()
