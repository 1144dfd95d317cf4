"""The row of odd.py's table that is stored in FP8 in blocks of 128 x 128; otherwise it is a Qwen3."""

import torch

from families import QWEN3
from goldens import Recipe
from odd import Odd

BLOCK = 128
PLAIN = ("lm_head", "mlp.gate", "model.layers.1.self_attn.k_proj")  # modules_to_not_convert


def spread(scale, shape):
    """The scale of every element; blocks are cut at the far edges."""
    value = torch.exp2(scale.float() - 127) if scale.dtype == torch.uint8 else scale.float()
    wide = value.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return wide[: shape[0], : shape[1]]


def stored_scale(name, scale):
    """Use every dtype of scales: float32 in layer 0; in layer 1 bfloat16 (even-numbered experts) and
    powers of two, as F8_E8M0 (odd-numbered experts) and as bytes (attention)."""
    if ".layers.0." in name:
        return scale
    if ".experts." in name and int(name.split(".experts.")[1].split(".")[0]) % 2 == 0:
        return scale.bfloat16()
    exponent = torch.ceil(torch.log2(scale)) + 127
    bytes_ = exponent.to(torch.uint8)
    return bytes_ if "self_attn" in name else bytes_.view(torch.float8_e8m0fnu)


def quantise(tensors):
    """Quantise the matrices of linear layers; one expert has scales so large that most codes are subnormal."""
    for name in sorted(tensors):
        module = name.removesuffix(".weight")
        t = tensors[name].float()
        if t.dim() != 2 or "embed" in name or any(module.endswith(p) for p in PLAIN):
            continue
        grid = [-(-n // BLOCK) for n in t.shape]
        scale = torch.empty(grid)
        for i in range(grid[0]):
            for j in range(grid[1]):
                block = t[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
                scale[i, j] = block.abs().max() / 448
        if ".layers.1.mlp.experts.3." in name:
            scale *= 2.0**12
        stored = stored_scale(name, scale)
        tensors[name] = (t / spread(stored, t.shape)).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = stored


FP8 = Odd(
    seed=70,
    T=18,
    own={
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "bos_token_id": None,
        "decoder_sparse_step": 1,
        "eos_token_id": None,
        "head_dim": 26,
        "hidden_size": 132,  # larger than a block, as are heads x head_dim and the experts' channels
        "intermediate_size": 61,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 131,
        "norm_topk_prob": True,
        "num_attention_heads": 6,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 2,
        "num_local_experts": 4,
        "pad_token_id": None,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": list(PLAIN),
            "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
        },
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_sliding_window": False,
        "vocab_size": 79,
    },
    draws=QWEN3.draws,
    shards=2,
    recipe=Recipe(seed=71, actions=(13, 52, 92, 131), gap_min=2e-4),
    tweak=quantise,
)

ROWS = {"odd-fp8": FP8}
