"""The untrained, deliberately odd models: almost no size of a tensor is a multiple of 32.

They cover cases that a trained model of round sizes does not.  The code that all of them share is
here, with Mixtral's row of the table: head_dim different from H / heads, grouped heads, a window
shorter than the sequence, tied embeddings, F16 weights in two shards, the key spellings of
transformers 4, and in layer 1 an expert that no token can reach.  families.py and quantised.py have
the other rows.
"""

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForImageTextToText

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


# Tables of standard deviations, by the ends of names; the longest end that fits counts, in the last of a row's
# tables that has it.  All tensors are drawn from one generator: the tensors of a row's first table before those of
# the second, and in a table layer by layer, in the table's order, the experts of a layer one after another.
ENDS = {"embed_tokens.weight": 0.4, "norm.weight": 0.3, "lm_head.weight": 0.3}
ATTENTION = {
    "input_layernorm.weight": 0.3, "operator_norm.weight": 0.3, "q_proj.weight": 0.25, "k_proj.weight": 0.25,
    "v_proj.weight": 0.2, "o_proj.weight": 0.1, "self_attn.out_proj.weight": 0.1,
    "post_attention_layernorm.weight": 0.3, "ffn_norm.weight": 0.3, "q_proj.bias": 0.5, "k_proj.bias": 0.5,
    "v_proj.bias": 0.5, "o_proj.bias": 0.3, "input_layernorm.bias": 0.3, "post_attention_layernorm.bias": 0.3,
    "q_norm.weight": 0.4, "k_norm.weight": 0.4, "q_layernorm.weight": 0.4, "k_layernorm.weight": 0.4, "sinks": 1.0,
}  # fmt: skip
LATENT_ATTENTION = {
    "input_layernorm.weight": 0.3, "kv_a_proj_with_mqa.weight": 0.25, "kv_a_layernorm.weight": 0.3,
    "kv_b_proj.weight": 0.3, "o_proj.weight": 0.1, "post_attention_layernorm.weight": 0.3,
    "kv_a_proj_with_mqa.bias": 0.5, "o_proj.bias": 0.3, "q_proj.weight": 0.25, "q_a_proj.bias": 0.5,
    "q_a_proj.weight": 0.25, "q_a_layernorm.weight": 0.3, "q_b_proj.weight": 0.3,
}  # fmt: skip
BIASED_ROUTER = {"gate.weight": 0.3, "e_score_correction_bias": 0.2, "expert_bias": 0.2}
MIXTURE = {
    "gate.weight": 0.3, "router.weight": 0.3, "router.bias": 0.3, "router.layer.weight": 0.3,
    "experts.gate_proj.weight": 0.25, "experts.up_proj.weight": 0.25, "experts.down_proj.weight": 0.3,
    "experts.w1.weight": 0.25, "experts.w3.weight": 0.25, "experts.w2.weight": 0.15, "experts.gate_up_proj": 0.25,
    "experts.gate_up_proj_bias": 0.5, "experts.down_proj": 0.2, "experts.down_proj_bias": 0.2,
    "input_linear.weight": 0.25, "output_linear.weight": 0.2, "shared_mlp.input_linear.weight": 0.25,
    "shared_mlp.output_linear.weight": 0.1, "e_score_correction_bias": 0.2, "expert_bias": 0.2,
    "gate_proj.weight": 0.25, "up_proj.weight": 0.25, "down_proj.weight": 0.1, "w1.weight": 0.25, "w3.weight": 0.25,
    "w2.weight": 0.1, "shared_expert_gate.weight": 0.3,
}  # fmt: skip


@dataclass(frozen=True)
class Odd:
    """A row: config.json, tensors, and the parameters of the goldens."""

    seed: int
    own: dict  # keys of config.json in addition to CONFIG's
    recipe: goldens.Recipe
    draws: list = field(default_factory=lambda: [ENDS, ATTENTION | MIXTURE])
    T: int = 20
    dtype: torch.dtype = torch.bfloat16
    shards: int = 1
    tweak: Callable = None  # changes the tensors after they are drawn
    wrapper: dict = None  # for a multimodal model: config.json without text_config, which is `config`
    prefix: str = None  # of a wrapper whose checkpoints have it before the names of the text class's tensors; "": none
    more: dict = field(default_factory=dict)  # shapes of tensors that transformers' class does not have
    members: bool = True  # goldens of masks at several budgets, and of the layer boundaries

    @property
    def config(self):
        """The config in the order in which transformers writes the keys."""
        return dict(sorted((CONFIG | self.own).items()))

    @property
    def config_json(self):
        return self.config if self.wrapper is None else self.wrapper | {"text_config": self.config}


# --- Mixtral --------------------------------------------------------------------------------------

UNREACHED = (1, 4)  # layer, expert


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
    draws=[  # deviations so large that attention is peaked and experts dominate the residual stream
        {"embed_tokens.weight": 0.3, "norm.weight": 0.2},
        ATTENTION
        | {"input_layernorm.weight": 0.2, "post_attention_layernorm.weight": 0.2, "gate.weight": 0.3}
        | {"experts.w1.weight": 0.25, "experts.w2.weight": 0.15, "experts.w3.weight": 0.25},
    ],
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


def shapes(odd):
    """The names on disk and their shapes, from transformers' class."""
    config = {k: v for k, v in odd.config_json.items() if k != "quantization_config"}
    found, before = {}, odd.prefix or ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        config = AutoConfig.from_pretrained(folder)
        config = config.get_text_config() if odd.prefix else config
        whole = odd.wrapper and odd.prefix is None
        model = (AutoModelForImageTextToText if whole else oracle.class_of(config)).from_config(config)
        if whole:  # the experts are fused on the hub, as in the class
            stored = [n for n in model.state_dict() if n != "lm_head.weight" or not config.tie_word_embeddings]
            return {n: tuple(model.state_dict()[n].shape) for n in stored} | odd.more
        model.save_pretrained(folder)
        for file in folder.glob("*.safetensors"):
            with safe_open(file, "pt") as tensors:
                found |= {before + n: tuple(tensors.get_slice(n).get_shape()) for n in tensors.keys()}
    return found | odd.more


LAYER = re.compile(r"(?:language_model\.)?model\.(?:language_model\.)?layers\.(\d+)\.")
EXPERT = re.compile(r"\.experts\.(\d+)(?=\.)")


def place(name, draws):
    """The place of a tensor in the order of drawing, and its standard deviation."""
    layer, expert = LAYER.match(name), EXPERT.search(name)
    end = "." + EXPERT.sub(".experts", name)
    fits = [(len(key), t, key) for t, table in enumerate(draws) for key in table if end.endswith("." + key)]
    if not fits:
        raise KeyError(name)
    _, t, key = max(fits)
    at = list(draws[t]).index(key)
    first = next(i for i, k in enumerate(draws[t]) if k.startswith("experts.")) if expert else at
    return (t, int(layer[1]) if layer else -1, first, int(expert[1]) if expert else -1, at), draws[t][key]


VISION = "model.visual.", "vision_model.", "vit_large_projector."


def weights(odd, generator):
    """Norm weights scatter around 1, all else around 0."""
    tensors, shape_of = {}, shapes(odd)
    wanted = [n for n in shape_of if not n.startswith(VISION) or n in odd.draws[-1]]
    places = {n: place(n, odd.draws) for n in wanted}
    for name in sorted(wanted, key=lambda n: places[n][0]):
        shape, std = shape_of[name], places[name][1]
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
    (folder / "config.json").write_text(json.dumps(odd.config_json, indent=2) + "\n")
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
