#!/usr/bin/env python3
"""Test faults of quantised checkpoints: every fault in every form in which codes are stored.

    faults.py GOLDEN FORM...    make each faulty copy of FORM, run fm-rank on it, and fm-pack with the
                                masks of the good one; print the status and message of fm-rank, and those
                                of fm-pack if they differ
    faults.py forms             list the forms
    faults.py twist DIR OUT CASE    a ragged export with one fault; `faults.py twists` lists them

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

import recode
from tensors import config_of, read, write

UP = "model.layers.1.mlp.experts.2.up_proj"
QUERY = "model.layers.1.self_attn.q_proj"

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
    "mixed": ("packed/mixed", QUERY, ".weight", ".weight_scale"),
    "modelopt-mixed": ("packed/modelopt-mixed", QUERY, ".weight", ".weight_scale"),
    "fp8": ("odd-fp8", UP, ".weight", ".weight_scale_inv"),
    "gpt-oss": ("odd-gptoss", "model.layers.1.mlp.experts.down_proj", "_blocks", "_scales"),
    "fused": ("odd-mistral4", "model.layers.1.mlp.experts.gate_up_proj", "", "_scale_inv"),
    "fused-static": ("odd-mistral4", "model.layers.1.mlp.experts.gate_up_proj", "", "_scale_inv"),
    "fused-nvfp4": ("odd-step", "model.layers.1.moe.up_proj", ".weight", ".weight_scale"),
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
            recode.gptoss(golden / path, self.good)
        elif name == "fused-nvfp4":
            recode.inner(golden / path, Path("text"))
            recode.grow("text", "grown", 48)
            recode.resize("grown", "wide", 32)
            recode.quantise("wide", self.good, "mixed-modelopt")
        elif name.startswith("fused"):
            recode.inner(golden / path, Path("text"))
            recode.quantise("text", self.good, "fp8-static" if "static" in name else "fp8:8x4")
        elif name == "gptq":
            recode.gptq(golden / path, self.good)
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
                if group.get(key):
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


def told(**keys):
    return quantization(lambda quant: quant.update(keys))


def untold(key):
    return quantization(lambda quant: quant.pop(key))


def weights(**keys):
    return quantization(lambda quant: quant["config_groups"]["group_0"]["weights"].update(keys))


def targets(name, *entries):
    return quantization(lambda quant: quant["config_groups"][name].update(targets=list(entries)))


def second_scheme(*entries):
    def change(quant):
        groups = quant["config_groups"]
        groups["group_1"] = json.loads(json.dumps(groups["group_0"])) | {"targets": list(entries)}
        groups["group_1"]["weights"]["group_size"] = 16

    return quantization(change)


def layer(module, **says):
    return quantization(lambda quant: quant["quantized_layers"].update({module: says}))


def renamed_layers(rename):
    return quantization(lambda q: q.update(quantized_layers={rename(k): v for k, v in q["quantized_layers"].items()}))


def model(**keys):
    return lambda tensors, config: config.update(keys)


def put(name, dtype, shape, data):
    return lambda tensors, config: tensors.update({name: (dtype, shape, data)})


def copied(old, new):
    return lambda tensors, config: tensors.update({new: tensors[old]})


def typed(name, dtype):
    return lambda tensors, config: tensors.update({name: (dtype, *tensors[name][1:])})


def shaped(name, *shape):
    return reshape(name, lambda old: list(shape))


def coded_norm(tensors, config):
    name = "model.layers.0.input_layernorm.weight"
    tensors[name] = "F8_E4M3", tensors[name][1], tensors[name][2][::2]


def overflow(tensors, config):
    poke(DOWN + "_scales", bytes([254]), 5)(tensors, config)
    poke(DOWN + "_blocks", b"\x77" * 16, 5)(tensors, config)


def coded_head(tensors, config):
    """`ignore` does not list it."""
    del tensors["lm_head.weight"]
    tensors["lm_head.qweight"] = "I32", [4, 64], bytes(1024)
    tensors["lm_head.scales"] = "BF16", [1, 64], b"\x80\x3f" * 64
    tensors["lm_head.qzeros"] = "I32", [1, 8], b"\x77" * 32


def other_zeros(tensors, config):
    """The zero points of v2, and the `checkpoint_format` of v1."""
    config["quantization_config"]["checkpoint_format"] = "gptq"
    for name in [n for n in tensors if n.endswith("qzeros")]:
        tensors[name] = *tensors[name][:2], b"\x88" * len(tensors[name][2])


def unordered(tensors, config):
    config["quantization_config"]["desc_act"] = True
    del tensors[UP + ".g_idx"]


FP8_QUERY, DOWN = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.experts.down_proj"
FP8_SCALE, FACTOR = FP8_QUERY + "_scale_inv", "model.layers.1.moe.up_proj.weight_scale_2"
FUSED, LATENT = "model.layers.1.mlp.experts.gate_up_proj_scale_inv", "model.layers.1.self_attn.q_a_proj.weight_scale_inv"
SPECIAL = {  # form: {fault that only this form can have: function of tensors and config}
    "fp8": {
        "code -NaN": poke(FP8_QUERY, b"\xff", 7),
        "scale too large": poke(FP8_SCALE, struct.pack("<f", 1e36)),
        "scale NaN of a power of two": poke("model.layers.1.mlp.experts.1.up_proj.weight_scale_inv", b"\xff", 3),
        "scale too large of a power of two": poke("model.layers.1.self_attn.o_proj.weight_scale_inv", b"\xfe", 0),
        "scales of a plain weight": lambda t, c: t.update({FP8_QUERY: ("BF16", t[FP8_QUERY][1], bytes(2 * len(t[FP8_QUERY][2])))}),
        "scales of no expert": copied(UP + ".weight_scale_inv", UP.replace("experts.2", "experts.9") + ".weight_scale_inv"),
        "scales of no module": copied(UP + ".weight_scale_inv", "score.weight_scale_inv"),
        "codes of no module": put("score.weight", "F8_E4M3", [3, 4], bytes(12)),
        "a vector of codes": coded_norm,
        "block zero": told(weight_block_size=[0, 128]),
        "block a fraction": told(weight_block_size=[128, 127.5]),
        "block of one size": told(weight_block_size=[128]),
        "block null": told(weight_block_size=None),
        "static activations": told(activation_scheme="static"),
        "E5M2": told(fmt="e5m2"),
        "FP4": told(expert_dtype="fp4"),
        "method compressed-tensors": told(quant_method="compressed-tensors"),
    },
    "gpt-oss": {
        "scale infinite with these codes": overflow,
        "codes flat": shaped(DOWN + "_blocks", 7, 64, 32),
        "scales dtype E8M0": typed(DOWN + "_scales", "F8_E8M0"),
        "codes of attention": copied(DOWN + "_blocks", QUERY + ".weight_blocks"),
        "codes of no layer": copied(DOWN + "_blocks", DOWN.replace("layers.1", "layers.9") + "_blocks"),
        "scales of no module": copied(DOWN + "_scales", "score_scales"),
        "codes and values": put(DOWN, "BF16", [7, 64, 64], bytes(2 * 7 * 64 * 64)),
        "48 channels": model(intermediate_size=48),
        "blocks of 16": told(block_size=16),
        "bias missing": drop(DOWN + "_bias"),
        "router's bias missing": drop("model.layers.3.mlp.router.bias"),
        "sinks missing": drop("model.layers.0.self_attn.sinks"),
        "sinks of two heads": shaped("model.layers.0.self_attn.sinks", 2, 3),
        "attention bias off": model(attention_bias=False),
        "attention bias missing": drop("model.layers.0.self_attn.o_proj.bias"),
    },
    "fused": {
        "a scale for each expert": lambda t, c: t.update({FUSED: (*t[FUSED][:1], [8, 1, 1], t[FUSED][2][:32])}),
        "the scales of an expert less": lambda t, c: t.update({FUSED: (*t[FUSED][:1], [7, 6, 11], t[FUSED][2][: 7 * 66 * 4])}),
        "a scale of the last expert": poke(FUSED, struct.pack("<f", -1), 8 * 66 - 1),
        "blocks of gate and up apart": shaped(FUSED, 16, 3, 11),
        "codes and values": copied("model.norm.weight", FUSED.replace("_scale_inv", ".weight")),
    },
    "fused-static": {
        "the scale of an expert less": lambda t, c: t.update({FUSED: ("BF16", [7, 1, 1], t[FUSED][2][:14])}),
        "the scale of an expert more": lambda t, c: t.update({FUSED: ("BF16", [9, 1, 1], t[FUSED][2] + b"\x80\x3f")}),
        "scales of gate and up": lambda t, c: t.update({FUSED: ("BF16", [8, 2, 1], 2 * t[FUSED][2])}),
        "one scale": lambda t, c: t.update({FUSED: ("BF16", [], t[FUSED][2][:2])}),
        "a scale of the last expert": poke(FUSED, b"\x80\xbf", 7),
        "scales of a plain weight": lambda t, c: t.update({FUSED[:-10]: ("BF16", t[FUSED[:-10]][1], 2 * t[FUSED[:-10]][2])}),
        "scales of no layer": copied(FUSED, FUSED.replace("layers.1", "layers.9")),
        "scales of a matrix": lambda t, c: t.update({LATENT: ("BF16", [1, 2], 2 * t[LATENT][2])}),
        "scale of a matrix infinite": poke(LATENT, b"\x80\x7f", 0),
        "activations of no weight": copied(FUSED.replace("scale_inv", "activation_scale"), "score.activation_scale"),
        "activations of some experts": lambda t, c: t.update({FUSED.replace("scale_inv", "activation_scale"): ("BF16", [3], bytes(6))}),
        "activations missing": drop(FUSED.replace("scale_inv", "activation_scale")),
        "blocks": told(weight_block_size=[8, 4]),
        "dynamic activations": told(activation_scheme="dynamic"),
        "activations of other kinds": told(activation_scheme="table"),
    },
    "fused-nvfp4": {
        "one factor": lambda t, c: t.update({FACTOR: ("F32", [], t[FACTOR][2][:4])}),
        "the factor of an expert less": lambda t, c: t.update({FACTOR: ("F32", [6], t[FACTOR][2][:24])}),
        "a factor of the last expert": poke(FACTOR, struct.pack("<f", -1), 6),
    },
    "fp8-block": {
        "block zero": weights(block_structure=[16, 0]),
        "block huge": weights(block_structure=[1 << 32, 16]),
        "strategy tensor": weights(strategy="tensor"),
        "strategy group": weights(strategy="group", group_size=32),
    },
    "w4a16": {
        "shape wrong": poke(UP + ".weight_shape", b"\x3f", 0),
        "asymmetric": weights(symmetric=False),
        "columns in another order": weights(actorder="group"),
        "eight bits": weights(num_bits=8),
        "another scheme": second_scheme("re:.*up_proj"),
        "another class": second_scheme("Conv1D"),
        "an expression that looks ahead": second_scheme("re:(?!.*experts).*"),
        "an expression too deep": second_scheme("re:" + "(" * 100 + ")" * 100),
        "too many targets": second_scheme(*(f"re:x{i}" for i in range(257))),
        "too many ignored": told(ignore=["lm_head"] + ["re:x"] * 257),
        "odd group": weights(group_size=24),
        "not compressed": told(quantization_status="frozen"),
        "ignored by an expression": told(ignore=["re:.*(router|up_proj)$"]),
    },
    "mixed": {
        "no targets": targets("group_0"),
        "a number as target": targets("group_0", 3),
        "experts in the other scheme": targets("group_0", "re:.*experts.*"),
        "targets elsewhere": targets("group_0", "re:.*q_proj$"),
        "factor of an expert missing": drop(UP + ".weight_global_scale"),
    },
    "nvfp4-modelopt": {
        "ignored by a pattern": told(ignore=["lm_head", "*layers.1.*up_proj"]),
        "algorithm AWQ": told(quant_algo="NVFP4_AWQ"),
        "algorithm FP8": told(quant_algo="FP8"),
    },
    "modelopt-mixed": {
        "layers missing": untold("quantized_layers"),
        "layers empty": told(quantized_layers={}),
        "layers a list": told(quantized_layers=[UP]),
        "a layer a word": quantization(lambda quant: quant["quantized_layers"].update({UP: "NVFP4"})),
        "algorithm of a layer": layer(UP, quant_algo="W4A8_AWQ"),
        "group of a layer": layer(UP, quant_algo="NVFP4", group_size=32),
        "an expert in another format": layer(UP, quant_algo="FP8"),
        "an expert missing": quantization(lambda quant: quant["quantized_layers"].pop(UP)),
        "query in another format": layer(QUERY, quant_algo="MXFP8", group_size=32),
        "output in another format": layer("model.layers.1.self_attn.o_proj", quant_algo="FP8"),
        "a norm listed": layer("model.layers.1.input_layernorm", quant_algo="FP8"),
        "a part that is not read": layer("mtp.layers.0.mlp.experts", quant_algo="FP8_PB_WO", group_size=128),
        "names of a wrapper": renamed_layers(lambda name: name.replace("model.", "model.language_model.", 1)),
        "names outside": renamed_layers(lambda name: "language_model." + name),
        "names of parents": renamed_layers(lambda name: re.sub(r"(experts)\..*", r"\1", name)),
    },
    "gptq": {
        "columns in another order": poke(UP + ".g_idx", b"\1", 4),
        "negative order": poke(UP + ".g_idx", b"\xff", 3),
        "order missing": unordered,
        "asymmetric": poke(UP + ".qzeros", b"\x76", 3),
        "v1 said to be v2": told(checkpoint_format="gptq_v2"),
        "v2 said to be v1": other_zeros,
        "eight bits": told(bits=8),
        "no groups": told(group_size=-1),
        "marlin": told(checkpoint_format="marlin"),
        "zeros missing": drop(UP + ".qzeros"),
        "zeros turned": shaped(UP + ".qzeros", 8, 1),
        "head coded": coded_head,
        "codes flat": shaped(UP + ".qweight", 256),
        "codes and values": put(UP + ".weight", "BF16", [64, 32], bytes(4096)),
    },
}


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
            said = config_of(form.golden / "packed" / other)["quantization_config"]
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
    return made | SPECIAL.get(form.name, {})


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
        tensors, config = dict(form.tensors), config_of(form.good)
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


def twist(directory, out, case):
    """Change one tensor of layer 0's experts, or a key of config.json."""
    name, _, how = case.partition(" ")
    tensors, key = read(directory), f"model.layers.0.mlp.experts.{name}"
    if name in KEYS:
        change = lambda config: KEYS[name][how](config)
    else:
        dtype = tensors[key][0]
        number = {"nan": NAN, "zero": ZERO, "negative": NEGATIVE}.get(how, {}).get(dtype)
        change = lambda config: (poke(key, number, 0) if number else ALTER[how](key))(tensors, config)
    config = config_of(directory)
    change(config)
    write(directory, out, tensors, lambda old: (old.clear(), old.update(config)))


def fewer(name):
    """The tensor without its last row."""

    def spoil(tensors, config):
        dtype, shape, data = tensors[name]
        tensors[name] = dtype, [shape[0] - 1, *shape[1:]], data[: -len(data) // shape[0]]

    return spoil


def wider(config):
    config["fm_widths"][0][0] += 1


ALTER = {"missing": drop, "short": fewer, "type": retype}
KEYS = {
    "codes": {
        "none": lambda config: config["fm_codes"].pop("quantization_config"),
        "other": lambda config: config["fm_codes"].update(
            quantization_config={"quant_method": "fp8", "weight_block_size": [4, 4]}),
        "word": lambda config: config.update(fm_codes=3),
        "absent": lambda config: config.pop("fm_codes"),
    },
    "widths": {"odd": wider},
}  # fmt: skip
TWISTS = [f"{n} {how}" for n in ("gate_up", "gate_up_scale", "down_scale", "down_factor") for how in ALTER]
TWISTS += [f"down_factor {how}" for how in ("nan", "zero", "negative")] + ["gate_up_scale nan"]
TWISTS += [f"{key} {how}" for key in KEYS for how in KEYS[key]]


if __name__ == "__main__":
    if sys.argv[1] in ("forms", "twists"):
        print(*{"forms": FORMS, "twists": TWISTS}[sys.argv[1]], sep="\n")
        sys.exit()
    if sys.argv[1] == "twist":
        sys.exit(twist(*sys.argv[2:]))
    for name in sys.argv[2:]:
        shutil.rmtree("good", ignore_errors=True)
        run(Form(Path(sys.argv[1]), name))
