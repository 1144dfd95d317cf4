"""The untrained, deliberately odd model: no size is a multiple of another or of 32.

It guards the corners that a trained model of round sizes cannot: head_dim apart from H / heads,
grouped heads, a window shorter than the sequence, tied embeddings, F16 weights in two shards,
the key spellings of transformers 4, and in layer 1 an expert that no token can reach.
"""

import json

import numpy as np
import torch

import goldens
import oracle

SEED = 20
L, H, Q, G, C, I, E, K, V = 3, 48, 6, 2, 10, 37, 5, 2, 97
S, T = 6, 23
UNREACHED = (1, 4)  # layer, expert
RECIPE = goldens.Recipe(
    seed=SEED + 1,
    actions=(4, 15, 26, 37),  # 0.1 0.4 0.7 1.0 of 37 channels, rounded up
    gap_min=1e-3,
)

CONFIG = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": C,
    "hidden_act": "silu",
    "hidden_size": H,
    "initializer_range": 0.02,
    "intermediate_size": I,
    "max_position_embeddings": 64,
    "model_type": "mixtral",
    "num_attention_heads": Q,
    "num_experts_per_tok": K,
    "num_hidden_layers": L,
    "num_key_value_heads": G,
    "num_local_experts": E,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 5000.0,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "sliding_window": 7,
    "tie_word_embeddings": True,
    "torch_dtype": "float16",
    "transformers_version": "4.57.0",
    "use_cache": True,
    "vocab_size": V,
}


def shapes():
    """Tensor names on disk with shape and standard deviation: large enough that attention is
    peaked and experts outweigh the residual stream."""
    table = {"model.embed_tokens.weight": ((V, H), 0.3), "model.norm.weight": ((H,), 0.2)}
    for l in range(L):
        p = f"model.layers.{l}."
        table[p + "input_layernorm.weight"] = ((H,), 0.2)
        table[p + "self_attn.q_proj.weight"] = ((Q * C, H), 0.25)
        table[p + "self_attn.k_proj.weight"] = ((G * C, H), 0.25)
        table[p + "self_attn.v_proj.weight"] = ((G * C, H), 0.2)
        table[p + "self_attn.o_proj.weight"] = ((H, Q * C), 0.1)
        table[p + "post_attention_layernorm.weight"] = ((H,), 0.2)
        table[p + "block_sparse_moe.gate.weight"] = ((E, H), 0.3)
        for e in range(E):
            q = f"{p}block_sparse_moe.experts.{e}."
            table[q + "w1.weight"] = ((I, H), 0.25)
            table[q + "w2.weight"] = ((H, I), 0.15)
            table[q + "w3.weight"] = ((I, H), 0.25)
    return table


def weights(generator):
    """F16 tensors.  Norms scatter around 1.  The unreached expert's router row is zero while the
    others are +a -a +b -b, so two of those are always above it."""
    tensors = {}
    for name, (shape, std) in shapes().items():
        value = torch.randn(shape, generator=generator) * std
        tensors[name] = ((1.0 if "norm" in name else 0.0) + value).to(torch.float16)
    layer, expert = UNREACHED
    router = tensors[f"model.layers.{layer}.block_sparse_moe.gate.weight"]
    router[1], router[3], router[expert] = -router[0], -router[2], 0.0
    return tensors


def save_sharded(folder, tensors):
    """Two shards and their index; the cut falls inside layer 1, between experts."""
    names = sorted(tensors)
    cut = len(names) // 2
    weight_map = {}
    for i, part in enumerate((names[:cut], names[cut:]), start=1):
        file = f"model-{i:05d}-of-00002.safetensors"
        oracle.save(folder / file, {n: tensors[n] for n in part})
        weight_map.update({n: file for n in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def make(folder):
    """Config, shards, tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(SEED)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    save_sharded(folder, weights(generator))
    tokens = torch.randint(0, V, (S, T), generator=generator)
    np.save(folder / "tokens.npy", tokens.numpy().astype("<i4"))


def make_goldens(folder):
    """golden.safetensors from the model on disk."""
    ids = torch.from_numpy(np.load(folder / "tokens.npy").astype(np.int64))
    pair = ids[:2]
    model = oracle.load(folder)
    goldens.refuse_ties(model, ids, RECIPE)
    out = {"ids": ids.int()} | goldens.outputs(model, ids) | goldens.ranking(model, ids, (1, 2))
    out |= goldens.gradients(model, pair)
    for l, grads in enumerate(oracle.expert_grads(model)):
        for e in range(E):
            out |= {f"grad.layers.{l}.experts.{e}.{w}": grad[e] for w, grad in grads.items()}
    oracle.rank_in_place(model, out["rank.order"].long())
    out |= goldens.subnet(model, pair, RECIPE)
    out |= goldens.lora(model, pair, out["subnet.widths"].long(), RECIPE)
    oracle.save(folder / "golden.safetensors", out)
