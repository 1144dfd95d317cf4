#!/usr/bin/env python3
"""Run the tools, or their dry runs, on checkpoints with the shapes of released models and random weights.

usage: BUILD=build tests/measure/fullsize.py SHAPE... --plan-only [options]
       BUILD=build tests/measure/fullsize.py SHAPE... [options]

With --plan-only a checkpoint consists of config.json and headers, with holes for weights: names and sizes are
those of the release.  The dry runs of fm-rank, fm-train and fm-recover are printed, each with the time and
memory that it took.  Needs a file system with sparse files.

Without it, a checkpoint of --layers layers is written, and --stages are run on it under --memory.  Each is
sent SIGTERM after a fraction, --stop, of its forecast time (2 seconds if that is less), and runs again, from
its state file if it has one.  A table compares the forecast with the measurement: time without the interrupted
part, peak memory, bytes read and written, bytes of temporary files (bytes written, less those of the output),
and seconds from SIGTERM to the end.  --narrow N divides the widths and keeps every name.  DIR (build/fullsize)
is removed at the end unless --keep is given.  Needs only Python."""

import argparse
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

DRAWN = 1 << 20  # random values of each kind; each tensor takes them from a different offset
SIZE = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8}
BLOCK = 128  # rows and columns of a block in FP8
GROUP = 32  # channels of a group in INT4 and MXFP4
LEAST = 2  # assumed seconds of a stage without a longer forecast

DEEPSEEK_V3 = {
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
    "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
FP8_STATIC = {"activation_scheme": "static", "dequantize": False, "quant_method": "fp8", "weight_block_size": None}
KIMI_K2 = {
    **DEEPSEEK_V3, "model_type": "kimi_k2", "vocab_size": 163840, "num_attention_heads": 64,
    "num_key_value_heads": 64, "n_routed_experts": 384, "n_group": 1, "topk_group": 1,
    "routed_scaling_factor": 2.827, "first_k_dense_replace": 1, "rope_theta": 50000,
    "max_position_embeddings": 131072,
    "rope_scaling": {**DEEPSEEK_V3["rope_scaling"], "factor": 32}}
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "vocab_size": 201088,
    "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4,
    "attention_bias": True, "sliding_window": 128, "swiglu_limit": 7.0, "hidden_act": "silu",
    "initial_context_length": 4096, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 150000,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                     "original_max_position_embeddings": 4096, "truncate": False},
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}

KIMI_K2_THINKING = {**KIMI_K2, "quantization_config": {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
    "config_groups": {"group_0": {
        "targets": ["Linear"], "input_activations": None, "output_activations": None,
        "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP,
                    "symmetric": True, "dynamic": False, "actorder": None}}},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]}}
MIMO_V25 = {
    "architectures": ["MiMoV2ForCausalLM"], "model_type": "mimo_v2", "vocab_size": 152576,
    "hidden_size": 4096, "intermediate_size": 16384, "moe_intermediate_size": 2048,
    "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192,
    "v_head_dim": 128, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192,
    "swa_v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": None, "num_experts_per_tok": 8,
    "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": None,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu",
    "hybrid_layer_pattern": [int(l > 0 and l % 6 != 5) for l in range(48)],
    "moe_layer_freq": [int(l > 0) for l in range(48)], "sliding_window": 128, "sliding_window_size": 128,
    "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
    "attention_projection_layout": "fused_qkv", "attention_value_scale": 0.707, "attention_bias": False,
    "partial_rotary_factor": 0.334, "rope_theta": 10000000, "swa_rope_theta": 10000,
    "max_position_embeddings": 1048576, "layernorm_epsilon": 1e-5, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "quantization_config": FP8}
QWEN38 = {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "vocab_size": 248320,
    "hidden_size": 8192, "moe_intermediate_size": 2048, "shared_expert_intermediate_size": 2048,
    "num_hidden_layers": 92, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 256,
    "num_experts": 512, "num_experts_per_tok": 10, "attention_bias": False, "attn_output_gate": True,
    "full_attention_interval": 4, "layer_types": 23 * (3 * ["linear_attention"] + ["full_attention"]),
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 128, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "output_gate_type": "swish",
    "hidden_act": "silu", "max_position_embeddings": 262144, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-6,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"},
    "tie_word_embeddings": False, "dtype": "bfloat16"}
STEP35 = {
    "architectures": ["Step3p5ForCausalLM"], "model_type": "step3p5", "vocab_size": 128896,
    "hidden_size": 4096, "intermediate_size": 11264, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
    "num_hidden_layers": 45, "num_attention_heads": 64, "num_attention_groups": 8, "num_key_value_heads": 8,
    "head_dim": 128, "moe_num_experts": 288, "moe_top_k": 8, "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0, "norm_expert_weight": True, "use_moe_router_bias": True,
    "moe_layers_enum": ",".join(map(str, range(3, 45))), "sliding_window": 512,
    "layer_types": ["sliding_attention" if l % 4 else "full_attention" for l in range(45)],
    "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96,
                                "num_attention_groups": 8, "head_dim": 128},
    "rope_theta": [1e4 if l % 4 else 5e6 for l in range(45)],
    "partial_rotary_factors": [1.0 if l % 4 else 0.5 for l in range(45)],
    "swiglu_limits": 43 * [0.0] + [7.0, 7.0], "swiglu_limits_shared": 44 * [0.0] + [16.0],
    "use_head_wise_attn_gate": True, "zero_centered": True, "use_qk_norm": True, "hidden_act": "silu",
    "max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "quantization_config": FP8}
MISTRAL_SMALL_4 = {
    "architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", "vocab_size": 131072,
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 32, "n_routed_experts": 128, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 0, "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_interleave": True, "hidden_act": "silu",
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-6, "attention_bias": False,
    "rope_parameters": {"type": "yarn", "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0,
                        "original_max_position_embeddings": 8192, "max_position_embeddings": 1048576,
                        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                        "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5},
    "tie_word_embeddings": False, "dtype": "bfloat16"}
GEMMA4_26B = {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "vocab_size": 262144,
    "hidden_size": 2816, "intermediate_size": 2112, "moe_intermediate_size": 704, "num_hidden_layers": 30,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "global_head_dim": 512,
    "num_global_key_value_heads": 2, "attention_k_eq_v": True, "num_experts": 128, "top_k_experts": 8,
    "enable_moe_block": True, "layer_types": 5 * (5 * ["sliding_attention"] + ["full_attention"]),
    "sliding_window": 1024, "final_logit_softcapping": 30.0, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
    "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
    "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "attention_bias": False,
    "tie_word_embeddings": True, "dtype": "bfloat16"}

SHAPES = {
    "olmoe": {
        "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "vocab_size": 50304,
        "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64,
        "num_experts_per_tok": 8, "norm_topk_prob": False, "clip_qkv": None, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": None, "attention_bias": False, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16"},
    "mixtral": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32000,
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "num_experts_per_tok": 2, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    "qwen1.5-moe": {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
        "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "use_sliding_window": False, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    "qwen3-30b": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
        "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    "moonlight": {
        **DEEPSEEK_V3, "vocab_size": 163840, "hidden_size": 2048, "intermediate_size": 11264,
        "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
        "num_key_value_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64,
        "routed_scaling_factor": 2.446, "q_lora_rank": None, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 6, "first_k_dense_replace": 1, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "rope_scaling": None},
    "gpt-oss-20b": GPT_OSS_20B,
    "gpt-oss-120b": {**GPT_OSS_20B, "num_hidden_layers": 36, "num_local_experts": 128},
    "glm-4.7": {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 151552,
        "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_hidden_layers": 92, "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128,
        "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1,
        "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3, "partial_rotary_factor": 0.5, "use_qk_norm": True,
        "attention_bias": True, "hidden_act": "silu", "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-5, "rope_theta": 1000000, "rope_scaling": None,
        "num_nextn_predict_layers": 1, "tie_word_embeddings": False, "torch_dtype": "bfloat16"},
    "deepseek-v3-bf16": DEEPSEEK_V3,
    "deepseek-v3": {**DEEPSEEK_V3, "num_nextn_predict_layers": 1, "quantization_config": FP8},
    "kimi-k2": {**KIMI_K2, "quantization_config": FP8},
    "kimi-k2-thinking": KIMI_K2_THINKING,
    "kimi-k2.5": {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
                  "text_config": KIMI_K2_THINKING},
    "mimo-v2.5": MIMO_V25,
    "mimo-v2.6-pro": {
        **MIMO_V25, "hidden_size": 6144, "num_hidden_layers": 70, "num_attention_heads": 128,
        "swa_num_attention_heads": 128, "num_key_value_heads": 8, "n_routed_experts": 384,
        "hybrid_layer_pattern": [int(l > 0 and l % 6 != 5) for l in range(70)],
        "moe_layer_freq": [int(l > 0) for l in range(70)], "attention_value_scale": 0.612,
        "quantization_config": {**FP8, "store_dtype": "mxfp4", "mxfp4_block_size": GROUP}},
    "qwen3.8-2.4t": QWEN38,
    "step-3.5-flash": STEP35,
    "mistral-small-4": {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                        "text_config": MISTRAL_SMALL_4, "quantization_config": FP8_STATIC},
    "gemma-4-26b": GEMMA4_26B,
}  # fmt: skip

# --- tensors -------------------------------------------------------------------------------------------


def plain(name, *shape):
    yield name, "BF16", shape


def linear(c, name, rows, columns, expert=False):
    """The tensors in which the checkpoint stores a matrix."""
    quant = c.get("quantization_config", {})
    method = quant.get("quant_method")
    if expert and quant.get("store_dtype"):
        yield f"{name}.weight", "U8", (rows, columns // 2)
        yield f"{name}.weight_scale", "U8", (rows, columns // GROUP)
    elif quant.get("activation_scheme") == "static":
        yield f"{name}.weight", "F8_E4M3", (rows, columns)
        yield f"{name}.weight_scale_inv", "BF16", ()
        yield f"{name}.activation_scale", "BF16", ()
    elif method == "fp8":
        yield f"{name}.weight", "F8_E4M3", (rows, columns)
        yield f"{name}.weight_scale_inv", "F32", (-(-rows // BLOCK), -(-columns // BLOCK))
    elif method == "compressed-tensors" and expert:
        yield f"{name}.weight_packed", "I32", (rows, columns // 8)
        yield f"{name}.weight_scale", "BF16", (rows, columns // GROUP)
        yield f"{name}.weight_shape", "I64", (2,)
    else:
        yield from plain(f"{name}.weight", rows, columns)


def stacked(c, name, E, rows, columns):
    """The tensors of a matrix of all experts."""
    for end, dtype, shape in linear(c, "", rows, columns, True):
        if end == ".activation_scale":
            yield name + "_activation_scale", dtype, (E,)
        else:
            yield name + end.removeprefix(".weight"), dtype, (E, *(shape or (1, 1)))


def mlp(c, place, I, names=("gate_proj", "up_proj", "down_proj"), expert=False):
    H = c["hidden_size"]
    for name, rows, columns in zip(names, (I, I, H), (H, H, I)):
        yield from linear(c, f"{place}.{name}", rows, columns, expert)


def latent_attention(c, p):
    H, heads, q, kv = (c[k] for k in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank"))
    nope, rope, wide = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    if q:
        yield from linear(c, p + "q_a_proj", q, H)
        yield from plain(p + "q_a_layernorm.weight", q)
        yield from linear(c, p + "q_b_proj", heads * (nope + rope), q)
    else:
        yield from linear(c, p + "q_proj", heads * (nope + rope), H)
    yield from linear(c, p + "kv_a_proj_with_mqa", kv + rope, H)
    yield from plain(p + "kv_a_layernorm.weight", kv)
    yield from linear(c, p + "kv_b_proj", heads * (nope + wide), kv)
    yield from linear(c, p + "o_proj", H, heads * wide)


def fused_attention(c, p, l):
    """MiMo's q, k and v in one tensor, of as many chunks as full layers have key heads."""
    H, heads, chunks, wide = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"))
    window = c["hybrid_layer_pattern"][l]
    groups = c["swa_num_key_value_heads"] if window else chunks
    rows = heads * wide + groups * (wide + c["v_head_dim"])
    yield p + "qkv_proj.weight", "F8_E4M3", (rows, H)
    yield p + "qkv_proj.weight_scale_inv", "F32", (chunks * -(-rows // chunks // BLOCK), -(-H // BLOCK))
    yield from plain(p + "o_proj.weight", H, heads * c["v_head_dim"])
    if window:
        yield from plain(p + "attention_sink_bias", heads)


def deltanet(c, p):
    H, K, V, k, v = (c[x] for x in ("hidden_size", "linear_num_key_heads", "linear_num_value_heads",
                                    "linear_key_head_dim", "linear_value_head_dim"))  # fmt: skip
    for x, rows in ("qkv", 2 * K * k + V * v), ("z", V * v), ("b", V), ("a", V):
        yield from plain(f"{p}in_proj_{x}.weight", rows, H)
    yield from plain(p + "conv1d.weight", 2 * K * k + V * v, 1, c["linear_conv_kernel_dim"])
    yield from plain(p + "A_log", V)
    yield from plain(p + "dt_bias", V)
    yield from plain(p + "norm.weight", v)
    yield from plain(p + "out_proj.weight", H, V * v)


def attention(c, p, l):
    if "kv_lora_rank" in c:
        yield from latent_attention(c, p + "self_attn.")
        return
    if c.get("layer_types", [None] * (l + 1))[l] == "linear_attention":
        yield from deltanet(c, p + "linear_attn.")
        return
    p += "self_attn."
    if "hybrid_layer_pattern" in c:
        yield from fused_attention(c, p, l)
        return
    H, heads, groups, kind = (c[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads", "model_type"))
    wide, window = c.get("head_dim", H // heads), c.get("layer_types", [None] * (l + 1))[l] == "sliding_attention"
    if kind == "gemma4_text" and not window:
        wide, groups = c["global_head_dim"], c["num_global_key_value_heads"]
    if kind == "step3p5":
        heads = c["attention_other_setting"]["num_attention_heads"] if window else heads
        yield from plain(p + "g_proj.weight", heads, H)
    for x, rows in ("q", heads * wide * (1 + c.get("attn_output_gate", False))), ("k", groups * wide), ("v", groups * wide):
        if x == "v" and kind == "gemma4_text" and not window:
            continue  # the keys
        yield from plain(f"{p}{x}_proj.weight", rows, H)
        if c.get("attention_bias") or kind == "qwen2_moe":
            yield from plain(f"{p}{x}_proj.bias", rows)
    yield from plain(p + "o_proj.weight", H, heads * wide)
    if kind == "gpt_oss":
        yield from plain(p + "o_proj.bias", H)
        yield from plain(p + "sinks", heads)
    if kind == "olmoe":
        yield from plain(p + "q_norm.weight", heads * wide)
        yield from plain(p + "k_norm.weight", groups * wide)
    if kind in ("qwen3_moe", "glm4_moe", "qwen3_5_moe_text", "step3p5", "gemma4_text"):
        yield from plain(p + "q_norm.weight", wide)
        yield from plain(p + "k_norm.weight", wide)


def experts(c, p):
    """The tensors of a layer's experts, with its router and shared experts."""
    H, kind = c["hidden_size"], c["model_type"]
    I = c.get("moe_intermediate_size") or c["intermediate_size"]
    E = next(c[k] for k in ("n_routed_experts", "moe_num_experts", "num_experts", "num_local_experts") if k in c)
    if kind == "gpt_oss":
        yield from plain(p + "mlp.router.weight", E, H)
        yield from plain(p + "mlp.router.bias", E)
        for x, rows, columns in (("gate_up_proj", 2 * I, H), ("down_proj", H, I)):
            yield f"{p}mlp.experts.{x}_blocks", "U8", (E, rows, columns // GROUP, GROUP // 2)
            yield f"{p}mlp.experts.{x}_scales", "U8", (E, rows, columns // GROUP)
            yield from plain(f"{p}mlp.experts.{x}_bias", E, rows)
        return
    if kind == "gemma4_text":
        yield from plain(p + "router.proj.weight", E, H)
        yield from plain(p + "router.scale", H)
        yield from plain(p + "router.per_expert_scale", E)
        yield from stacked(c, p + "experts.gate_up_proj", E, 2 * I, H)
        yield from stacked(c, p + "experts.down_proj", E, H, I)
        return
    if kind == "step3p5":
        yield from plain(p + "moe.gate.weight", E, H)
        yield p + "moe.router_bias", "F32", (E,)
        yield from mlp({"hidden_size": H}, p + "share_expert", c["share_expert_dim"])
        for x, rows, columns in ("gate", I, H), ("up", I, H), ("down", H, I):
            yield from stacked(c, f"{p}moe.{x}_proj.weight", E, rows, columns)
        return
    place, names = ("block_sparse_moe", ("w1", "w3", "w2")) if kind == "mixtral" else ("mlp", mlp.__defaults__[0])
    yield from plain(f"{p}{place}.gate.weight", E, H)
    if "n_routed_experts" in c:
        if kind != "mistral4":
            yield f"{p}mlp.gate.e_score_correction_bias", "F32", (E,)
        if c["n_shared_experts"]:
            yield from mlp(c, p + "mlp.shared_experts", I * c["n_shared_experts"])
    if "shared_expert_intermediate_size" in c:
        yield from mlp(c, p + "mlp.shared_expert", c["shared_expert_intermediate_size"])
        yield from plain(p + "mlp.shared_expert_gate.weight", 1, H)
    if kind in ("qwen3_5_moe_text", "mistral4"):
        yield from stacked(c, p + "mlp.experts.gate_up_proj", E, 2 * I, H)
        yield from stacked(c, p + "mlp.experts.down_proj", E, H, I)
        return
    for e in range(E):
        yield from mlp(c, f"{p}{place}.experts.{e}", I, names, True)


def layer(c, l):
    p, H = f"model.layers.{l}.", c["hidden_size"]
    yield from plain(p + "input_layernorm.weight", H)
    yield from plain(p + "post_attention_layernorm.weight", H)
    yield from attention(c, p, l)
    if c["model_type"] == "gemma4_text":
        for x in "pre_feedforward", "pre_feedforward_2", "post_feedforward", "post_feedforward_1", "post_feedforward_2":
            yield from plain(p + "feedforward_layernorm".join(x.split("feedforward")) + ".weight", H)
        yield from plain(p + "layer_scalar", 1)
        yield from mlp(c, p + "mlp", c["intermediate_size"])
    if l < c.get("first_k_dense_replace", 3 if c["model_type"] == "step3p5" else 0) or ("hybrid_layer_pattern" in c and not c["moe_layer_freq"][l]):
        yield from mlp(c, p + "mlp", c["intermediate_size"])
    else:
        yield from experts(c, p)


def tensors(c):
    """The tensors of each shard: embeddings and head, a layer, a layer for multi-token prediction."""
    V, H, L = (c[k] for k in ("vocab_size", "hidden_size", "num_hidden_layers"))
    yield [*plain("model.embed_tokens.weight", V, H), *plain("model.norm.weight", H), *([] if c["tie_word_embeddings"] else plain("lm_head.weight", V, H))]
    for l in range(L):
        yield list(layer(c, l))
    if c.get("mtp_num_hidden_layers"):
        head = [*plain("mtp.fc.weight", H, 2 * H), *plain("mtp.norm.weight", H)]
        head += [*plain("mtp.pre_fc_norm_embedding.weight", H), *plain("mtp.pre_fc_norm_hidden.weight", H)]
        full = layer({k: v for k, v in c.items() if k != "layer_types"}, 0)
        yield head + [(name.replace("model.", "mtp."), dtype, shape) for name, dtype, shape in full]
    for l in range(L, L + c.get("num_nextn_predict_layers", 0)):
        p = f"model.layers.{l}."
        yield [*layer(c, l), *plain(p + "eh_proj.weight", H, 2 * H), *plain(p + "enorm.weight", H),
               *plain(p + "hnorm.weight", H), *plain(p + "shared_head.norm.weight", H),
               *plain(p + "shared_head.head.weight", V, H), *plain(p + "embed_tokens.weight", V, H)]  # fmt: skip


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


class Weights:
    """Values of about 1 / 64, or random codes with scales that give values of that size."""

    def __init__(self, seed):
        self.place, draw = random.Random(seed), random.Random(seed + 1)
        some = [draw.gauss(0, 1 / 64) for _ in range(DRAWN)]
        self.drawn = {
            "BF16": struct.pack(f"<{DRAWN}H", *map(bf16, some)),
            "F32": struct.pack(f"<{DRAWN}f", *some),
            "F8_E4M3": bytes(b - 1 if b & 127 == 127 else b for b in draw.randbytes(DRAWN)),
            "U8": draw.randbytes(DRAWN),
            "I32": draw.randbytes(4 * DRAWN),
            "scales of FP8": struct.pack("<f", 1e-4) * DRAWN,
            "scales of FP8 in BF16": struct.pack("<H", bf16(1e-4)) * DRAWN,
            "scales of INT4": struct.pack("<H", bf16(1 / 256)) * DRAWN,
            "scales of MXFP4": bytes(draw.choice((119, 120, 121)) for _ in range(DRAWN)),
            "ones": struct.pack("<H", bf16(1.0)) * DRAWN,
        }

    def write(self, out, name, dtype, shape):
        kind = ("ones" if name.endswith("norm.weight") else "scales of FP8 in BF16" if dtype == "BF16" and name.endswith("scale_inv")
                else "scales of FP8" if name.endswith("scale_inv")
                else "scales of INT4" if name.endswith("weight_scale") and dtype != "U8" else "scales of MXFP4" if name.endswith(("_scales", "weight_scale"))
                else dtype)  # fmt: skip
        block, left = memoryview(self.drawn[kind]), SIZE[dtype] * math.prod(shape)
        at = SIZE[dtype] * self.place.randrange(DRAWN)
        while left:
            left -= out.write(block[at:at + left])
            at = 0


def text_of(c):
    """The text part, with the quantisation of the whole."""
    own = {k: c[k] for k in ("quantization_config",) if k in c}
    return {**c.get("text_config", c), **own}


def cut(c, layers):
    """The first layers, and the first entries of lists that have one for each layer; Gemma's last layer is full."""
    if "text_config" in c:
        return {**c, "text_config": cut(c["text_config"], layers)}
    L = c["num_hidden_layers"]
    part = slice(-layers, None) if c["model_type"] == "gemma4_text" else slice(layers)
    short = {k: v[part] for k, v in c.items() if isinstance(v, list) and len(v) == L}
    return {**c, **short, "num_hidden_layers": layers}


def make(model, c, holes):
    """Write a checkpoint; returns the bytes of its tensors and their number."""
    os.makedirs(model)
    weights, names, total = None if holes else Weights(11), {}, 0
    prefix = "language_model." if "text_config" in c else ""
    shards = [[(prefix + name, dtype, shape) for name, dtype, shape in shard] for shard in tensors(text_of(c))]
    for i, shard in enumerate(shards):
        file, header, at = f"model-{i + 1:05}-of-{len(shards):05}.safetensors", {}, 0
        for name, dtype, shape in shard:
            size = SIZE[dtype] * math.prod(shape)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            names[name], at = file, at + size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(model, file), "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name, dtype, shape in shard:
                if name.endswith("weight_packed"):
                    matrix = struct.pack("<2q", shape[0], 8 * shape[1])
                if name.endswith("weight_shape"):
                    out.write(matrix)
                elif weights:
                    weights.write(out, name, dtype, shape)
                else:
                    out.seek(SIZE[dtype] * math.prod(shape), os.SEEK_CUR)
            out.truncate(8 + len(text) + at)
        total += at
    with open(os.path.join(model, "model.safetensors.index.json"), "w") as out:
        json.dump({"metadata": {"total_size": total}, "weight_map": names}, out)
    with open(os.path.join(model, "config.json"), "w") as out:
        json.dump(c, out, indent=2)
    return total, len(names)


def make_tokens(path, count, vocabulary):
    draw = random.Random(3)
    head = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d,), }" % count
    head += " " * (-(len(head) + 11) % 64) + "\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head.encode())
        f.write(struct.pack(f"<{count}i", *(draw.randrange(vocabulary) for _ in range(count))))


# --- runs ----------------------------------------------------------------------------------------------


class Run:
    """Run a tool until it ends, or send it a signal `stop` seconds after its start."""

    def __init__(self, command, stop=None):
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.peak = self.read = self.written = 0  # bytes; wait4's peak would include this interpreter's own
        self.ended, asked = None, None
        while process.poll() is None:
            self.look(process.pid)
            if stop is not None and asked is None and time.monotonic() - began > stop:
                asked = time.monotonic()
                process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        now = time.monotonic()
        self.seconds, self.status = now - began, process.returncode
        if asked and self.status:
            self.ended = now - asked
        self.out, self.said = process.communicate()

    def look(self, pid):
        try:
            with open(f"/proc/{pid}/status") as f:
                self.peak = max(self.peak, next((1024 * int(x.split()[1]) for x in f if x.startswith("VmHWM")), 0))
            with open(f"/proc/{pid}/io") as f:
                of = dict(line.split(": ") for line in f)
                self.read, self.written = int(of["rchar"]), int(of["wchar"])
        except (OSError, ValueError):
            pass


def tool(name):
    return os.path.join(os.environ.get("BUILD", "build"), "bin", name)


def need(run, command):
    if run.status:
        sys.exit(f"{' '.join(command)}\nended with status {run.status}: {run.said}")
    return run


def span(seconds):
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.0f} min"


def amount(n):
    return "" if n is None else f"{n / 1e6:.1f} MB" if n < 1e9 else f"{n / 1e9:.2f} GB"


def size_of(path):
    if os.path.isdir(path):
        return sum(size_of(os.path.join(path, name)) for name in os.listdir(path))
    return os.path.getsize(path) if os.path.exists(path) else 0


def plan(o, name, c, path, total, names):
    """Print the dry runs of the tools that compute."""
    tokens = os.path.join(o.dir, "tokens.u16")
    with open(tokens, "wb") as out:
        out.truncate(2 * o.tokens)
    ranks = ["mpirun", "--oversubscribe", "-n", str(o.ranks)] if o.ranks else []
    methods = [o.method] if o.method else ["learned"] if o.batch else ["exchange", "learned", "saliency"]
    print(f"\n{name}: {total / 1e9:.1f} GB, {names} tensors", flush=True)
    for program, more in ("fm-rank", []), *(("fm-train", ["--method", m]) for m in methods), ("fm-recover", []):
        say = ["--seq-len", str(o.seq_len), "--memory", o.memory, "--precision", o.precision]
        say += ["--batch", str(o.batch)] if o.batch and program != "fm-rank" else []
        command = [*ranks, tool(program), "--dry-run", "--model", path, "--tokens", tokens, *say, *more]
        run = Run(command)
        if "; use --memory " in run.said:  # the layers of some releases need more than the given memory
            least = run.said.split("; use --memory ")[1].split()[0]
            command, say = ([least if x == o.memory else x for x in words] for words in (command, say))
            run = Run(command)
        print("$", " ".join([*ranks, program, "--tokens calib.bin", *say, *more]))
        print(run.out + run.said, end="")
        print(f"({'status %d, ' % run.status if run.status else ''}{run.seconds:.2f} s, {amount(run.peak)})", flush=True)


class Stage:
    """A command of the pipeline and its output; dry: it has a dry run."""

    def __init__(self, label, command, made=None, dry=True):
        self.label, self.command, self.made, self.dry = label, command, made, dry

    def forecast(self):
        """The result of the dry run as a dictionary, and the time and memory that the dry run took."""
        if not self.dry:
            return {}, ""
        command = [*self.command, "--dry-run", "--json"]
        run = need(Run(command), command)
        says = json.loads(run.out)
        if "bytes_out" in says:
            del says["seconds"]  # fm-pack's are those of the dry run
        return says, f"{run.seconds:.2f} s, {amount(run.peak)}"

    def go(self, share):
        says, took = self.forecast()
        first = None
        if share:
            first = Run(self.command, share * max(says.get("seconds", 0), LEAST))
            if first.ended is None:
                need(first, self.command)
            elif first.status not in (75, -signal.SIGTERM) or (self.made and os.path.exists(self.made)):
                sys.exit(f"{self.label}: status {first.status} after SIGTERM: {first.said}")
        run = need(Run(self.command), self.command) if not first or first.status else first
        made = size_of(self.made) if self.made else 0
        read = says.get("read", says.get("bytes_in"))
        written = says.get("output", says.get("bytes_out"))
        ended = f"{first.ended:.1f} s" if first and first.ended else ""
        print(f"| {self.label} | forecast | {span(says['seconds']) if 'seconds' in says else ''} | "
              f"{amount(says.get('memory', says.get('bytes_memory')))} | {amount(read)} | {amount(written)} | "
              f"{amount(says.get('spill'))} | | {took} |")  # fmt: skip
        print(f"| | measured | {span(run.seconds)} | {amount(run.peak)} | {amount(run.read)} | {amount(made)} | "
              f"{amount(max(run.written - made, 0))} | {ended} | |", flush=True)  # fmt: skip


def pipeline(o, c, path):
    at = lambda name: os.path.join(o.dir, name)
    make_tokens(at("tokens.npy"), o.tokens, c["vocab_size"])
    data = ["--model", path, "--tokens", at("tokens.npy"), "--seq-len", str(o.seq_len), "--precision", o.precision,
            "--memory", o.memory, "--quiet"]  # fmt: skip
    method = ["--method", o.method or "saliency", "--budget-step", "0.1", "--until", "0.5"]
    kept = "quantization_config" in c
    weights = {form: ["--weights", form] for form in o.weights.split(",")} if kept else {"": []}
    if o.narrow > 1 and c.get("quantization_config") == FP8:
        weights.pop("keep", None)  # an expert has fewer than two blocks
    stages = [Stage("rank", [tool("fm-rank"), *data, "--state", at("rank.state"), "-o", at("ranking")], at("ranking")),
              Stage("train", [tool("fm-train"), *data, *method, "--state", at("train.state"), "-o", at("masks"),
                              at("ranking")], at("masks")),
              Stage("recover", [tool("fm-recover"), *data, "--budget", o.budget, "--steps", str(o.steps), "--batch", "1",
                                "--state", at("recover.state"), "-o", at("adapter"), at("masks")], at("adapter"))]  # fmt: skip
    recovered = "recover" in o.stages.split(",") and not kept
    for form, say in weights.items():
        bundle, label = at(f"bundle{form}.fm"), f" {form}" if form else ""
        stages.append(Stage("pack" + label, [tool("fm-pack"), "--model", path, "--quiet", *say, "-o", bundle,
                                             at("adapter" if recovered else "masks")], bundle))  # fmt: skip
        stages.append(Stage("list" + label, [tool("fm-pack"), "--list", bundle], dry=False))
        copy = f"cp --reflink=never {bundle} {at('copy')} && sync {at('copy')} && rm {at('copy')}"
        stages.append(Stage("copy" + label, ["sh", "-c", copy], dry=False))  # copies as many bytes, for comparison
        stages.append(Stage("report" + label, [tool("fm-bench"), "report", "--force", "-o", at("report.html"), bundle], at("report.html"), False))
        stages.append(Stage("quality" + label, [tool("fm-bench"), "quality", "--eval-tokens", *data[3:], "--budgets", o.budget, bundle]))
        stages.append(Stage("verify" + label, [tool("fm-verify"), "--quiet", bundle], dry=False))
        for layout in o.layouts.split(","):
            made = at("export-" + layout)
            stages.append(Stage(f"export {layout}{label}", [tool("fm-pack"), "--export", made, "--layout", layout, "--budget",
                                                            o.budget, "--quiet", bundle], made))  # fmt: skip
            stages.append(Stage(f"verify {layout}{label}", [tool("fm-verify"), "--quiet", made, "--against", bundle], dry=False))
    print("| step | | time | memory | read | written | temporary | SIGTERM to end | the dry run itself |")
    print("| :-- | :-- | --: | --: | --: | --: | --: | --: | --: |", flush=True)
    for stage in stages:
        if stage.label.split()[0] in o.stages.split(","):
            stage.go(0 if stage.label.startswith("copy") else o.stop)
        if stage.label == "pack" and o.drop:
            shutil.rmtree(path)
        if stage.label.startswith("verify ") and not o.keep:
            shutil.rmtree(stage.command[2], ignore_errors=True)


def narrow(c, by):
    """Divide the widths by `by`, and round them down to multiples of `least`."""
    least = {"hidden_size": 2 * GROUP, "moe_intermediate_size": 2 * GROUP, "intermediate_size": 2 * GROUP,
             "shared_expert_intermediate_size": 16, "vocab_size": 256, "num_attention_heads": 2,
             "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16, "head_dim": 16,
             "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16}  # fmt: skip
    return {k: max(v // by // least[k] * least[k], least[k]) if by > 1 and k in least and v else v for k, v in c.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", nargs="+", choices=SHAPES, metavar="SHAPE", help=", ".join(SHAPES))
    p.add_argument("--plan-only", action="store_true")
    p.add_argument("--tokens", type=int, help="2048; with --plan-only 262144")
    p.add_argument("--seq-len", type=int, help="256; with --plan-only 2048")
    p.add_argument("--memory", help="8GiB; with --plan-only 16GB")
    p.add_argument("--precision", default="f32")
    p.add_argument("--method", help="saliency; with --plan-only exchange, learned and saliency")
    p.add_argument("--dir")
    p.add_argument("--layers", type=int)
    p.add_argument("--narrow", type=int, default=1, metavar="N")
    p.add_argument("--stages", default="rank,train,recover,pack,copy,list,report,quality,verify,export")
    p.add_argument("--layouts", default="uniform")
    p.add_argument("--weights", default="keep,bf16", help="formats in which a quantised model is bundled")
    p.add_argument("--budget", default="0.4")
    p.add_argument("--steps", type=int, default=8, help="steps of fm-recover, one sequence each")
    p.add_argument("--stop", type=float, default=0.5, metavar="SHARE", help="0: no stage is interrupted")
    p.add_argument("--keep", action="store_true")
    p.add_argument("--drop", action="store_true", help="remove the checkpoint once it is packed")
    p.add_argument("--ranks", type=int, default=0, help="only with --plan-only, like --batch")
    p.add_argument("--batch", type=int)
    o = p.parse_args()
    o.tokens = o.tokens or (262144 if o.plan_only else 2048)
    o.seq_len = o.seq_len or (2048 if o.plan_only else 256)
    o.memory = o.memory or ("16GB" if o.plan_only else "8GiB")
    o.dir = o.dir or os.path.join(os.environ.get("BUILD", "build"), "fullsize")
    if o.ranks:
        os.environ["BUILD"] = os.path.join(os.environ.get("BUILD", "build"), "mpi")
    for name in o.shape:
        c = narrow(SHAPES[name], o.narrow)
        c = cut(c, o.layers) if o.layers else c
        os.makedirs(o.dir)
        try:
            path = os.path.join(o.dir, name)
            total, names = make(path, c, o.plan_only)
            if o.plan_only:
                plan(o, name, c, path, total, names)
            else:
                print(f"\n{name}: {total / 1e9:.2f} GB, {c['num_hidden_layers']} layers, {names} tensors\n", flush=True)
                pipeline(o, c, path)
        finally:
            if not o.keep:
                shutil.rmtree(o.dir)


if __name__ == "__main__":
    main()
