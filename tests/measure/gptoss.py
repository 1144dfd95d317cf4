#!/usr/bin/env python3
"""The pipeline on a checkpoint of gpt-oss-20b's exact shapes, MXFP4 of random codes: rank, pack,
export, verify under a memory limit, with the peak memory and the time of each tool beside what its
dry run says.  Packed and exported twice: with its codes, and in BF16.

usage: BUILD=build tests/measure/gptoss.py [--layers 8] [--memory 8GiB] [--tokens 2048] [--dir DIR]

A layer takes 0.4 GB in the checkpoint and the bundle, 1.6 GB in that of BF16; embedding and head take
2.3 GB in each.  DIR (build/gpt-oss) is removed at the end unless --keep.  Needs Python
alone."""

import shapes

CONFIG = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088,
    "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "attention_bias": True, "sliding_window": 128, "swiglu_limit": 7.0, "hidden_act": "silu",
    "initial_context_length": 4096, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 150000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "original_max_position_embeddings": 4096, "truncate": False},
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}


def layer(l):
    c, p = CONFIG, f"model.layers.{l}."
    H, I, E, heads, size = (c[k] for k in ("hidden_size", "intermediate_size", "num_local_experts",
                                           "num_attention_heads", "head_dim"))
    yield p + "input_layernorm.weight", (H,)
    yield p + "post_attention_layernorm.weight", (H,)
    for x, n in (("q", heads), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"])):
        yield p + f"self_attn.{x}_proj.weight", (n * size, H)
        yield p + f"self_attn.{x}_proj.bias", (n * size,)
    yield p + "self_attn.o_proj.weight", (H, heads * size)
    yield p + "self_attn.o_proj.bias", (H,)
    yield p + "self_attn.sinks", (heads,)
    yield p + "mlp.router.weight", (E, H)
    yield p + "mlp.router.bias", (E,)
    for x, rows, columns in (("gate_up_proj", 2 * I, H), ("down_proj", H, I)):
        yield p + f"mlp.experts.{x}_blocks", (E, rows, columns // 32, 16)
        yield p + f"mlp.experts.{x}_scales", (E, rows, columns // 32)
        yield p + f"mlp.experts.{x}_bias", (E, rows)


if __name__ == "__main__":
    shapes.main("gpt-oss", CONFIG, layer, layers=8)
