#!/usr/bin/env python3
"""Make a small Qwen3-MoE checkpoint whose experts have 768 channels, like those of Qwen3-30B-A3B.

    wide.py DIR TOKENIZER      TOKENIZER is a tokenizer.json of at most 384 tokens

Its weights are random.  A page's commands for 768 channels in multiples of 128 run on it in seconds.
"""
import json
import math
import random
import shutil
import struct
import sys
from pathlib import Path

from tensors import pack

HIDDEN, WIDTH, EXPERTS, VOCABULARY, HEADS, HEAD = 8, 768, 4, 384, 2, 4

out = Path(sys.argv[1])
out.mkdir(parents=True)
shutil.copy(sys.argv[2], out / "tokenizer.json")
(out / "config.json").write_text(json.dumps({
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": HIDDEN,
    "moe_intermediate_size": WIDTH, "intermediate_size": WIDTH, "num_experts": EXPERTS, "num_experts_per_tok": 2,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HEAD,
    "vocab_size": VOCABULARY, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "norm_topk_prob": True, "hidden_act": "silu", "tie_word_embeddings": False, "dtype": "bfloat16",
    "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False,
}, indent=2) + "\n")  # fmt: skip

layer = "model.layers.0."
shapes = {
    "model.embed_tokens.weight": [VOCABULARY, HIDDEN],
    "model.norm.weight": [HIDDEN],
    "lm_head.weight": [VOCABULARY, HIDDEN],
    layer + "input_layernorm.weight": [HIDDEN],
    layer + "post_attention_layernorm.weight": [HIDDEN],
    layer + "self_attn.q_proj.weight": [HEADS * HEAD, HIDDEN],
    layer + "self_attn.k_proj.weight": [HEAD, HIDDEN],
    layer + "self_attn.v_proj.weight": [HEAD, HIDDEN],
    layer + "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD],
    layer + "self_attn.q_norm.weight": [HEAD],
    layer + "self_attn.k_norm.weight": [HEAD],
    layer + "mlp.gate.weight": [EXPERTS, HIDDEN],
}
for expert in range(EXPERTS):
    for name, shape in ("gate", [WIDTH, HIDDEN]), ("up", [WIDTH, HIDDEN]), ("down", [HIDDEN, WIDTH]):
        shapes[f"{layer}mlp.experts.{expert}.{name}_proj.weight"] = shape
draw = random.Random(1)
values = lambda name, count: b"".join(struct.pack("<f", 1.0 if "norm" in name else draw.gauss(0, 0.3))[2:] for _ in range(count))
(out / "model.safetensors").write_bytes(pack({n: ("BF16", s, values(n, math.prod(s))) for n, s in shapes.items()}))
