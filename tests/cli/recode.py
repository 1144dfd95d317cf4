#!/usr/bin/env python3
"""Make checkpoints with quantised weights, by the definitions of codes.py.

    recode.py plain MODEL OUT [DTYPE]      decode all codes to F32, or to BF16
    recode.py quantise MODEL OUT KIND      encode the matrices of a BF16 or F16 model; the kinds are
                                             fp8:RxC          DeepSeek's FP8 in blocks: all matrices of layers
                                             fp8-routers:RxC  the same, routers included
                                             fp8-experts:RxC  of routed experts only, as in Step-3.5-Flash
                                             fp8-ct:RxC       the same as compressed-tensors writes it
                                             fp8-static       one scale per matrix, as in Mistral-Small-4
                                             fp8-modelopt     ModelOpt's FP8, one scale per matrix
                                             mixed-modelopt   the same, and routed experts in NVFP4
                                             mxfp8            MiniMax's MXFP8
                                             w4a16:G          experts in compressed-tensors' INT4, groups of G
    recode.py fuse MODEL OUT PLAIN RxC [mxfp4]   FP8 in blocks, with q, k and v in one tensor of chunks, as MiMo-V2.5;
                                           experts in MXFP4, as MiMo-V2.6; PLAIN gets the values in F32, apart
    recode.py gptq MODEL OUT [v2]          store W4A16 in GPTQ's format
    recode.py awq MODEL OUT                store W4A16 in AWQ's format, with other zero points
    recode.py join MODEL OTHER EXPRESSION OUT   take matching modules from OTHER, for a mixture of schemes
    recode.py ease MODEL EXPRESSION OUT    store matching modules in BF16, and ignore them
    recode.py inner MODEL OUT              the text part of a wrapper
    recode.py apart MODEL OUT              the same with a tensor for each matrix of an expert, for Gemma 4
    recode.py resize MODEL OUT I           experts of I channels, repeating the first ones if there were fewer;
                                           shared experts get n_shared_experts times I channels
    recode.py grow MODEL OUT H             a hidden size of H, repeating the first elements
    recode.py gptoss MODEL OUT             gpt-oss in MXFP4, from a fixed seed: MODEL's shapes except 64 channels
                                           and a hidden size of 64
    recode.py qwen3 OUT DTYPE              a small Qwen3-MoE, F32, F16 or BF16, with blocks that are hard to round
"""
import json
import math
import random
import re
import shutil
import struct
import sys
from pathlib import Path

from codes import AWQ, decoded, encoded, integers, matrix, numbers, plain, plain_tensors, share, words
from tensors import config_of, pack, read, write


def cut(data, n):
    """Cut data into n equal pieces."""
    return [share(data, n, i) for i in range(n)]


# --- formats ----------------------------------------------------------------------------------------
ROUTED, EXPERTS = re.compile(r"\.((?<!shared_)experts|moe)\."), re.compile(r"experts\.")
WEIGHTS = {"fp8": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block"},
           "w4a16": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"}}  # fmt: skip


def compressed_tensors(form, ignore, **weights):
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ignore,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}  # fmt: skip


def stacked(form, tensor, x, pair):
    """Encode a matrix, or a stack of one for each expert.  `pair` has the values of all matrices that share a
    second scale."""
    dtype, (*E, rows, columns), _ = tensor
    both = [max(map(abs, (v for one in ones for v in one))) for ones in zip(*(cut(p, *(E or [1])) for p in pair or [x]))]
    if not E:
        return encoded(form, dtype, x, rows, columns, *both)
    made = [encoded(form, dtype, one, rows, columns, most) for one, most in zip(cut(x, *E), both)]
    return {end: (of, E + shape, b"".join(one[end][2] for one in made)) for end, (of, shape, _) in made[0].items()}


def quantise(model, out, kind):
    tensors, (kind, _, size), ignored, layers = read(model), kind.partition(":"), ["lm_head"], {}
    for name, (dtype, shape, data) in sorted(tensors.items()):
        if dtype == "F16" and kind != "w4a16":
            tensors[name] = "BF16", shape, words("BF16", numbers((dtype, shape, data)))
    values = {n: numbers(t) for n, t in sorted(tensors.items()) if ".layers." in n and "vision" not in n and
              (len(t[1]) == 2 or len(t[1]) == 3 and re.search(r"_proj(\.weight)?$", n))}  # fmt: skip
    for name, x in values.items():
        t, base = tensors[name], name.removesuffix("weight")
        take = lambda form, pair=None: stacked(form, t, x, pair)
        if (kind == "w4a16" and not EXPERTS.search(name)) or (kind == "fp8-experts" and not ROUTED.search(name)):
            ignored.append(base[:-1])
        elif kind == "w4a16":
            del tensors[name]
            tensors |= {base + end: made for end, made in take("w4a16:" + size).items()}
        elif t[0] != "BF16" or (re.search(r"\.(gate|router\.proj|eh_proj|head|embed_tokens)\.weight", name) and kind != "fp8-routers"):
            continue
        elif kind == "mixed-modelopt" and ROUTED.search(name):
            names = {name} if "down_proj" in name else {re.sub("(gate|up)_proj", p + "_proj", name) for p in ("gate", "up")}
            tensors |= {base + end: made for end, made in take("nvfp4", [values[n] for n in names]).items()}
            layers[base[:-1]] = {"quant_algo": "NVFP4", "group_size": 16}
        elif kind in ("fp8-modelopt", "mixed-modelopt"):
            made = take(f"fp8-block:{t[1][0]}x{t[1][1]}")
            tensors |= {name: made["weight"], name + "_scale": ("F32", [], made["weight_scale_inv"][2])}
            layers[base[:-1]] = {"quant_algo": "FP8"}
        elif kind == "fp8-static":
            made, E = take("fp8-block:{}x{}".format(*t[1][-2:])), t[1][:-2]
            scale = words("BF16", numbers(made["weight_scale_inv"]))
            tensors |= {name: made["weight"], name + "_scale_inv": ("BF16", [*E, 1, 1] if E else [], scale)}
            # Only servers read it, so any number will do.
            activation = (base if base != name else name + "_") + "activation_scale"
            tensors[activation] = "BF16", E, words("BF16", [0.25] * math.prod(E))
        elif kind == "mxfp8":
            made = take("mxfp8")
            tensors |= {name: made["weight"], name + "_scale_inv": made["weight_scale"]}
        else:
            made = take("fp8-block:" + size)
            end = "_scale" if kind == "fp8-ct" else "_scale_inv"
            tensors |= {name: made["weight"], name + end: made["weight_scale_inv"]}
    block = [1, 32] if kind == "mxfp8" else [int(n) for n in size.split("x") if n]
    quantization = {
        "fp8-ct": lambda: compressed_tensors("float-quantized", [], **WEIGHTS["fp8"], block_structure=block),
        "w4a16": lambda: compressed_tensors("pack-quantized", ignored, **WEIGHTS["w4a16"], group_size=int(size)),
        "fp8-static": lambda: {"activation_scheme": "static", "dequantize": False, "quant_method": "fp8",
                               "modules_to_not_convert": ["lm_head"], "weight_block_size": None},
        "fp8-modelopt": lambda: {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ignored},
        "mixed-modelopt": lambda: {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers},
    }.get(kind, lambda: {"activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": block,
                         "quant_method": "mxfp8" if kind == "mxfp8" else "fp8"})  # fmt: skip
    write(model, out, tensors, lambda config: config.update(quantization_config=quantization()))


def fuse(model, out, plain_out, size, experts=None):
    """Each of num_key_value_heads chunks has rows of q, of k and of v, and its own blocks."""
    n, source = config_of(model)["num_key_value_heads"], read(model)
    quantise(model, plain_out + ".split", "fp8:" + size)
    tensors, values = read(plain_out + ".split"), plain_tensors(plain_out + ".split", "F32")
    block = {"weight_block_size": [int(x) for x in size.split("x")]}
    for q in [name for name in source if name.endswith("self_attn.q_proj.weight")]:
        names = [q.replace("q_proj", x + "_proj") for x in "qkv"]
        parts = [cut(numbers(source[name]), n) for name in names]
        columns, made, back = source[q][1][1], [], [[], [], []]
        for chunk in zip(*parts):
            rows = [x for part in chunk for x in part]
            made.append(encoded("fp8-block:" + size, "BF16", rows, len(rows) // columns, columns))
            _, decoded_rows = matrix({"x." + end: t for end, t in made[-1].items()}, "x.weight", block)
            for part, to in zip(chunk, back):
                to += decoded_rows[: len(part)]
                del decoded_rows[: len(part)]
        for name, x in zip(names, back):
            del tensors[name], tensors[name + "_scale_inv"]
            values[name] = "F32", source[name][1], words("F32", x)
        for end in ("weight", "weight_scale_inv"):
            shape = [sum(e[end][1][0] for e in made), made[0][end][1][1]]
            tensors[q.replace("q_proj.weight", "qkv_proj." + end)] = made[0][end][0], shape, b"".join(e[end][2] for e in made)
    for name in [name for name in tensors if experts and ROUTED.search(name) and name.endswith(".weight")]:
        del tensors[name + "_scale_inv"]
        made = encoded("mxfp4", "BF16", numbers(source[name]), *source[name][1])
        tensors |= {name: made["weight_packed"], name + "_scale": made["weight_scale"]}
        values[name] = "F32", source[name][1], words("F32", matrix(tensors, name, block)[1])
    shutil.rmtree(plain_out + ".split")
    fp8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"} | block
    fp8 |= {"store_dtype": "mxfp4", "mxfp4_block_size": 32} if experts else {}
    write(model, out, tensors, lambda c: c.update(quantization_config=fp8, attention_projection_layout="fused_qkv"))
    write(model, plain_out, values, lambda c: c.update(dtype="float32"))


def turned(tensor, size):
    """Transpose a matrix with elements of `size` bytes."""
    dtype, (n, k), data = tensor
    return dtype, [k, n], b"".join(data[(i * k + j) * size : (i * k + j + 1) * size] for j in range(k) for i in range(n))


def gptq(model, out, version="v1"):
    tensors, group = {}, 32
    for name, t in read(model).items():
        base, _, end = name.rpartition(".")
        if end == "weight_packed":
            tensors[base + ".qweight"] = turned(t, 4)
        elif end == "weight_scale":
            tensors[base + ".scales"] = turned(t, 2)
        elif end == "weight_shape":
            n, k = struct.unpack("<2q", t[2])
            zero = 0x88 if version == "v2" else 0x77
            tensors[base + ".qzeros"] = "I32", [k // group, n // 8], bytes([zero]) * (k // group * n // 2)
            tensors[base + ".g_idx"] = "I32", [k], struct.pack(f"<{k}i", *(i // group for i in range(k)))
        else:
            tensors[name] = t
    quant = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True}
    if version == "v2":
        quant["checkpoint_format"] = "gptq_v2"
    write(model, out, tensors, lambda config: config.update(quantization_config=quant))


def awq(model, out):
    """W4A16's codes and scales with other zero points, in AWQ's format."""
    tensors, group = {}, 32

    def packed(rows, n):
        return struct.pack(f"<{len(rows) * n // 8}I", *(
            sum(row[i + column] << 4 * place for place, column in enumerate(AWQ)) for row in rows for i in range(0, n, 8)))

    for name, t in read(model).items():
        base, _, end = name.rpartition(".")
        if end == "weight_packed":
            (n, k8), codes = t[1], integers(t[2])
            rows = [[codes[r * 8 * k8 + k] for r in range(n)] for k in range(8 * k8)]
            zeros = [[(7 * r + 5 * g + 3) % 16 for r in range(n)] for g in range(8 * k8 // group)]
            tensors[base + ".qweight"] = "I32", [8 * k8, n // 8], packed(rows, n)
            tensors[base + ".qzeros"] = "I32", [len(zeros), n // 8], packed(zeros, n)
        elif end == "weight_scale":
            tensors[base + ".scales"] = turned(t, 2)
        elif end != "weight_shape":
            tensors[name] = t
    quant = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    write(model, out, tensors, lambda config: config.update(quantization_config=quant))


# --- mixtures ---------------------------------------------------------------------------------------
def join(model, other, expression, out):
    tensors = {k: t for k, t in read(model).items() if not re.match(expression, k)}
    tensors |= {k: t for k, t in read(other).items() if re.match(expression, k)}
    theirs = config_of(other)["quantization_config"]

    def edit(config):
        quant = config["quantization_config"]
        groups = quant["config_groups"]
        groups["group_0"]["format"], quant["format"] = quant["format"], "mixed-precision"
        groups["group_1"] = theirs["config_groups"]["group_0"] | {"targets": ["re:" + expression], "format": theirs["format"]}

    write(model, out, tensors, edit)


def ease(model, expression, out):
    tensors = {k: t for k, t in read(model).items() if not re.match(expression, k)}
    tensors |= {k: ("BF16", shape, words("BF16", x)) for k, (shape, x) in decoded(model).items() if re.match(expression, k)}
    write(model, out, tensors, lambda config: config["quantization_config"]["ignore"].append("re:" + expression))


def inner(model, out, each=False):
    tensors = {}
    for name, (dtype, shape, data) in read(model).items():
        name = name.replace("language_model.", "")
        if not re.match(r"model\.(layers|embed_tokens|norm)\.|lm_head", name):
            continue
        if not each or not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = dtype, shape, data
            continue
        parts, place = ("gate", "up") if "gate_up" in name else ("down",), name.rpartition(".")[0]
        for e, both in enumerate(cut(data, shape[0])):
            for part, x in zip(parts, cut(both, len(parts))):
                tensors[f"{place}.{e}.{part}_proj.weight"] = dtype, [shape[1] // len(parts), shape[2]], x

    def edit(config):
        text = config["text_config"]
        config.clear()
        config.update(text)

    write(model, out, tensors, edit)


def apart(model, out):
    inner(model, out, each=True)


# --- shapes -----------------------------------------------------------------------------------------
def resize(model, out, I):
    config = config_of(model)
    key = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    have, I, tensor = config[key], int(I), read(model)
    for name, (dtype, shape, data) in tensor.items():
        m = re.search(r"(?:(shared_)?experts|moe)\..*?(gate|up|down|gate_up)_proj(\.weight)?$", name)
        if not m:
            continue
        n = config.get("n_shared_experts") or 1 if m[1] else 1
        at = [i % (n * have) for i in range(n * I)]
        at += [have + i for i in at] if m[2] == "gate_up" else []
        (*E, rows, columns), made = shape, b""
        for one in cut(data, *(E or [1])):
            matrix = [cut(row, columns) for row in cut(one, rows)]
            matrix = [[row[i] for i in at] for row in matrix] if m[2] == "down" else [matrix[i] for i in at]
            made += b"".join(b"".join(row) for row in matrix)
        tensor[name] = dtype, [*E, len(matrix), len(matrix[0])], made
    write(model, out, tensor, lambda c: c.update({key: I}))


# Tensors whose number of columns is the hidden size, and tensors whose number of rows is.
COLUMNS = r"(embed_tokens|lm_head|\.[qkvg]_proj|gate_proj|up_proj|\.gate|q_a_proj|kv_a_proj_with_mqa|wk|weights_proj|router\.proj)\.weight$"
ROWS = r"(o_proj|down_proj)\.weight$|(input|(pre|post)_\w+)_layernorm(_\d)?\.weight$|^model\.norm\.weight$|o_proj\.bias$|router\.scale$"


def grow(model, out, H):
    tensor, H, have = read(model), int(H), config_of(model)["hidden_size"]
    for name, (dtype, shape, data) in tensor.items():
        if re.search(COLUMNS, name):
            assert shape[-1] == have, name
            rows = [cut(row, have) for row in cut(data, math.prod(shape[:-1]))]
            tensor[name] = dtype, [*shape[:-1], H], b"".join(b"".join(row[i % have] for i in range(H)) for row in rows)
        elif re.search(ROWS, name):
            E = shape[:1] if len(shape) == 3 else []
            assert shape[len(E)] == have, name
            rows = [cut(one, have) for one in cut(data, *(E or [1]))]
            tensor[name] = dtype, [*E, H, *shape[len(E) + 1 :]], b"".join(row[i % have] for row in rows for i in range(H))
    write(model, out, tensor, lambda c: c.update({"hidden_size": H}))


def normals(rng, shape, std=0.3, mean=0.0):
    return [rng.gauss(mean, std) for _ in range(math.prod(shape))]


def gptoss(model, out):
    """All codes occur, and four different scales."""
    rng, config, tensors, H = random.Random(4), config_of(model), {}, 64
    sizes = {config["hidden_size"]: H, config["intermediate_size"]: H, 2 * config["intermediate_size"]: 2 * H}
    for name, (_, shape, _) in sorted(read(model).items()):
        shape = [sizes.get(n, n) for n in shape]
        if name.endswith(("gate_up_proj", "down_proj")):
            E, rows, count = shape[0], shape[2], math.prod(shape) // 32
            tensors[name + "_blocks"] = "U8", [E, rows, H // 32, 16], rng.randbytes(16 * count)
            tensors[name + "_scales"] = "U8", [E, rows, H // 32], bytes(rng.choice((121, 122, 123, 124)) for _ in range(count))
        else:
            tensors[name] = "BF16", shape, words("BF16", normals(rng, shape, mean=float("norm" in name)))

    def edit(config):
        config |= {"hidden_size": H, "intermediate_size": H}
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}  # fmt: skip

    write(model, out, tensors, edit)


def qwen3(out, dtype):
    rng, tensors = random.Random(17), {}
    H, I, E, L, V = 128, 128, 2, 1, 61

    def add(name, *shape, std=0.1, mean=0.0):
        values = normals(rng, shape, std, mean)
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


if __name__ == "__main__":
    {f.__name__: f for f in (plain, quantise, fuse, gptq, awq, join, ease, inner, apart, resize, grow, gptoss, qwen3)}[sys.argv[1]](*sys.argv[2:])
