"""The families and the gradients of fm-method(7), implemented again in plain double precision.

transformers rounds to float32, and autograd is a black box.  `make.py check` compares the stored
goldens with this implementation, so that a mistake in oracle.py or a library is found before anything
is compared with the goldens.  The mask gradient is computed by fm-method(7)'s formula, not by autograd.

Weights have their names on disk, made uniform by `spell`.  What a family does follows from the tensors it
has (a norm with a bias is LayerNorm, a q_norm of one head's width applies per head) or from config.json.
"""

import math

import torch
import torch.nn.functional as F

SPELLING = (
    (".block_sparse_moe.", ".mlp."),
    (".feed_forward.", ".mlp."),
    (".operator_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".embedding_norm.", ".norm."),
    (".self_attn.out_proj.", ".self_attn.o_proj."),
    (".self_attn.q_layernorm.", ".self_attn.q_norm."),
    (".self_attn.k_layernorm.", ".self_attn.k_norm."),
    (".gate_proj.", ".w1."),
    (".up_proj.", ".w3."),
    (".down_proj.", ".w2."),
    (".mlp.router.", ".mlp."),
    (".mlp.expert_bias", ".mlp.gate.e_score_correction_bias"),
    (".mlp.shared_mlp.", ".mlp.shared_experts."),
    (".attention_sink_bias", ".sinks"),
    (".mlp.experts.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
)


def spell(name):
    for old, new in SPELLING:
        name = name.replace(old, new)
    return name


def unfuse(weights):
    """Split gpt-oss's experts, and give its router the name that the others have."""
    own = lambda n: n.replace(".mlp.router.", ".mlp.gate.") if n.endswith((".router.weight", ".router.bias")) else n
    out = {own(n): t for n, t in weights.items() if ".experts.gate_up" not in n}
    for name in [n for n in weights if n.endswith(".experts.gate_up_proj")]:
        p, bias = name.removesuffix("gate_up_proj"), weights[name + "_bias"]
        down, down_bias = out.pop(p + "down_proj"), out.pop(p + "down_proj_bias")
        for e, gate_up in enumerate(weights[name]):
            out |= {
                f"{p}{e}.w1.weight": gate_up[:, 0::2].T, f"{p}{e}.w1.bias": bias[e, 0::2],
                f"{p}{e}.w3.weight": gate_up[:, 1::2].T, f"{p}{e}.w3.bias": bias[e, 1::2],
                f"{p}{e}.w2.weight": down[e].T, f"{p}{e}.w2.bias": down_bias[e],
            }  # fmt: skip
    return out


def norm(x, w, name, eps, plus=0.0):
    weight, bias = w[name + ".weight"] + plus, w.get(name + ".bias")
    if bias is not None:
        x = x - x.mean(-1, keepdim=True)
    x = weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return x if bias is None else x + bias


def eps_of(cfg):
    return cfg.norm_eps if cfg.model_type == "lfm2_moe" else cfg.rms_norm_eps


def added(cfg):
    """What norms add to their weights: 1 in families that store w - 1 (except inside DeltaNets), else 0."""
    return 1.0 if cfg.model_type.startswith(("qwen3_next", "qwen3_5", "minimax_m3", "step3p5")) else 0.0


def linear(x, w, name):
    y = x @ w[name + ".weight"].T
    return y + w[name + ".bias"] if name + ".bias" in w else y


def yarn(rope, R):
    """YaRN's divisors of the frequencies (R / 2), and its factor for cosines and sines."""
    mscale = lambda m: 0.1 * m * math.log(rope["factor"]) + 1.0
    turns = lambda n: math.log(rope["original_max_position_embeddings"] / (n * 2 * math.pi))
    pair = lambda n: R * turns(n) / (2 * math.log(rope["rope_theta"]))
    low, high = pair(rope["beta_fast"]), pair(rope["beta_slow"])
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, R - 1)
    ramp = ((torch.arange(R // 2).double() - low) / (high - low)).clamp(0, 1)
    scale = mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"]) if "mscale" in rope else mscale(1)
    scale = rope.get("attention_factor") or scale
    return 1 / (ramp / rope["factor"] + 1 - ramp), scale


def llama3(rope, frequency):
    """The frequencies of type llama3: slower by `factor` if they make few turns in the original positions."""
    turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return frequency * (keep + (1 - keep) / rope["factor"])


def rotate(x, rope, neighbours=False):
    """RoPE on the first R of C elements of (..., T, C), in pairs (i, i + R / 2) or (2 i, 2 i + 1), with
    longrope's factors for short sequences."""
    T, C = x.shape[-2:]
    R = int(C * rope.get("partial_rotary_factor", 1.0))
    x, stays = x[..., :R], x[..., R:]
    frequency = rope["rope_theta"] ** (-torch.arange(0, R, 2).double() / R)
    if "short_factor" in rope:
        frequency = frequency / torch.tensor(rope["short_factor"], dtype=torch.float64)
    scale = rope.get("short_mscale", 1.0)
    if rope["rope_type"] == "yarn":
        divisors, scale = yarn(rope, R)
        frequency = frequency / divisors
    if rope["rope_type"] == "proportional":
        frequency = rope["rope_theta"] ** (-torch.arange(0, C, 2).double() / C)
        frequency[int(C * rope["partial_rotary_factor"] // 2) :] = 0.0
        x, stays = torch.cat([x, stays], -1), stays[..., :0]
    if rope["rope_type"] == "llama3":
        frequency = llama3(rope, frequency)
    angle = torch.arange(T).double()[:, None] * frequency
    cos, sin = angle.cos() * scale, angle.sin() * scale
    a, b = (x[..., 0::2], x[..., 1::2]) if neighbours else x.chunk(2, dim=-1)
    turned = a * cos - b * sin, b * cos + a * sin
    turned = torch.stack(turned, -1).flatten(-2) if neighbours else torch.cat(turned, dim=-1)
    return torch.cat([turned, stays], dim=-1)


def projection(x, w, cfg, part, heads):
    """q, k or v (S, heads, T, C), normalised and clipped; q without the gate of the head's output."""
    y = linear(x, w, f"self_attn.{part}_proj")
    if part == "q" and is_gated(w):
        y = y.unflatten(-1, (heads, 2, -1))[..., 0, :].flatten(-2)
    name, C = f"self_attn.{part}_norm", y.shape[-1] // heads
    if name + ".weight" in w:
        each = (heads, C) if len(w[name + ".weight"]) == C else (1, heads * C)
        y = norm(y.unflatten(-1, each), w, name, eps_of(cfg), added(cfg)).flatten(-2)
    if getattr(cfg, "clip_qkv", None) is not None:
        y = y.clamp(-cfg.clip_qkv, cfg.clip_qkv)
    return y.unflatten(-1, (heads, C)).transpose(1, 2)


def gemma_values(x, w, cfg, heads):
    """v (S, heads, T, C) of Gemma, whose full layers take the keys before their norm and rotation."""
    part = "v" if "self_attn.v_proj.weight" in w else "k"
    v = linear(x, w, f"self_attn.{part}_proj").unflatten(-1, (heads, -1)).transpose(1, 2)
    return v / (v.square().mean(-1, keepdim=True) + cfg.rms_norm_eps).sqrt()


def is_gated(w):
    return len(w["self_attn.q_proj.weight"]) == 2 * w["self_attn.o_proj.weight"].shape[1]


def attention(x, w, cfg, l):
    """Causal attention (S, T, H) with grouped heads, and with the window and the sinks of layer l."""
    T = x.shape[1]
    Q, gemma = cfg.per_layer_config[l].num_attention_heads, cfg.model_type == "gemma4_text"
    # Gemma's configuration refuses to say how many key heads there are, because layers differ.
    G = len(w["self_attn.k_proj.weight"]) // len(w["self_attn.k_norm.weight"]) if gemma else cfg.num_key_value_heads
    if hasattr(cfg, "num_attention_heads_per_layer"):
        Q = cfg.num_attention_heads_per_layer[l]
    if "self_attn.sinks" in w and cfg.model_type.startswith("mimo_v2"):  # layers with a window
        G = cfg.swa_num_key_value_heads
    neighbours = cfg.model_type == "ernie4_5_moe"
    types = getattr(cfg, "layer_types", None)
    full = types and types[l] == "full_attention"
    rope = cfg.rope_parameters
    rope = rope.get(types[l], rope) if types else rope
    still = full and cfg.model_type in ("exaone_moe", "afmoe")
    turn = lambda y: y if still else rotate(y, rope, neighbours)
    q = turn(projection(x, w, cfg, "q", Q))
    k = turn(projection(x, w, cfg, "k", G)).repeat_interleave(Q // G, dim=1)
    v = gemma_values(x, w, cfg, G) if gemma else projection(x, w, cfg, "v", G)
    v = v.repeat_interleave(Q // G, dim=1)
    v = v * getattr(cfg, "attention_value_scale", 1.0)
    age = torch.arange(T)[:, None] - torch.arange(T)
    window = None if full else getattr(cfg, "sliding_window", None)
    seen = (age >= 0) & (age < (window or T))
    factor = 1.0 if gemma else getattr(cfg, "attention_multiplier", q.shape[-1] ** -0.5)
    score = (q @ k.mT * factor).masked_fill(~seen, -torch.inf)
    if "self_attn.sinks" in w:
        sinks = w["self_attn.sinks"][:, None, None].expand(len(x), Q, T, 1)
        score = torch.cat([score, sinks], -1)
    weight = score.softmax(-1)[..., :T]
    o = (weight @ v).transpose(1, 2)
    if is_gated(w):
        o = o * linear(x, w, "self_attn.q_proj").unflatten(-1, (Q, 2, -1))[..., 1, :].sigmoid()
    if "self_attn.w1.weight" in w:  # gate_proj
        o = o * linear(x, w, "self_attn.w1").unflatten(-1, (Q, -1)).sigmoid()
    if "self_attn.g_proj.weight" in w:
        gate = torch.sigmoid if cfg.model_type == "step3p5" else F.softplus
        o = o * gate(linear(x, w, "self_attn.g_proj"))[..., None]
    return linear(o.flatten(2), w, "self_attn.o_proj")


def short_convolution(x, w):
    """LFM2's short convolution (S, T, H), gated before and after."""
    b, c, u = linear(x, w, "conv.in_proj").chunk(3, -1)
    taps, T = w["conv.conv.weight"][:, 0], x.shape[1]
    early = F.pad(b * u, (0, 0, taps.shape[1] - 1, 0))
    y = c * sum(early[:, i : i + T] * taps[:, i] for i in range(taps.shape[1]))
    return linear(y, w, "conv.out_proj")


def delta_parts(x, w, cfg):
    """[q k v] and z, b, a (S, T, .), head after head, from two tensors interleaved by head or from one tensor
    for each."""
    a, G = "linear_attn.", cfg.linear_num_key_heads
    if a + "in_proj_qkv.weight" in w:
        return [linear(x, w, a + f"in_proj_{part}") for part in ("qkv", "z", "b", "a")]
    C, each = cfg.linear_key_head_dim, cfg.linear_num_value_heads // G
    V = each * cfg.linear_value_head_dim
    apart = lambda name, widths: [
        part.flatten(-2) for part in linear(x, w, a + name).unflatten(-1, (G, -1)).split(widths, -1)
    ]
    q, k, v, z = apart("in_proj_qkvz", [C, C, V, V])
    return [torch.cat([q, k, v], -1), z, *apart("in_proj_ba", [each, each])]


def delta_attention(x, w, cfg):
    """Gated DeltaNet (S, T, H), token by token."""
    a, T, W = "linear_attn.", x.shape[1], cfg.linear_conv_kernel_dim
    G, Q, C = cfg.linear_num_key_heads, cfg.linear_num_value_heads, cfg.linear_key_head_dim
    mixed, z, b, decay = delta_parts(x, w, cfg)
    early = F.pad(mixed, (0, 0, W - 1, 0))
    taps = w[a + "conv1d.weight"][:, 0]
    mixed = F.silu(sum(early[:, i : i + T] * taps[:, i] for i in range(W)))
    q, k, v = mixed.split([G * C, G * C, mixed.shape[-1] - 2 * G * C], -1)
    unit = lambda y: y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    heads = lambda y: unit(y.unflatten(-1, (G, C))).repeat_interleave(Q // G, 2)
    q, k, v = heads(q) / C**0.5, heads(k), v.unflatten(-1, (Q, -1))
    beta, keep = b.sigmoid(), (-w[a + "A_log"].exp() * F.softplus(decay + w[a + "dt_bias"])).exp()
    state, out = torch.zeros(*v.shape[:1], Q, C, v.shape[-1], dtype=v.dtype), []
    for t in range(T):
        state = state * keep[:, t, :, None, None]
        seen = torch.einsum("sqcd,sqc->sqd", state, k[:, t])
        state = state + k[:, t, :, :, None] * ((v[:, t] - seen) * beta[:, t, :, None])[:, :, None]
        out.append(torch.einsum("sqcd,sqc->sqd", state, q[:, t]))
    y = norm(torch.stack(out, 1), w, a + "norm", cfg.rms_norm_eps)
    return linear((y * F.silu(z.unflatten(-1, (Q, -1)))).flatten(2), w, a + "out_proj")


def latent_attention(x, w, cfg):
    """Latent attention (S, T, H): keys and values of all heads from one latent, a rotated part shared by all."""
    Q, A, R, rank = cfg.num_attention_heads, cfg.qk_nope_head_dim, cfg.qk_rope_head_dim, cfg.kv_lora_rank
    rope, neighbours = cfg.rope_parameters | {"partial_rotary_factor": 1.0}, getattr(cfg, "rope_interleave", True)
    heads = lambda y: y.unflatten(-1, (Q, -1)).transpose(1, 2)
    a = "self_attn."
    if a + "q_proj.weight" in w:
        q = heads(linear(x, w, a + "q_proj"))
    else:
        latent = norm(linear(x, w, a + "q_a_proj"), w, a + "q_a_layernorm", 1e-6)
        q = heads(linear(latent, w, a + "q_b_proj"))
    latent, shared = linear(x, w, a + "kv_a_proj_with_mqa").split([rank, R], -1)
    kv = heads(linear(norm(latent, w, a + "kv_a_layernorm", 1e-6), w, a + "kv_b_proj"))
    shared = rotate(shared[:, None], rope, neighbours).expand(-1, Q, -1, -1)
    q = torch.cat([q[..., :A], rotate(q[..., A:], rope, neighbours)], -1)
    k, v = torch.cat([kv[..., :A], shared], -1), kv[..., A:]
    scale = (A + R) ** -0.5
    if rope["rope_type"] == "yarn":
        scale *= (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1.0) ** 2
    seen = torch.ones(x.shape[1], x.shape[1]).tril().bool()
    weight = (q @ k.mT * scale).masked_fill(~seen, -torch.inf).softmax(-1)
    return linear((weight @ v).transpose(1, 2).flatten(2), w, a + "o_proj")


def limit_of(cfg, key, l):
    """Step's limit of an activation in layer l; infinite: none."""
    limits = getattr(cfg, key, None)
    return (limits[l] if limits else None) or math.inf


def inner(x, w, prefix, cfg, limit=math.inf):
    gate, up = linear(x, w, prefix + "w1"), linear(x, w, prefix + "w3")
    if hasattr(cfg, "hidden_activation"):  # Gemma's
        return gate * (1 + (math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)).tanh()) / 2 * up
    if limit < math.inf:
        return F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)
    if not hasattr(cfg, "swiglu_limit"):
        return F.silu(gate) * up
    gate = gate.clamp(max=cfg.swiglu_limit)
    up = up.clamp(-cfg.swiglu_limit, cfg.swiglu_limit)
    return (up + 1) * gate * (cfg.swiglu_alpha * gate).sigmoid()


def feed_forward(x, w, prefix, cfg, limit=math.inf):
    return inner(x, w, prefix, cfg, limit) @ w[prefix + "w2.weight"].T


def sparsemixer(z, eps):
    """PhiMoE's two experts, each the one with the largest remaining logit, weighted by its softmax among
    the logits near it."""
    weights, chosen, left = [], [], z
    for _ in range(2):
        top, index = left.max(-1, keepdim=True)
        far = (top - z) / torch.maximum(z.abs(), top) > 2 * eps
        weights.append(left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, index))
        chosen.append(index)
        left = left.scatter(-1, index, -torch.inf)
    return torch.cat(weights, -1), torch.cat(chosen, -1)


def scored(z, bias, cfg):
    """A router that chooses by score plus bias among the best groups, and weights by score."""
    softmax = cfg.model_type in ("ernie4_5_moe", "mistral4")
    score, groups = z.softmax(-1) if softmax else z.sigmoid(), getattr(cfg, "n_group", 1)
    choice = (score + bias.flatten()).unflatten(-1, (groups, -1))
    best = choice.topk(min(2, choice.shape[-1]), dim=-1).values.sum(-1)
    out = best < best.topk(getattr(cfg, "topk_group", 1), dim=-1).values[..., -1:]
    choice = choice.masked_fill(out[..., None], -torch.inf).flatten(-2)
    index = choice.topk(cfg.num_experts_per_tok, dim=-1).indices
    top = score.gather(-1, index)
    total = top.sum(-1, keepdim=True).clamp(min=getattr(cfg, "moe_norm_min", 0.0))
    if getattr(cfg, "norm_topk_prob", True):
        top = top / total
    keys = "routed_scaling_factor", "router_scaling_factor", "route_scale", "moe_routed_scaling_factor"
    keys += ("moe_router_scaling_factor",)
    return top * next((getattr(cfg, x) for x in keys if hasattr(cfg, x)), 1.0), index


def probable(z, cfg):
    """DeepSeek-V2's router: the most probable experts of the groups whose best experts are most probable."""
    p = z.softmax(-1).unflatten(-1, (cfg.n_group, -1))
    out = p.amax(-1) < p.amax(-1).topk(cfg.topk_group, dim=-1).values[..., -1:]
    top, index = p.masked_fill(out[..., None], 0.0).flatten(-2).topk(cfg.num_experts_per_tok, dim=-1)
    return top * cfg.routed_scaling_factor, index


def route(z, w, cfg):
    """Return the weights of the chosen experts and their indices, each (N, K)."""
    biases = [t for n, t in w.items() if n.endswith("e_score_correction_bias")]
    if biases or cfg.model_type == "mistral4":
        return scored(z, biases[0] if biases else torch.zeros(z.shape[-1]), cfg)
    if cfg.model_type == "deepseek_v2":
        return probable(z, cfg)
    if cfg.model_type == "phimoe":
        return sparsemixer(z, cfg.router_jitter_noise)
    if "router.per_expert_scale" in w:
        top, index = z.softmax(-1).topk(cfg.top_k_experts, dim=-1)
        return top / top.sum(-1, keepdim=True) * w["router.per_expert_scale"][index], index
    top, index = z.softmax(-1).topk(cfg.num_experts_per_tok, dim=-1)
    return top / top.sum(-1, keepdim=True) if getattr(cfg, "norm_topk_prob", True) else top, index


def mixture(x, w, cfg, masks, tape, l, chooses=None):
    """Run x (N, H) through the experts; tape receives each expert's inputs to the sum in fm-method(7).  chooses:
    the router's input, if it is not x."""
    router = w["mlp.gate.weight"]
    top, index = route(linear(x if chooses is None else chooses, w, "mlp.gate"), w, cfg)
    y = torch.zeros_like(x)
    for e in range(len(router)):
        token, slot = torch.where(index == e)
        prefix = f"mlp.experts.{e}."
        h = inner(x[token], w, prefix, cfg, limit_of(cfg, "swiglu_limits", l))
        masked = h if masks is None else h * masks[e]
        share, down = top[token, slot][:, None], w[prefix + "w2.weight"]
        y = y.index_add(0, token, share * linear(masked, w, prefix + "w2"))
        tape.append((token, share, h, down))
    if "mlp.shared_expert_gate.weight" in w:
        gate = (x @ w["mlp.shared_expert_gate.weight"].T).sigmoid()
        y = y + gate * feed_forward(x, w, "mlp.shared_expert.", cfg)
    for name in ("mlp.shared_experts.", "mlp.shared_expert."):  # Laguna's shared expert has no gate
        if name + "w1.weight" in w and "mlp.shared_expert_gate.weight" not in w:
            y = y + feed_forward(x, w, name, cfg, limit_of(cfg, "swiglu_limits_shared", l))
    return y


class Plain:
    """A model in float64.  weights: tensors by their names on disk, after `spell`; masks (M, E, I) or None."""

    def __init__(self, cfg, weights, masks=None):
        self.cfg, self.weights, self.masks = cfg, weights, masks
        self.tapes = []  # per mixture: (what it recorded, its output)

    def feed(self, x, w, l, chooses=None):
        """Run x (N, H) through a layer's mixture or its dense feed-forward."""
        if "mlp.gate.weight" not in w:
            return feed_forward(x, w, "mlp.", self.cfg, limit_of(self.cfg, "swiglu_limits_shared", l))
        tape, masks = [], None if self.masks is None else self.masks[len(self.tapes)]
        y = mixture(x, w, self.cfg, masks, tape, l, chooses)
        if y.requires_grad:
            y.retain_grad()
        self.tapes.append((tape, y))
        return y

    def gemma_layer(self, x, y, w):
        """x (S, T, H), and y, what attention adds to it: MLP and experts side by side."""
        scaled = lambda v, name: norm(v, w, name, self.cfg.rms_norm_eps)
        x = x + scaled(y, "post_attention_layernorm")
        mlp = feed_forward(scaled(x, "pre_feedforward_layernorm"), w, "mlp.", self.cfg)
        w = w | {"router.norm.weight": w["router.scale"] / x.shape[-1] ** 0.5}
        inputs = scaled(x, "pre_feedforward_layernorm_2"), scaled(x, "router.norm")
        experts = self.feed(inputs[0].flatten(0, 1), w, 0, inputs[1].flatten(0, 1)).view_as(x)
        y = scaled(mlp, "post_feedforward_layernorm_1") + scaled(experts, "post_feedforward_layernorm_2")
        return (x + scaled(y, "post_feedforward_layernorm")) * w["layer_scalar"]

    def layer(self, l, x):
        prefix, eps = f"model.layers.{l}.", eps_of(self.cfg)
        w = {n.removeprefix(prefix): t for n, t in self.weights.items() if n.startswith(prefix)}
        plus = added(self.cfg)
        normed = norm(x, w, "input_layernorm", eps, plus)
        if "self_attn.kv_b_proj.weight" in w:
            y = latent_attention(normed, w, self.cfg)
        elif "conv.conv.weight" in w:
            y = short_convolution(normed, w)
        elif "linear_attn.norm.weight" in w:
            y = delta_attention(normed, w, self.cfg)
        else:
            y = attention(normed, w, self.cfg, l)
        if "layer_scalar" in w:
            return self.gemma_layer(x, y, w)
        before = "post_attention_layernorm"
        if "pre_mlp_layernorm.weight" in w:  # afmoe normalises the output of attention
            y, before = norm(y, w, before, eps), "pre_mlp_layernorm"
        share = getattr(self.cfg, "residual_multiplier", 1.0)
        x = x + share * y
        y = self.feed(norm(x, w, before, eps, plus).flatten(0, 1), w, l).view_as(x)
        if "post_mlp_layernorm.weight" in w and (before != "post_attention_layernorm" or "mlp.gate.weight" in w):
            y = norm(y, w, "post_mlp_layernorm", eps)
        return x + share * y

    def logits(self, ids):
        w, self.tapes = self.weights, []
        x = w["model.embed_tokens.weight"][ids]
        if getattr(self.cfg, "mup_enabled", False) or self.cfg.model_type == "gemma4_text":
            x = x * self.cfg.hidden_size**0.5
        x = x * getattr(self.cfg, "embedding_multiplier", 1.0)
        for l in range(self.cfg.num_hidden_layers):
            x = self.layer(l, x)
        x = norm(x, w, "model.norm", eps_of(self.cfg), added(self.cfg))
        x = linear(x, w, "lm_head" if "lm_head.weight" in w else "model.embed_tokens")
        cap = getattr(self.cfg, "final_logit_softcapping", None)
        return cap * (x / cap).tanh() if cap else x / getattr(self.cfg, "logits_scaling", 1.0)

    def channel_sums(self):
        """c (M, E, I) after a backward pass: the sum over an expert's tokens of h times w W_down^T dy, at full
        width and before any mask."""
        rows = [
            [(h * (share * (y.grad[token] @ down))).sum(0) for token, share, h, down in tape]
            for tape, y in self.tapes
        ]
        return torch.stack([torch.stack(row) for row in rows]).detach()
