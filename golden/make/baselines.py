"""Make golden/baselines/: the results of other pruners' rules, each in a few lines of PyTorch.

A rule uses the values that every expert computes for its tokens, or the gradients of its weights.
Experts are removed from a copy of the checkpoint on disk, which has fewer expert tensors, fewer rows
of the router, and a smaller number of experts in config.json.  A model whose router never chooses the
removed experts must compute what transformers computes from that copy.
"""

import json
import re
import tempfile
import types
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import oracle

MODELS = ("odd-mixtral", "odd-qwen2", "odd-phimoe", "odd-dsv3", "odd-gptoss")
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")  # the names of E in config.json
ROUTER = re.compile(
    r"\.(block_sparse_moe|mlp)\.(gate\.(weight|e_score_correction_bias)|router\.(weight|bias))$"
)
EXPERT = re.compile(r"\.experts\.(\d+)\.")
STACKED = re.compile(r"\.mlp\.experts\.(gate_up_proj|down_proj)(_bias)?$")  # experts in one tensor


# --- recording --------------------------------------------------------------------------------------


def apply_expert(experts, x, e):
    """Apply one expert; returns the input of down and its output."""
    if oracle.is_biased(experts):
        h = experts._apply_gate(x @ experts.gate_up_proj[e] + experts.gate_up_proj_bias[e])
        return h, h @ experts.down_proj[e] + experts.down_proj_bias[e]
    gate, up = F.linear(x, experts.gate_up_proj[e]).chunk(2, dim=-1)
    h = experts.act_fn(gate) * up
    return h, F.linear(h, experts.down_proj[e])


def watched_experts(self, hidden_states, top_k_index, top_k_weights):
    """MixtralExperts.forward that also records, for every expert, the input of down, its output, and the
    router's weights."""
    out = torch.zeros_like(hidden_states)
    for e in range(self.num_experts):
        token, slot = torch.where(top_k_index == e)
        h, y = apply_expert(self, hidden_states[token], e)
        weight = top_k_weights[token, slot]
        self.seen[e] = tuple(x.detach().double() for x in (h, y, weight))
        out = out.index_add(0, token, (y * weight[:, None]).to(out.dtype))
    return out


def watch(model):
    for experts in oracle.experts_of(model):
        experts.seen = {}
        experts.forward = types.MethodType(watched_experts, experts)


# --- the rules --------------------------------------------------------------------------------------


def mean_or_zero(x):
    return x.mean(0) if len(x) else x.new_zeros(x.shape[1:])


def forward_rules(model, batches):
    """REAP (M, E): mean over an expert's tokens of router weight times the norm of its output.
    Activation (M, E, I): root of the sum over batches of (mean over the expert's tokens of |h|)^2.
    Energy: sum over tokens of (router weight h)^2 times the squared norm of the column of down."""
    M, E, I = oracle.shape_of(model)
    total, count = torch.zeros(M, E).double(), torch.zeros(M, E).double()
    squares, energy = (torch.zeros(M, E, I).double() for _ in range(2))
    for ids in batches:
        with torch.no_grad():
            oracle.logits_of(model, ids)
        for m, experts in enumerate(oracle.experts_of(model)):
            for e, (h, y, weight) in experts.seen.items():
                total[m, e] += (weight * y.norm(dim=-1)).sum()
                count[m, e] += len(h)
                squares[m, e] += mean_or_zero(h.abs()).square()
                energy[m, e] += (weight[:, None] * h).square().sum(0)
    down = [oracle.turned_down(x, x.down_proj.detach()) for x in oracle.experts_of(model)]
    columns = torch.stack([x.double().norm(dim=1) for x in down])
    return {
        "reap": total / count.clamp(min=1), "activation": squares.sqrt(), "energy": energy * columns.square(),
    }  # fmt: skip


# --- a checkpoint with fewer experts ----------------------------------------------------------------


def worst(score, groups):
    """A 0/1 row of the experts to keep: in every group, the one with the lowest score is removed."""
    keep = torch.ones_like(score, dtype=torch.int32)
    size = len(score) // groups
    for g in range(groups):
        keep[g * size + int(score[g * size : (g + 1) * size].argmin())] = 0
    return keep


def without(tensors, layers, keep):
    """The tensors of a checkpoint whose mixtures have only the experts of keep (M, E)."""
    out = {}
    for name, tensor in tensors.items():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        m = layers.index(int(layer[1])) if layer and int(layer[1]) in layers else None
        expert = EXPERT.search(name)
        if m is not None and expert:
            e = int(expert[1])
            if keep[m, e]:
                place = int(keep[m, :e].sum())
                out[name[: expert.start()] + f".experts.{place}." + name[expert.end() :]] = tensor
        elif m is not None and (ROUTER.search(name) or STACKED.search(name)):
            out[name] = tensor[keep[m].bool()].contiguous()
        else:
            out[name] = tensor
    return out


def logprobs_without(folder, layers, keep, ids):
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors |= load_file(path)
    config = json.loads((folder / "config.json").read_text())
    key = next(k for k in COUNTS if k in config)
    config[key] = int(keep[0].sum())
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        save_file(without(tensors, layers, keep), place / "model.safetensors", metadata={"format": "pt"})
        (place / "config.json").write_text(json.dumps(config))
        model = oracle.load(place)
        with torch.no_grad():
            return oracle.log_probs(oracle.logits_of(model, ids), ids)


# --- files ------------------------------------------------------------------------------------------


def make(folder, out):
    model = oracle.load(folder)
    ids = torch.from_numpy(np.load(folder / "tokens.npy").astype(np.int64))
    groups = getattr(model.config, "n_group", 1)
    watch(model)
    rules = forward_rules(model, ids.split(1))
    keep = torch.stack([worst(layer, groups) for layer in rules["reap"]])
    closed = logprobs_without(folder, oracle.moe_layers(model), keep, ids)
    oracle.save(out, rules | {"keep": keep, "closed.logprob": closed})


def make_all(here):
    (here / "baselines").mkdir(exist_ok=True)
    for name in MODELS:
        make(here / name, here / "baselines" / f"{name}.safetensors")
