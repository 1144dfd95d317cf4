"""The untrained, deliberately odd models: almost no size of a tensor is a multiple of 32.

They cover cases that a trained model of round sizes does not.  The code that all of them share is
here, with Mixtral's row of the table: head_dim different from H / heads, grouped heads, a window
shorter than the sequence, tied embeddings, F16 weights in two shards, the key spellings of
transformers 4, and in layer 1 an expert that no token can reach.  families.py and quantised.py have
the other rows.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import decoded
import goldens
import oracle

S = 6  # sequences of tokens.npy


# Defaults of the rows' config.json.
CONFIG = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 64,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
    "use_cache": True,
}


@dataclass(frozen=True)
class Odd:
    """A row: config.json, tensors, and the parameters of the goldens."""

    seed: int
    own: dict  # keys of config.json in addition to CONFIG's
    shapes: Callable  # config -> names on disk, each with shape and standard deviation
    recipe: goldens.Recipe
    T: int = 20
    dtype: torch.dtype = torch.bfloat16
    shards: int = 1
    tweak: Callable = None  # changes the tensors after they are drawn
    wrapper: dict = None  # for a multimodal model: config.json without text_config, which is `config`
    members: bool = True  # goldens of masks at several budgets, and of the layer boundaries

    @property
    def config(self):
        """The config in the order in which transformers writes the keys."""
        return dict(sorted((CONFIG | self.own).items()))


# --- Mixtral --------------------------------------------------------------------------------------

UNREACHED = (1, 4)  # layer, expert


def mixtral_shapes(c):
    """Deviations so large that attention is peaked and experts dominate the residual stream."""
    V, H, I = c["vocab_size"], c["hidden_size"], c["intermediate_size"]
    q, g = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    table = {"model.embed_tokens.weight": ((V, H), 0.3), "model.norm.weight": ((H,), 0.2)}
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        table[p + "input_layernorm.weight"] = ((H,), 0.2)
        table[p + "self_attn.q_proj.weight"] = ((q, H), 0.25)
        table[p + "self_attn.k_proj.weight"] = ((g, H), 0.25)
        table[p + "self_attn.v_proj.weight"] = ((g, H), 0.2)
        table[p + "self_attn.o_proj.weight"] = ((H, q), 0.1)
        table[p + "post_attention_layernorm.weight"] = ((H,), 0.2)
        table[p + "block_sparse_moe.gate.weight"] = ((c["num_local_experts"], H), 0.3)
        for e in range(c["num_local_experts"]):
            x = f"{p}block_sparse_moe.experts.{e}."
            table[x + "w1.weight"] = ((I, H), 0.25)
            table[x + "w2.weight"] = ((H, I), 0.15)
            table[x + "w3.weight"] = ((I, H), 0.25)
    return table


def unreach(tensors):
    """Make the router row of the unreached expert zero and the others +a -a +b -b, so that two of these are
    always larger."""
    layer, expert = UNREACHED
    router = tensors[f"model.layers.{layer}.block_sparse_moe.gate.weight"]
    router[1], router[3], router[expert] = -router[0], -router[2], 0.0


MIXTRAL = Odd(
    seed=20,
    T=23,
    own={
        "architectures": ["MixtralForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 10,
        "hidden_size": 48,
        "intermediate_size": 37,
        "model_type": "mixtral",
        "num_attention_heads": 6,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_local_experts": 5,
        "rms_norm_eps": 1e-05,
        "rope_theta": 5000.0,
        "router_jitter_noise": 0.0,
        "sliding_window": 7,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "transformers_version": "4.57.0",
        "vocab_size": 97,
    },
    shapes=mixtral_shapes,
    dtype=torch.float16,
    shards=2,  # the cut falls inside an expert of layer 1
    recipe=goldens.Recipe(
        seed=21,
        actions=(4, 15, 26, 37),  # 0.1 0.4 0.7 1.0 of 37 channels, rounded up
        gap_min=1e-3,
        lora_rank=3,
    ),
    tweak=unreach,
    members=False,
)


# --- every row ------------------------------------------------------------------------------------


def weights(odd, generator):
    """Norm weights scatter around 1, all else around 0."""
    tensors = {}
    for name, (shape, std) in odd.shapes(odd.config).items():
        value = torch.randn(shape, generator=generator) * std
        tensors[name] = (value + (1.0 if name.endswith("norm.weight") else 0.0)).to(odd.dtype)
    if odd.tweak:
        odd.tweak(tensors)
    return tensors


def save_sharded(folder, tensors, shards):
    """Write model.safetensors, or shards with about the same number of tensors, and their index."""
    if shards == 1:
        oracle.save(folder / "model.safetensors", tensors)
        return
    names = sorted(tensors)
    cuts = [len(names) * i // shards for i in range(shards + 1)]
    weight_map = {}
    for i in range(shards):
        part = names[cuts[i] : cuts[i + 1]]
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        oracle.save(folder / file, {n: tensors[n] for n in part})
        weight_map.update({n: file for n in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def make(odd, folder):
    """Write the model: config.json, weights and tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(odd.seed)
    config = odd.config if odd.wrapper is None else odd.wrapper | {"text_config": odd.config}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_sharded(folder, weights(odd, generator), odd.shards)
    tokens = torch.randint(0, odd.config["vocab_size"], (S, odd.T), generator=generator)
    np.save(folder / "tokens.npy", tokens.numpy().astype("<i4"))


def make_goldens(odd, folder):
    """Compute golden.safetensors from the model on disk."""
    ids = torch.from_numpy(np.load(folder / "tokens.npy").astype(np.int64))
    pair, recipe = ids[:2], odd.recipe
    model = decoded.load(folder)
    goldens.refuse_ties(model, ids, recipe)
    out = {"ids": ids.int()} | goldens.outputs(model, ids) | goldens.ranking(model, ids, (1, 2))
    out |= goldens.gradients(model, pair)
    for l, grads in zip(oracle.moe_layers(model), oracle.expert_grads(model), strict=True):
        for e in range(len(grads["w1"])):
            out |= {f"grad.layers.{l}.experts.{e}.{w}": grad[e] for w, grad in grads.items()}
    if odd.members:
        out |= goldens.boundaries(model, pair)
    oracle.rank_in_place(model, out["rank.order"].long())
    if odd.members:
        out |= goldens.members(model, ids, recipe)
    out |= goldens.subnet(model, pair, recipe)
    out |= goldens.lora(model, pair, out["subnet.widths"].long(), recipe)
    oracle.save(folder / "golden.safetensors", out)
