"""Compare the stored goldens with plain.py: two independent computations must agree."""

import re

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

import decoded
import oracle
from plain import Plain, spell, unfuse

# Relative to a tensor's largest value: float32 autograd differs from float64 by up to 1.3e-5 here;
# tests allow 1e-4.
TOLERANCE = 3e-5


# Granite's names, and the other families' names for the same tensors.
GRANITE = (
    (".block_sparse_moe.input_linear.weight", ".mlp.experts.gate_up_proj"),
    (".block_sparse_moe.output_linear.weight", ".mlp.experts.down_proj"),
    (".block_sparse_moe.router.layer.", ".mlp.gate."),
    (".shared_mlp.input_linear.", ".mlp.shared_experts.gate_up_proj."),
    (".shared_mlp.output_linear.", ".mlp.shared_experts.down_proj."),
)


# Step's names likewise; its experts are stacked, gate and up apart.
STEP = (
    (".moe.gate.", ".mlp.gate."),
    (".moe.router_bias", ".mlp.gate.e_score_correction_bias"),
    (".share_expert.", ".mlp.shared_experts."),
)


def text_part(tensors):
    """Select the text tensors of a multimodal checkpoint, with the names of the text-only class and one tensor
    per expert.  Gate and up, which MiniMax-M3's text class and Granite fuse in every MLP, are split, too."""
    marks = "language_model.", "mlp.shared_experts.gate_up_proj.", ".input_linear.", ".moe.", "model.mtp."
    if not any(mark in name for name in tensors for mark in marks):
        return tensors
    out = {}
    for name, t in tensors.items():
        name = name.replace("model.language_model.", "model.").removeprefix("language_model.")
        for own, usual in GRANITE + STEP:
            name = name.replace(own, usual)
        name = re.sub(r"(layers\.\d+)\.experts\.", r"\1.mlp.experts.", name.replace(".router.proj.", ".mlp.gate."))
        stacked = re.fullmatch(r"(.*)\.moe\.(\w+_proj)\.weight", name)
        if name.endswith("mlp.experts.gate_up_proj"):
            for e, both in enumerate(t):
                for x, part in zip(("gate", "up"), both.chunk(2), strict=True):
                    out[name.replace("gate_up_proj", f"{e}.{x}_proj.weight")] = part
        elif stacked:
            out |= {f"{stacked[1]}.mlp.experts.{e}.{stacked[2]}.weight": x for e, x in enumerate(t)}
        elif name.endswith("mlp.experts.down_proj"):
            out |= {name.replace("down_proj", f"{e}.down_proj.weight"): x for e, x in enumerate(t)}
        elif name.endswith(".gate_up_proj.weight"):
            out |= {name.replace("gate_up", x): part for x, part in zip(("gate", "up"), t.chunk(2), strict=True)}
        else:
            out[name] = t
    others = "model.visual.", "mtp.", "vision_tower.", "mm_projector.", "multi_modal_projector."
    others += "model.vision_tower.", "model.embed_vision.", "vision_model."
    others += "visual.", "audio_encoder.", "speech_embeddings.", "model.mtp."
    return {n: t for n, t in out.items() if not n.startswith(others)}


def read_weights(folder):
    """The tensors of all shards in float64, with plain.py's names."""
    return {spell(n): t.double() for n, t in unfuse(text_part(decoded.read(folder))).items()}


def expert_name(l, e, w):
    return f"model.layers.{l}.mlp.experts.{e}.{w}.weight"


def moe_layers(weights):
    """Indices of the decoder layers that are mixtures of experts."""
    routers = [n.split(".") for n in weights if n.endswith(".mlp.gate.weight")]
    return sorted(int(parts[2]) for parts in routers)


def ranked(weights, order):
    """The weights with every expert's channels in ranked order."""
    out = dict(weights)
    layers = moe_layers(weights)
    for m, e in np.ndindex(*order.shape[:2]):
        l, channels = layers[m], order[m, e].long()
        for w in ("w1", "w3"):
            out[expert_name(l, e, w)] = weights[expert_name(l, e, w)][channels]
            bias = expert_name(l, e, w).replace(".weight", ".bias")
            if bias in weights:
                out[bias] = weights[bias][channels]
        out[expert_name(l, e, "w2")] = weights[expert_name(l, e, "w2")][:, channels]
    return out


def cut(flat, widths, H, r):
    """Split a flat adapter, in the order of struct fm_adapter's values, into {(m, e): {part: leaf}}."""
    parts, at = {}, 0
    for m, e in np.ndindex(*widths.shape):
        k = int(widths[m, e])
        shapes = [(r, H), (k, r), (r, H), (k, r), (r, k), (H, r)]
        parts[m, e] = {}
        for name, shape in zip(oracle.PARTS, shapes, strict=True):
            count = shape[0] * shape[1]
            leaf = flat[at : at + count].double().reshape(shape).requires_grad_()
            parts[m, e][name], at = leaf, at + count
    assert at == len(flat)
    return parts


def merge(weights, parts, scale):
    """Add the adapter to the leading rows (w1, w3) and columns (w2) of every expert."""
    out, layers = dict(weights), moe_layers(weights)
    for (m, e), p in parts.items():
        l, k = layers[m], len(p["gate_B"])
        for w, side in (("w1", "gate"), ("w3", "up")):
            old = weights[expert_name(l, e, w)]
            new = old[:k] + scale * p[side + "_B"] @ p[side + "_A"]
            out[expert_name(l, e, w)] = torch.cat([new, old[k:]])
        old = weights[expert_name(l, e, "w2")]
        new = old[:, :k] + scale * p["down_B"] @ p["down_A"]
        out[expert_name(l, e, "w2")] = torch.cat([new, old[:, k:]], dim=1)
    return out


class Report:
    """Prints one line per tensor, and counts those that differ."""

    def __init__(self):
        self.failed = 0

    def compare(self, name, got, want):
        got, want = got.detach().double().flatten(), want.double().flatten()
        worst = ((got - want).abs().max() / want.abs().max().clamp(min=1e-30)).item()
        good = len(got) == len(want) and worst <= TOLERANCE
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name:24} {worst:.1e}")


def check_full(report, cfg, weights, g):
    """Compare outputs, loss and the stored gradients of experts."""
    weights = {n: t.clone().requires_grad_() for n, t in weights.items()}
    if "full.logprob" in g:
        with torch.no_grad():
            out = oracle.log_probs(Plain(cfg, weights).logits(g["ids"].long()), g["ids"].long())
        report.compare("full.logprob", out, g["full.logprob"])
    ids = g["grad.ids"].long()
    loss = oracle.cross_entropy(Plain(cfg, weights).logits(ids), ids)
    loss.backward()
    report.compare("grad.loss", loss, g["grad.loss"])
    for name in (n for n in g if n.startswith("grad.layers.")):
        l, e, w = name.split(".")[2], name.split(".")[4], name.split(".")[5]
        report.compare(name, weights[expert_name(l, e, w)].grad, g[name])


def check_members(report, cfg, weights, g):
    """Compare masked outputs at every budget."""
    ids = g["ids"].long()
    for i, widths in enumerate(g.get("members.widths", ())):
        masks = oracle.prefix_masks(widths, g["rank.order"].shape[-1]).double()
        with torch.no_grad():
            out = oracle.log_probs(Plain(cfg, weights, masks).logits(ids), ids)
        report.compare(f"members.logprob {i}", out, g["members.logprob"][i])


def check_subnet(report, cfg, weights, g):
    """Compare losses, and c by the formula of fm-method(7) instead of autograd."""
    ids, teacher = g["grad.ids"].long(), None
    with torch.no_grad():
        teacher = Plain(cfg, weights).logits(ids)
    masks = oracle.prefix_masks(g["subnet.widths"], g["rank.order"].shape[-1]).double()
    leaf = dict(weights)
    leaf["model.embed_tokens.weight"] = leaf["model.embed_tokens.weight"].clone().requires_grad_()
    student = Plain(cfg, leaf, masks)
    logits = student.logits(ids)
    ce, kl = oracle.cross_entropy(logits, ids), oracle.divergence(logits, teacher)
    (ce + kl).backward()
    report.compare("subnet.ce", ce, g["subnet.ce"])
    report.compare("subnet.kl", kl, g["subnet.kl"])
    report.compare("subnet.c", student.channel_sums(), g["subnet.c"])


def check_lora(report, cfg, weights, g):
    """Compare adapter gradients, computed through merged float64 weights."""
    ids, widths = g["grad.ids"].long(), g["lora.widths"]
    with torch.no_grad():
        teacher = Plain(cfg, weights).logits(ids)
    rank, alpha = g["lora.rank_alpha"].tolist()
    parts = cut(g["lora.values"], widths, cfg.hidden_size, int(rank))
    masks = oracle.prefix_masks(widths, g["rank.order"].shape[-1]).double()
    logits = Plain(cfg, merge(weights, parts, alpha / rank), masks).logits(ids)
    (oracle.cross_entropy(logits, ids) + oracle.divergence(logits, teacher)).backward()
    grads = [leaf.grad.flatten() for expert in parts.values() for leaf in expert.values()]
    report.compare("lora.grad", torch.cat(grads), g["lora.grad"])


def check(folder):
    """Check a model; returns the number of tensors that disagree."""
    print(folder.name)
    report, g = Report(), load_file(folder / "golden.safetensors")
    cfg, weights = AutoConfig.from_pretrained(folder).get_text_config(), read_weights(folder)
    check_full(report, cfg, weights, g)
    weights = ranked(weights, g["rank.order"])
    check_members(report, cfg, weights, g)
    check_subnet(report, cfg, weights, g)
    check_lora(report, cfg, weights, g)
    return report.failed
