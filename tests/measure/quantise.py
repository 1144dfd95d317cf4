#!/usr/bin/env python3
"""Measure time and bytes of exports in each format, compared with cp of the same export in BF16.

usage: BUILD=build tests/measure/quantise.py DIR [LAYERS]

Needs NumPy.  A Qwen3-MoE with BF16 weights is made: hidden size 2048, layers of 128 experts with 768 channels;
four layers are 4.9 GB.  It is ranked on a few tokens, packed and exported at budget 0.25.  `ratio` is the time of cp
divided by that of the export, each the shortest of three, with files in the page cache and synced to disk."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / os.environ.get("BUILD", "build") / "bin"
H, I, E, V, HEADS, HEAD = 2048, 768, 128, 1024, 16, 128
FORMATS = ["bf16", "fp8-block", "fp8", "w4a16", "w4a16:32", "nvfp4", "nvfp4:ct", "mxfp4", "mxfp8"]


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def make(out, layers):
    rng = np.random.default_rng(5)
    out.mkdir(parents=True)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
        "hidden_size": H, "moe_intermediate_size": I, "intermediate_size": I, "num_experts": E,
        "num_experts_per_tok": 8, "num_hidden_layers": layers, "num_attention_heads": HEADS, "head_dim": HEAD,
        "num_key_value_heads": 4, "vocab_size": V, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
        "max_position_embeddings": 4096, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "tie_word_embeddings": False, "attention_bias": False, "use_sliding_window": False,
    }  # fmt: skip
    (out / "config.json").write_text(json.dumps(config))
    np.save(out / "tokens.npy", rng.integers(0, V, (8, 64), dtype=np.int32))
    for part in range(layers + 1):
        shapes = {}
        if part == layers:
            shapes = {"model.embed_tokens": (V, H), "lm_head": (V, H), "model.norm": (H,)}
        for name, shape in {} if part == layers else {
            "self_attn.q_proj": (HEADS * HEAD, H), "self_attn.k_proj": (4 * HEAD, H),
            "self_attn.v_proj": (4 * HEAD, H), "self_attn.o_proj": (H, HEADS * HEAD), "self_attn.q_norm": (HEAD,),
            "self_attn.k_norm": (HEAD,), "input_layernorm": (H,), "post_attention_layernorm": (H,), "mlp.gate": (E, H),
            **{f"mlp.experts.{e}.{m}_proj": (H, I) if m == "down" else (I, H)
               for e in range(E) for m in ("gate", "up", "down")},
        }.items():  # fmt: skip
            shapes[f"model.layers.{part}.{name}"] = shape
        header, at = {}, 0
        for name, shape in shapes.items():
            size = 2 * int(np.prod(shape))
            header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(out / f"model-{part + 1:05}-of-{layers + 1:05}.safetensors", "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for name, shape in shapes.items():
                one = len(shape) == 1
                f.write((bf16(np.ones(shape)) if one else bf16(rng.standard_normal(shape, np.float32) * 0.02)).tobytes())
    files = sorted(out.glob("model-*.safetensors"))
    names = {}
    for f in files:
        with open(f, "rb") as g:
            names.update(dict.fromkeys(json.loads(g.read(int.from_bytes(g.read(8), "little"))), f.name))
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def seconds(command):
    best = 1e9
    for _ in range(3):
        os.sync()
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        os.sync()
        best = min(best, time.monotonic() - began)
    return best


def run(tool, *arguments):
    subprocess.run([str(TOOLS / tool), "-q", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def size(path):
    return sum(f.stat().st_size for f in path.iterdir()) if path.is_dir() else path.stat().st_size


at, layers = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4
model = at / "model"
if not model.exists():
    make(model, layers)
if not (at / "family.fm").exists():
    data = ["-m", model, "-t", model / "tokens.npy", "-f"]
    run("fm-rank", *data, "-o", at / "ranked")
    run("fm-train", *data, "--method", "saliency", "--budget-step", "0.05", "-o", at / "trained", at / "ranked")
    run("fm-pack", "-m", model, "-f", "-o", at / "family.fm", at / "trained")
print(f"source {size(model) / 1e9:.2f} GB, bundle {size(at / 'family.fm') / 1e9:.2f} GB", flush=True)
export = [str(TOOLS / "fm-pack"), "-q", "-f", "-b", "0.25", "--layout", "uniform", "-x"]
cp = None
print(f"{'format':10} {'GB':>6} {'s':>7} {'cp s':>7} {'ratio':>6}")
for name in FORMATS:
    out = at / "out"
    took = seconds([*export, str(out), "--weights", name, str(at / "family.fm")])
    if name == "bf16":
        cp = seconds(["cp", "-rT", str(out), str(at / "copy")])
        shutil.rmtree(at / "copy")
    print(f"{name:10} {size(out) / 1e9:6.2f} {took:7.2f} {cp:7.2f} {cp / took:6.2f}", flush=True)
    shutil.rmtree(out)
