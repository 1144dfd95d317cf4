"""Make golden/packed/: a small Qwen3-MoE in each supported format of compressed-tensors and ModelOpt,
quantised by these packages.

    packed.py OUT       (compressed-tensors 0.20.0, nvidia-modelopt 0.47.0, torch 2.15.0)

Experts have 64 channels, and the hidden size is 32.  In some of the formats attention is quantised,
too.  The values that the packages decode in float32 are compared with those of
tests/cli/codes.py.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.compressors.nvfp4.base import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from safetensors.torch import save_file

H, I, E, L, V, HEADS, HEAD = 32, 64, 4, 2, 61, 2, 16
F8 = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
F4 = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
I4 = {"num_bits": 4, "type": "int", "symmetric": True, "dynamic": False}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}

# Mixtures of formats: a matrix has the first format whose key is part of its name.  `mixed` is what
# llm-compressor writes for attention in FP8 blocks and experts in NVFP4, each group with its own format;
# `modelopt-mixed` is ModelOpt's MIXED_PRECISION.
MIXED = {
    "mixed": {"self_attn": "fp8-block", "experts": "nvfp4"},
    "modelopt-mixed": {"o_proj": "mxfp8", "self_attn": "fp8-tensor", "experts": "nvfp4-modelopt"},
}
ALGORITHMS = {  # ModelOpt's names
    "mxfp8": {"quant_algo": "MXFP8", "group_size": 32}, "fp8-tensor": {"quant_algo": "FP8"},
    "nvfp4-modelopt": {"quant_algo": "NVFP4", "group_size": 16},
}  # fmt: skip

# name: format, weights, activations, whether attention is quantised
CT = {
    "fp8-channel": ("float-quantized", F8 | {"strategy": "channel"}, TOKEN, True),
    "fp8-static": ("float-quantized", F8 | {"strategy": "tensor"}, STATIC, True),
    "fp8-block": ("float-quantized", F8 | {"strategy": "block", "block_structure": [16, 32]}, TOKEN, False),
    "w4a16": ("pack-quantized", I4 | {"strategy": "group", "group_size": 32}, None, True),
    "nvfp4": ("nvfp4-pack-quantized", F4 | {"strategy": "tensor_group", "group_size": 16,
                                            "scale_dtype": "torch.float8_e4m3fn"}, None, False),
    "mxfp4": ("mxfp4-pack-quantized", F4 | {"strategy": "group", "group_size": 32,
                                            "scale_dtype": "torch.uint8"}, None, True),
    "mxfp8": ("mxfp8-quantized", F8 | {"strategy": "group", "group_size": 32,
                                       "scale_dtype": "torch.uint8"}, None, False),
}  # fmt: skip


def base():
    g = torch.Generator().manual_seed(90)

    def normal(*shape, std=0.2):
        return (torch.randn(*shape, generator=g) * std).to(torch.bfloat16)

    t = {"model.embed_tokens.weight": normal(V, H, std=1), "lm_head.weight": normal(V, H),
         "model.norm.weight": 1 + normal(H)}  # fmt: skip
    for l in range(L):
        p = f"model.layers.{l}."
        for norm in ("input", "post_attention"):
            t[p + norm + "_layernorm.weight"] = 1 + normal(H)
        for x, n in (("q", HEADS), ("k", 1), ("v", 1)):
            t[p + f"self_attn.{x}_proj.weight"] = normal(n * HEAD, H)
        t[p + "self_attn.o_proj.weight"] = normal(H, HEADS * HEAD)
        for x in "qk":
            t[p + f"self_attn.{x}_norm.weight"] = 1 + normal(HEAD)
        t[p + "mlp.gate.weight"] = normal(E, H, std=0.5)
        for e in range(E):
            q = p + f"mlp.experts.{e}."
            t[q + "gate_proj.weight"], t[q + "up_proj.weight"] = normal(I, H), normal(I, H)
            t[q + "down_proj.weight"] = normal(H, I)
    return t


def config(quantization):
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "bos_token_id": None,
        "decoder_sparse_step": 1, "eos_token_id": None, "head_dim": HEAD, "hidden_act": "silu",
        "hidden_size": H, "intermediate_size": I, "max_position_embeddings": 512,
        "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": I,
        "norm_topk_prob": True, "num_attention_heads": HEADS, "num_experts": E,
        "num_experts_per_tok": 2, "num_hidden_layers": L, "num_key_value_heads": 1,
        "quantization_config": quantization, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "use_sliding_window": False, "vocab_size": V,
    }  # fmt: skip


def compress(name, w):
    """Quantise one matrix; returns the tensors, and their values in float32 as decoded by the package."""
    if name == "nvfp4-modelopt":
        from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

        q, scale, second = NVFP4QTensor.quantize(w.clone(), 16)
        back = q.dequantize(dtype=torch.float32, scale=scale, double_scale=second, block_sizes={-1: 16})
        return {"weight": q._quantized_data, "weight_scale": scale, "weight_scale_2": second,
                "input_scale": torch.tensor(1.0)}, back  # fmt: skip
    if name == "fp8-tensor":  # torch/export/quant_utils.py: to_quantized_weight
        scale = w.abs().amax().float() / 448
        code = (w / scale).to(torch.float8_e4m3fn)
        return {"weight": code, "weight_scale": scale, "input_scale": torch.tensor(1.0)}, code.float() * scale
    fmt, weights = CT[name][:2]
    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    if args.block_structure:
        r, c = args.block_structure
        p = w.reshape(w.shape[0] // r, r, -1, c)
        low, high = p.amin((1, 3)), p.amax((1, 3))
    elif args.strategy == "tensor":
        low, high = w.amin().reshape(1), w.amax().reshape(1)
    elif args.group_size:
        p = w.unflatten(-1, (-1, args.group_size))
        low, high = p.amin(-1), p.amax(-1)
    else:
        low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    state = {"weight": w}
    if name == "nvfp4":
        state["weight_global_scale"] = generate_gparam(w.amin(), w.amax())
    state["weight_scale"], _ = calculate_qparams(low, high, args, state.get("weight_global_scale"))
    package = BaseCompressor.get_value_from_registry(fmt)
    out = {k: v.detach().contiguous() for k, v in package.compress(state, scheme).items()}
    if args.strategy == "tensor":
        out["input_scale"] = torch.ones(1, dtype=w.dtype)
    if name == "nvfp4":  # its decompress() computes in bfloat16
        codes = unpack_fp4_from_uint8(out["weight_packed"], *w.shape).float()
        scale, factor = out["weight_scale"].float(), out["weight_global_scale"].float()
        return out, dequantize(codes, scale, args=args, global_scale=factor, dtype=torch.float32)
    wide = {k: v.float() if v.dtype == torch.bfloat16 else v.clone() for k, v in out.items()}
    return out, package.decompress(wide, scheme)["weight"].float()


def make(name, out):
    attention = CT[name][3] if name in CT else name in MIXED
    tensors, values, layers = {}, {}, {}
    for key, t in base().items():
        if not key.endswith("_proj.weight") or not (attention or ".experts." in key):
            tensors[key] = t
            continue
        form = next((x for part, x in MIXED.get(name, {}).items() if part in key), name)
        made, values[key] = compress(form, t)
        layers[key.removesuffix(".weight")] = ALGORITHMS.get(form)
        for part, x in made.items():
            tensors[key.removesuffix("weight") + part] = x.cpu().contiguous()
    ignore = ["lm_head", "re:.*mlp.gate$"] + ([] if attention else ["re:.*self_attn.*"])
    if name in CT:
        fmt, weights, activations, _ = CT[name]
        quantization = {
            "quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "input_activations": activations}},
            "kv_cache_scheme": None, "ignore": ignore,
        }  # fmt: skip
    elif name == "mixed":
        groups = {f"group_{i}": {"targets": [f"re:.*{m}.*_proj$"], "format": CT[x][0], "weights": CT[x][1],
                                 "input_activations": CT[x][2]} for i, (m, x) in enumerate(MIXED[name].items())}  # fmt: skip
        quantization = {"quant_method": "compressed-tensors", "format": "mixed-precision",
                        "quantization_status": "compressed", "config_groups": groups, "kv_cache_scheme": None,
                        "ignore": ignore}  # fmt: skip
    elif name == "modelopt-mixed":
        quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                        "quantized_layers": layers, "ignore": ["lm_head", "*mlp.gate"]}  # fmt: skip
    else:
        quantization = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16,
                        "ignore": ["lm_head", "*mlp.gate", "*self_attn*"]}  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config(quantization), indent=2) + "\n")
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    np.save(out / "tokens.npy", np.random.default_rng(91).integers(0, V, (6, 17), dtype=np.int32))
    compare(out, values)


def compare(model, values):
    """Print the matrices for which the decoder of the tests does not give exactly the package's values."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "cli"))
    import codes

    decoded = codes.decoded(str(model))
    for key, want in values.items():
        have = torch.tensor(decoded[key][1]).reshape(want.shape)
        if not torch.equal(have, want):
            print(f"{model.name}: {key}: {(have != want).sum()} of {want.numel()} values differ, by",
                  f"{((have - want).abs().max() / want.abs().max()).item():.2e} of the largest")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in [*CT, "nvfp4-modelopt", *MIXED]:
        make(name, Path(sys.argv[1]) / name)
