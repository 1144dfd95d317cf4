#!/usr/bin/env python3
"""What the tools' dry runs say of Mixtral-8x7B, Qwen3-30B-A3B and DeepSeek-V3: memory, disk and time
of every step, on this machine and on ones with more cores, or on so many ranks (fm-mpi(7)).  Dry runs read headers alone, so the checkpoints
are config.json and safetensors headers of the real shapes over files of holes.

usage: BUILD=build tests/measure/forecast.py [--tokens 262144] [--seq-len 2048] [--memory 16GB]
           [--precision f32] [--dir DIR] [--ranks N] [--batch N] [--rate GFLOPS] [--only NAME]

Needs Python alone, and a file system with sparse files."""

import argparse
import json
import math
import os
import shutil
import struct
import subprocess

MODELS = {
    "Mixtral-8x7B": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32000,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    "Qwen3-30B-A3B": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    "DeepSeek-V3": {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280,
        "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
        "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "first_k_dense_replace": 3,
        "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "hidden_act": "silu",
        "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
                         "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
        "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
}


def mlp(p, H, I):
    for name, shape in ("gate_proj", (I, H)), ("up_proj", (I, H)), ("down_proj", (H, I)):
        yield f"{p}.{name}.weight", shape


def deepseek(c, l):
    p, H, heads = f"model.layers.{l}.", c["hidden_size"], c["num_attention_heads"]
    q, kv, rope = c["q_lora_rank"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    nope, wide = c["qk_nope_head_dim"], c["v_head_dim"]
    yield p + "input_layernorm.weight", (H,)
    yield p + "post_attention_layernorm.weight", (H,)
    for name, shape in (("q_a_proj", (q, H)), ("q_a_layernorm", (q,)), ("q_b_proj", (heads * (nope + rope), q)),
                        ("kv_a_proj_with_mqa", (kv + rope, H)), ("kv_a_layernorm", (kv,)),
                        ("kv_b_proj", (heads * (nope + wide), kv)), ("o_proj", (H, heads * wide))):
        yield f"{p}self_attn.{name}.weight", shape
    if l < c["first_k_dense_replace"]:
        yield from mlp(p + "mlp", H, c["intermediate_size"])
        return
    E, I = c["n_routed_experts"], c["moe_intermediate_size"]
    yield p + "mlp.gate.weight", (E, H)
    yield p + "mlp.gate.e_score_correction_bias", (E,)
    yield from mlp(p + "mlp.shared_experts", H, I)
    for e in range(E):
        yield from mlp(f"{p}mlp.experts.{e}", H, I)


def layer(c, l):
    if c["model_type"] == "deepseek_v3":
        yield from deepseek(c, l)
        return
    p, H, heads = f"model.layers.{l}.", c["hidden_size"], c["num_attention_heads"]
    wide = c.get("head_dim", H // heads)
    yield p + "input_layernorm.weight", (H,)
    yield p + "post_attention_layernorm.weight", (H,)
    for name, rows in ("q", heads), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"]):
        yield p + f"self_attn.{name}_proj.weight", (rows * wide, H)
    yield p + "self_attn.o_proj.weight", (H, heads * wide)
    if c["model_type"] == "mixtral":
        gate, expert, names, I = "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2"), c["intermediate_size"]
        E = c["num_local_experts"]
    else:
        gate, expert, I = "mlp.gate", "mlp.experts", c["moe_intermediate_size"]
        names, E = ("gate_proj", "up_proj", "down_proj"), c["num_experts"]
        yield p + "self_attn.q_norm.weight", (wide,)
        yield p + "self_attn.k_norm.weight", (wide,)
    yield p + gate + ".weight", (E, H)
    for e in range(E):
        for name, shape in zip(names, ((I, H), (I, H), (H, I))):
            yield f"{p}{expert}.{e}.{name}.weight", shape


def make(c, path):
    os.makedirs(path)
    with open(f"{path}/config.json", "w") as out:
        json.dump(c, out, indent=2)
    V, H, L = c["vocab_size"], c["hidden_size"], c["num_hidden_layers"]
    shards = [[("model.embed_tokens.weight", (V, H)), ("model.norm.weight", (H,)), ("lm_head.weight", (V, H))]]
    shards += [list(layer(c, l)) for l in range(L)]
    index, total = {}, 0
    for i, tensors in enumerate(shards):
        name, header, at = f"model-{i + 1:05}-of-{len(shards):05}.safetensors", {}, 0
        for tensor, shape in tensors:
            size = 2 * math.prod(shape)
            header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            index[tensor], at = name, at + size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(f"{path}/{name}", "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + at)
        total += at
    with open(f"{path}/model.safetensors.index.json", "w") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": index}, out)
    return total


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--tokens", type=int, default=262144)
    a.add_argument("--seq-len", type=int, default=2048)
    a.add_argument("--memory", default="16GB")
    a.add_argument("--precision", default="f32")
    a.add_argument("--dir")
    a.add_argument("--ranks", type=int, default=0)
    a.add_argument("--batch", type=int)
    a.add_argument("--rate")
    a.add_argument("--only")
    o = a.parse_args()
    build = os.environ.get("BUILD", "build")
    top = o.dir or f"{build}/forecast"
    shutil.rmtree(top, ignore_errors=True)
    os.makedirs(top)
    tokens = f"{top}/tokens.bin"
    with open(tokens, "wb") as out:
        out.truncate(2 * o.tokens)
    ranks = ["mpirun", "--oversubscribe", "-n", str(o.ranks)] if o.ranks else []
    tools = f"{build}/mpi/bin" if o.ranks else f"{build}/bin"
    common = ["--assume-rate", o.rate] if o.rate else []
    for name, config in MODELS.items():
        if o.only and name != o.only:
            continue
        path = f"{top}/{name}"
        print(f"\n{name}: {make(config, path) / 1e9:.1f} GB in bfloat16")
        methods = ["learned"] if o.batch else ["exchange", "learned", "saliency"]
        train = [("fm-train", ["--method", method]) for method in methods]
        for tool, more in ("fm-rank", []), *train, ("fm-recover", []):
            batch = ["--batch", str(o.batch)] if o.batch and tool != "fm-rank" else []
            command = [*ranks, f"{tools}/{tool}", "--dry-run", "--model", path, "--tokens", tokens, "--token-dtype", "u16",
                       "--seq-len", str(o.seq_len), "--memory", o.memory, "--precision", o.precision, *common,
                       *batch, *more]
            done = subprocess.run(command, capture_output=True, text=True)
            print("$", " ".join([*ranks, tool, *command[len(ranks) + 6:]]).replace(tokens, "calib.bin"))
            print(done.stdout + done.stderr, end="")
    shutil.rmtree(top)


main()
