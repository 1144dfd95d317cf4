#!/usr/bin/env python3
"""Test faults of quantised checkpoints: every fault in every form in which codes are stored.

    faults.py GOLDEN FORM...    make each faulty copy of FORM, run fm-rank on it, and fm-pack with the
                                masks of the good one; print the status and message of fm-rank, and those
                                of fm-pack if they differ
    faults.py forms             list the forms

A tool must report a fault in one sentence and write nothing.  Checkpoints that are accepted are valid by
the format's definition.
"""
import json
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import codes
import mxfp4
from fp8 import read, write

UP = "model.layers.1.mlp.experts.2.up_proj"

# form: checkpoint, module, and the suffixes of its codes and scales
FORMS = {
    "fp8-channel": ("packed/fp8-channel", UP, ".weight", ".weight_scale"),
    "fp8-static": ("packed/fp8-static", UP, ".weight", ".weight_scale"),
    "fp8-block": ("packed/fp8-block", UP, ".weight", ".weight_scale"),
    "w4a16": ("packed/w4a16", UP, ".weight_packed", ".weight_scale"),
    "nvfp4": ("packed/nvfp4", UP, ".weight_packed", ".weight_scale"),
    "nvfp4-modelopt": ("packed/nvfp4-modelopt", UP, ".weight", ".weight_scale"),
    "mxfp4": ("packed/mxfp4", UP, ".weight_packed", ".weight_scale"),
    "mxfp8": ("packed/mxfp8", UP, ".weight", ".weight_scale"),
    "mixed": ("packed/mixed", "model.layers.1.self_attn.q_proj", ".weight", ".weight_scale"),
    "modelopt-mixed": ("packed/modelopt-mixed", "model.layers.1.self_attn.q_proj", ".weight", ".weight_scale"),
    "fp8": ("odd-fp8", UP, ".weight", ".weight_scale_inv"),
    "gpt-oss": ("odd-gptoss", "model.layers.1.mlp.experts.down_proj", "_blocks", "_scales"),
    "gptq": ("packed/w4a16", UP, ".qweight", ".scales"),
}
PACKED = [form for form, (path, *_) in FORMS.items() if path == f"packed/{form}"]

NAN = {"F32": b"\0\0\xc0\x7f", "BF16": b"\xc0\x7f", "F8_E4M3": b"\x7f"}
INFINITE = {"F32": b"\0\0\x80\x7f", "BF16": b"\x80\x7f"}
NEGATIVE = {"F32": b"\0\0\x80\xbf", "BF16": b"\x80\xbf", "F8_E4M3": b"\xb8"}
ZERO = {"F32": bytes(4), "BF16": bytes(2), "F8_E4M3": b"\0"}
MINUS_ZERO = {"F32": b"\0\0\0\x80", "BF16": b"\0\x80", "F8_E4M3": b"\x80"}
RIVAL = {"F32": "I32", "BF16": "I16", "F8_E4M3": "I8", "U8": "F8_E4M3", "I32": "F32", "F8_E8M0": "I8"}


class Form:
    def __init__(self, golden, name):
        path, self.module, self.codes_end, self.scales_end = FORMS[name]
        self.name, self.good = name, Path("good")
        if name == "gpt-oss":
            mxfp4.make(golden / path, self.good)
        elif name == "gptq":
            codes.gptq(golden / path, self.good)
        else:
            write(golden / path, self.good, read(golden / path))
        self.golden, self.tensors = golden, read(self.good)
        self.codes, self.scales = self.module + self.codes_end, self.module + self.scales_end


def poke(name, data, element=1):
    def spoil(tensors, config):
        dtype, shape, old = tensors[name]
        at = element * len(data) if len(old) > len(data) else 0
        tensors[name] = dtype, shape, old[:at] + data + old[at + len(data) :]

    return spoil


def drop(*names):
    return lambda tensors, config: [tensors.pop(name) for name in names]


def half(name):
    """The first half of the rows or, if there is one row, of that row."""

    def spoil(tensors, config):
        dtype, shape, data = tensors[name]
        at = 0 if shape[0] > 1 else 1
        n, size = shape[at] // 2, len(data) // shape[at]
        tensors[name] = dtype, [*shape[:at], n, *shape[at + 1 :]], data[: n * size]

    return spoil


def reshape(name, change):
    def spoil(tensors, config):
        dtype, shape, data = tensors[name]
        tensors[name] = dtype, change(shape), data

    return spoil


def retype(name):
    def spoil(tensors, config):
        dtype, shape, data = tensors[name]
        tensors[name] = RIVAL[dtype], shape, data

    return spoil


def narrow(form, width):
    """Cut all routed experts to their first channels."""

    def spoil(tensors, config):
        whole = config["moe_intermediate_size"]
        config["moe_intermediate_size"] = width
        for name, (dtype, shape, data) in list(tensors.items()):
            if ".mlp.experts." not in name or len(shape) != 2:
                continue
            cut = [-(-n * width // whole) for n in shape]
            rows, row = (cut[0], shape[1]) if ".down_proj" not in name else (shape[0], cut[1])
            size = len(data) // shape[0] // shape[1]
            lines = [data[i * shape[1] * size : (i * shape[1] + row) * size] for i in range(rows)]
            tensors[name] = dtype, [rows, row], b"".join(lines)
        for name, (dtype, shape, data) in list(tensors.items()):
            if ".mlp.experts." in name and name.endswith("weight_shape"):
                sizes = [width if n == whole else n for n in struct.unpack("<2q", data)]
                tensors[name] = dtype, shape, struct.pack("<2q", *sizes)

    return spoil


def quantization(change):
    return lambda tensors, config: change(config["quantization_config"])


def sizes(factor):
    """Declare block and group sizes for which the scales have the wrong shape."""

    def change(quant):
        groups = [g["weights"] for g in quant.get("config_groups", {}).values()] or [quant]
        for group in groups:
            for key in ("block_structure", "weight_block_size"):
                if key in group:
                    group[key] = [int(n * factor) for n in group[key]]
            if group.get("group_size"):
                group["group_size"] = int(group["group_size"] * factor)

    return quantization(change)


def ignored(entry):
    def change(quant):
        key = "modules_to_not_convert" if quant["quant_method"] in ("fp8", "mxfp4") else "ignore"
        quant[key] = [*quant.get(key, []), entry]

    return quantization(change)


def second(tensors, config):
    """Add a second quantization_config under an older key."""
    config["compression_config"] = config["quantization_config"]


def cases(form):
    """{case: function of tensors and config}"""
    made, dtype = {}, form.tensors[form.scales][0]
    made["no fault"] = lambda tensors, config: None
    made["scales missing"] = drop(form.scales)
    if len(form.tensors[form.scales][1]) > 1:
        made["scales short"] = half(form.scales)
        made["scales flat"] = reshape(form.scales, lambda shape: [*shape[:-2], shape[-2] * shape[-1]])
        made["scales turned"] = reshape(form.scales, lambda shape: [*shape[:-2], shape[-1], shape[-2]])
    else:
        made["scales of two"] = lambda t, c: t.update({form.scales: (dtype, [2], 2 * t[form.scales][2])})
    made["scales one dimension more"] = reshape(form.scales, lambda shape: [*shape, 1])
    made["scales dtype"] = retype(form.scales)
    kinds = {"NaN": NAN, "infinite": INFINITE, "zero": ZERO, "minus zero": MINUS_ZERO, "negative": NEGATIVE}
    for kind, value in kinds.items():
        if dtype in value:
            made["scale " + kind] = poke(form.scales, value[dtype])
    if dtype == "U8":
        for byte in (0, 254, 255):
            made[f"scale {byte}"] = poke(form.scales, bytes([byte]))
    made["codes missing"] = drop(form.codes)
    made["codes short"] = half(form.codes)
    made["codes turned"] = reshape(form.codes, lambda shape: [*shape[:-2], shape[-1], shape[-2]])
    made["codes dtype"] = retype(form.codes)
    if form.tensors[form.codes][0] == "F8_E4M3":
        made["code NaN"] = poke(form.codes, b"\x7f")
    made["codes and scales missing"] = drop(form.codes, form.scales)
    for end in (".weight_global_scale", ".weight_scale_2"):
        name = form.module + end
        if name in form.tensors:
            made["factor missing"] = drop(name)
            made["factor dtype"] = retype(name)
            made["factor of two"] = lambda t, c, name=name: t.update({name: ("F32", [2], 2 * t[name][2])})
            for kind, value in kinds.items():
                made["factor " + kind] = poke(name, value["F32"], 0)
    if "gpt-oss" != form.name != "gptq" and form.name != "fp8":
        for width in (63, 40):
            made[f"{width} channels"] = narrow(form, width)
    made["config absent"] = lambda tensors, config: config.pop("quantization_config")
    made["config twice"] = second
    if form.name in PACKED:
        for other in PACKED:
            said = json.loads((form.golden / "packed" / other / "config.json").read_text())["quantization_config"]
            if other != form.name:
                made["config of " + other] = lambda t, c, said=said: c.update(quantization_config=said)
    made["config of half the sizes"] = sizes(0.5)
    made["config of twice the sizes"] = sizes(2)
    made["config with an unknown key"] = quantization(lambda quant: quant.update(fm_unknown=1))
    if form.name != "gptq":
        made["ignored by name"] = ignored(form.module)
        made["ignored by parent"] = ignored(form.module.rpartition(".")[0])
    if form.name not in ("fp8", "gpt-oss", "gptq"):
        made["ignored by expression"] = ignored("*up_proj" if "modelopt" in form.name else "re:.*_proj$")
    return made


def say(*command):
    """The status and the text of standard error, as one line."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    return done.returncode, " | ".join(done.stderr.splitlines())


def run(form):
    rank = ["fm-rank", "-q", "-f", "--precision", "f32", "-o", "ranked", "-t", form.good / "tokens.npy", "-m"]
    train = ["fm-train", "-q", "-f", "--method", "saliency", "--budget-step", "0.3", "--precision", "f32"]
    say(*rank, form.good)
    say(*train, "-t", form.good / "tokens.npy", "-m", form.good, "-o", "masks", "ranked")
    for case, spoil in cases(form).items():
        tensors, config = dict(form.tensors), json.loads((form.good / "config.json").read_text())
        whole = json.dumps(config)
        spoil(tensors, config)
        if case != "no fault" and tensors == form.tensors and json.dumps(config) == whole:
            continue  # no change: a square matrix, or a format without sizes
        write(form.good, "bad", tensors, lambda old: (old.clear(), old.update(config)))
        Path("ranked").unlink(missing_ok=True)
        status, text = say(*rank, "bad")
        if status and Path("ranked").exists():
            text += " (and wrote a file)"
        print(f"{form.name}, {case}: {status} {text or 'accepted'}".replace("fm-rank: bad: ", ""))
        status, packed = say("fm-pack", "-q", "-f", "-T", "1", "-m", "bad", "-o", "none.fm", "masks")
        packed = packed.replace("fm-pack: bad: ", "").replace("fm-pack: model.safetensors: ", "")
        if packed != text.replace("fm-rank: bad: ", ""):
            print(f"    fm-pack: {status} {brief(packed) or 'accepted'}")
        shutil.rmtree("bad")


def brief(text):
    """The message, or one phrase for every message that the masks belong to another checkpoint."""
    return "another checkpoint" if re.search("made from|has digest|not those that were ranked", text) else text


if __name__ == "__main__":
    if sys.argv[1] == "forms":
        print(*FORMS)
        sys.exit()
    for name in sys.argv[2:]:
        shutil.rmtree("good", ignore_errors=True)
        run(Form(Path(sys.argv[1]), name))
