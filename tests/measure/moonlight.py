#!/usr/bin/env python3
"""The pipeline on a checkpoint of Moonlight-16B-A3B's exact shapes, with random weights: rank, pack,
export, verify under a memory limit, with the peak memory and the time of each tool beside what its
dry run says.

usage: BUILD=build tests/measure/moonlight.py [--layers 12] [--memory 8GiB] [--tokens 2048] [--dir DIR]

A layer takes 1.2 GB three times over (checkpoint, bundle, export).  DIR (build/moonlight) is removed
at the end unless --keep.  Needs Python alone."""

import argparse
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import time

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 163840,
    "hidden_size": 2048, "intermediate_size": 11264, "moe_intermediate_size": 1408,
    "num_attention_heads": 16, "num_key_value_heads": 16, "n_shared_experts": 2,
    "n_routed_experts": 64, "routed_scaling_factor": 2.446, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "topk_method": "noaux_tc",
    "n_group": 1, "topk_group": 1, "num_experts_per_tok": 6, "moe_layer_freq": 1,
    "first_k_dense_replace": 1, "norm_topk_prob": True, "scoring_func": "sigmoid",
    "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0, "rope_scaling": None, "attention_bias": False,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "num_nextn_predict_layers": 0,
}


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


class Weights:
    """Normal values as bfloat16: stretches of one long draw, from a place that differs each time."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.draw = draw
        self.block = struct.pack("<1048573H", *(bf16(draw.gauss(0, 1 / 64)) for _ in range(1048573)))

    def write(self, out, count):
        left, at = 2 * count, 2 * self.draw.randrange(1048573)
        while left:
            piece = self.block[at:at + left]
            out.write(piece)
            left, at = left - len(piece), 0


def layer(l):
    c, p = CONFIG, f"model.layers.{l}."
    H, I, heads = c["hidden_size"], c["moe_intermediate_size"], c["num_attention_heads"]
    nope, rope, v, rank = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    yield p + "input_layernorm.weight", (H,)
    yield p + "post_attention_layernorm.weight", (H,)
    yield p + "self_attn.q_proj.weight", (heads * (nope + rope), H)
    yield p + "self_attn.kv_a_proj_with_mqa.weight", (rank + rope, H)
    yield p + "self_attn.kv_a_layernorm.weight", (rank,)
    yield p + "self_attn.kv_b_proj.weight", (heads * (nope + v), rank)
    yield p + "self_attn.o_proj.weight", (H, heads * v)
    places = [("mlp.", c["intermediate_size"])]
    if l >= c["first_k_dense_replace"]:
        yield p + "mlp.gate.weight", (c["n_routed_experts"], H)
        yield p + "mlp.gate.e_score_correction_bias", (c["n_routed_experts"],)
        places = [(f"mlp.experts.{e}.", I) for e in range(c["n_routed_experts"])]
        places.append(("mlp.shared_experts.", I * c["n_shared_experts"]))
    for place, width in places:
        yield p + place + "gate_proj.weight", (width, H)
        yield p + place + "up_proj.weight", (width, H)
        yield p + place + "down_proj.weight", (H, width)


def write_shard(path, tensors, weights):
    header, at = {}, 0
    for name, shape in tensors:
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors:
            if name.endswith("norm.weight"):
                out.write(struct.pack("<H", bf16(1.0)) * math.prod(shape))
            else:
                weights.write(out, math.prod(shape))
    return at


def make(model, layers):
    os.makedirs(model)
    weights, names, total = Weights(11), {}, 0
    V, H = CONFIG["vocab_size"], CONFIG["hidden_size"]
    ends = [("model.embed_tokens.weight", (V, H)), ("model.norm.weight", (H,)), ("lm_head.weight", (V, H))]
    for i, tensors in enumerate([ends] + [list(layer(l)) for l in range(layers)]):
        shard = f"model-{i + 1:05d}-of-{layers + 1:05d}.safetensors"
        total += write_shard(os.path.join(model, shard), tensors, weights)
        names.update((name, shard) for name, _ in tensors)
    with open(os.path.join(model, "model.safetensors.index.json"), "w") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": names}, f)
    with open(os.path.join(model, "config.json"), "w") as f:
        json.dump(dict(CONFIG, num_hidden_layers=layers), f, indent=2)
    return total


def make_tokens(path, count, vocabulary):
    draw = random.Random(3)
    head = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % count
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode())
        f.write(struct.pack(f"<{count}i", *(draw.randrange(vocabulary) for _ in range(count))))


def size_of(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(path) for f in files)


def high_water(pid):
    """kB that the process had resident at the most, so far."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return next((int(line.split()[1]) for line in f if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def run(bin, tool, *args, made=None, dry=True):
    """Prints a row: what the dry run says, then what it took."""
    command = [os.path.join(bin, tool), *args]
    if dry:
        plan = subprocess.run(command + ["--dry-run"], stdout=subprocess.PIPE, check=True, text=True)
        print("".join("    " + line + "\n" for line in plan.stdout.splitlines()), end="", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0  # wait4's figure would begin with this interpreter's own
    while process.poll() is None:
        peak = max(peak, high_water(process.pid))
        time.sleep(0.05)
    seconds = time.monotonic() - began
    row = f"{tool}: {seconds:.0f} s, peak {1024 * peak / 1e9:.3f} GB"
    if made:
        row += f", {size_of(made) / 1e9:.2f} GB written"
    print(row, flush=True)
    if process.returncode:
        sys.exit(f"{tool} ended with status {process.returncode}")


def main(name, make, vocabulary, layers=12):
    """make(DIR, LAYERS) writes the checkpoint and gives its bytes."""
    p = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--layers", type=int, default=layers)
    p.add_argument("--memory", default="8GiB")
    p.add_argument("--tokens", type=int, default=2048)
    p.add_argument("--precision", default="f32")
    p.add_argument("--budget", default="0.4")
    p.add_argument("--dir")
    p.add_argument("--keep", action="store_true")
    o = p.parse_args()
    build = os.environ.get("BUILD", "build")
    bin, where = os.path.join(build, "bin"), o.dir or os.path.join(build, name)
    os.makedirs(where)
    at = lambda file: os.path.join(where, file)
    try:
        print(f"checkpoint: {make(at('model'), o.layers) / 1e9:.2f} GB, {o.layers} layers", flush=True)
        make_tokens(at("tokens.npy"), o.tokens, vocabulary)
        common = ["--memory", o.memory, "--quiet"]
        run(bin, "fm-rank", "--model", at("model"), "--tokens", at("tokens.npy"), "--seq-len", "256",
            "--precision", o.precision, *common, "-o", at("ranking"), made=at("ranking"))
        run(bin, "fm-train", "--model", at("model"), "--tokens", at("tokens.npy"), "--seq-len", "256",
            "--precision", o.precision, "--method", "uniform",
            "--budget-step", "0.20", "--until", "0.40", *common, "-o", at("masks"), at("ranking"),
            made=at("masks"))
        run(bin, "fm-pack", "--model", at("model"), "--quiet", "-o", at("bundle.fm"), at("masks"), made=at("bundle.fm"))
        run(bin, "fm-pack", "--export", at("export"), "--layout", "uniform", "--budget", o.budget, "--quiet",
            at("bundle.fm"), made=at("export"))
        run(bin, "fm-verify", "--quiet", at("bundle.fm"), dry=False)
        run(bin, "fm-verify", "--quiet", at("export"), "--against", at("bundle.fm"), dry=False)
    finally:
        if not o.keep:
            shutil.rmtree(where)


if __name__ == "__main__":
    main("moonlight", make, CONFIG["vocab_size"])
