"""Mixtral and the gradients that METHOD derives, once more in plain double precision.

transformers rounds to float32 and its autograd is a black box; this is neither.  `make.py check`
holds the stored goldens against it, so that a mistake in oracle.py or a surprise in a library is
seen before anything is compared with the goldens.  The mask gradient is formed by METHOD 3's
formula, not by autograd.
"""

import torch
import torch.nn.functional as F


def norm(x, weight, eps):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def rotate(x, theta):
    """RoPE on (..., T, C), pairs (i, i + C / 2)."""
    T, C = x.shape[-2:]
    frequency = theta ** (-torch.arange(0, C, 2).double() / C)
    angle = torch.arange(T).double()[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attention(x, w, cfg):
    """(S, T, H): causal, grouped heads, keys within the window if there is one."""
    S, T, _ = x.shape
    Q, G = cfg.num_attention_heads, cfg.num_key_value_heads
    heads = lambda name, n: (x @ w[name].T).view(S, T, n, -1).transpose(1, 2)
    theta = cfg.rope_parameters["rope_theta"]
    q = rotate(heads("self_attn.q_proj.weight", Q), theta)
    k = rotate(heads("self_attn.k_proj.weight", G), theta).repeat_interleave(Q // G, dim=1)
    v = heads("self_attn.v_proj.weight", G).repeat_interleave(Q // G, dim=1)
    age = torch.arange(T)[:, None] - torch.arange(T)
    seen = (age >= 0) & (age < (cfg.sliding_window or T))
    weight = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    return (weight @ v).transpose(1, 2).flatten(2) @ w["self_attn.o_proj.weight"].T


def mixture(x, w, cfg, masks, tape):
    """(N, H) through the experts; tape receives what METHOD 3's reduction needs of each expert."""
    p = (x @ w["block_sparse_moe.gate.weight"].T).softmax(-1)
    top, index = p.topk(cfg.num_experts_per_tok, dim=-1)
    top = top / top.sum(-1, keepdim=True)
    y = torch.zeros_like(x)
    for e in range(cfg.num_local_experts):
        token, slot = torch.where(index == e)
        q = f"block_sparse_moe.experts.{e}."
        h = F.silu(x[token] @ w[q + "w1.weight"].T) * (x[token] @ w[q + "w3.weight"].T)
        masked = h if masks is None else h * masks[e]
        route = top[token, slot][:, None]
        y = y.index_add(0, token, route * (masked @ w[q + "w2.weight"].T))
        tape.append((e, token, route, h, w[q + "w2.weight"]))
    return y


class Plain:
    """weights: names on disk to double tensors; masks (L, E, I) or None."""

    def __init__(self, cfg, weights, masks=None):
        self.cfg, self.weights, self.masks = cfg, weights, masks
        self.tapes = []  # per layer: (what mixture recorded, its output)

    def layer(self, l, x):
        prefix, eps = f"model.layers.{l}.", self.cfg.rms_norm_eps
        w = {n.removeprefix(prefix): t for n, t in self.weights.items() if n.startswith(prefix)}
        x = x + attention(norm(x, w["input_layernorm.weight"], eps), w, self.cfg)
        tape, masks = [], None if self.masks is None else self.masks[l]
        inner = norm(x, w["post_attention_layernorm.weight"], eps).flatten(0, 1)
        y = mixture(inner, w, self.cfg, masks, tape)
        if y.requires_grad:
            y.retain_grad()
        self.tapes.append((tape, y))
        return x + y.view_as(x)

    def logits(self, ids):
        embed = self.weights["model.embed_tokens.weight"]
        x, self.tapes = embed[ids], []
        for l in range(self.cfg.num_hidden_layers):
            x = self.layer(l, x)
        head = self.weights.get("lm_head.weight", embed)
        return norm(x, self.weights["model.norm.weight"], self.cfg.rms_norm_eps) @ head.T

    def channel_sums(self):
        """c (L, E, I) after a backward: sum over an expert's tokens of h times w W_down^T dy, at
        full width and before any mask."""
        rows = []
        for tape, y in self.tapes:
            of = {
                e: (h * (route * (y.grad[token] @ down))).sum(0)
                for e, token, route, h, down in tape
            }
            rows.append(torch.stack([of[e] for e in range(self.cfg.num_local_experts)]))
        return torch.stack(rows).detach()
