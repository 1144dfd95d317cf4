"""The scores, mask gradients and adapters of fm-method(7), computed with transformers and autograd.

Nothing here depends on how the suite computes: the model is transformers' own in float32 with eager
attention, and every derivative comes from autograd.  Subnets and adapters change the middle of an
expert.  So `open_experts` replaces the loop of MixtralExperts, which all families share, by the same
loop with two hooks: one for the weights that are used, one for a mask on the hidden activation.
GptOssExperts store gate_up interleaved and transposed, have biases, and use another activation:
`is_biased` identifies them, and the code branches on it.

Letters as in kernels/ops/kernels.h: L layers, M of them mixtures of experts, E experts, K chosen,
H hidden, I channels, A actions, S sequences, T positions, V vocabulary.
"""

import types
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import mimo  # noqa: F401

PARTS = ("gate_A", "gate_B", "up_A", "up_B", "down_A", "down_B")  # enum fm_lora's order


def class_of(config):
    """The class that loads a configuration; a wrapper, and some text models, are no causal language models."""
    causal = type(config) in AutoModelForCausalLM._model_mapping
    return AutoModelForCausalLM if causal else AutoModelForImageTextToText


def has_class(config):
    return any(type(config) in x._model_mapping for x in (AutoModelForCausalLM, AutoModelForImageTextToText))


class TextPart(torch.nn.Module):
    """The text model and the head of a multimodal model, where transformers has no class for them."""

    def __init__(self, whole):
        super().__init__()
        self.model, self.lm_head, self.config = whole.model.language_model, whole.lm_head, whole.config.get_text_config()

    def forward(self, ids, use_cache=False):
        hidden = self.model(ids, use_cache=use_cache).last_hidden_state
        return types.SimpleNamespace(logits=self.lm_head(hidden))


def load(path, dtype=torch.float32):
    """Load a checkpoint in transformers, with eager attention and experts; of a wrapper, the text part."""
    eager = {"dtype": dtype, "attn_implementation": "eager", "experts_implementation": "eager"}
    config = AutoConfig.from_pretrained(path)
    whole = class_of(config).from_pretrained(path, **eager)
    if not hasattr(whole.model, "language_model"):
        return whole.eval()
    if not has_class(config.get_text_config()):
        return TextPart(whole).eval()
    model = class_of(config.get_text_config()).from_config(config.get_text_config(), **eager)
    model.model, model.lm_head = whole.model.language_model, whole.lm_head
    return model.eval()


def save(path, tensors):
    """Write a safetensors file with transformers' metadata; scalars become tensors of one element."""
    whole = {n: t.detach().reshape(t.shape or (1,)).contiguous() for n, t in tensors.items()}
    save_file(whole, path, metadata={"format": "pt"})
    path.chmod(0o644)


def mlp_of(layer):
    """The module after the second norm of a layer, which has different names in the families; Gemma's layers have
    router and experts themselves."""
    if hasattr(layer, "experts"):
        return layer
    return next(getattr(layer, name) for name in ("mlp", "block_sparse_moe", "feed_forward") if hasattr(layer, name))


def moe_layers(model):
    """Indices of the M decoder layers that are mixtures of experts."""
    return [l for l, x in enumerate(model.model.layers) if hasattr(mlp_of(x), "experts")]


def mixtures_of(model):
    return [mlp_of(model.model.layers[l]) for l in moe_layers(model)]


def experts_of(model):
    """The expert modules of the M layers."""
    return [mixture.experts for mixture in mixtures_of(model)]


def shape_of(model):
    """Return M, E, I."""
    experts = experts_of(model)
    return len(experts), experts[0].num_experts, channels_of(experts[0])


def chosen_of(config):
    """The number of experts per token."""
    return getattr(config, "top_k_experts", None) or config.num_experts_per_tok


def is_biased(experts):
    return hasattr(experts, "gate_up_proj_bias")


def channels_of(experts):
    return experts.intermediate_size if is_biased(experts) else experts.intermediate_dim


# --- losses ---------------------------------------------------------------------------------


def logits_of(model, ids):
    """The logits (S, T, V)."""
    return model(ids, use_cache=False).logits


def cross_entropy(logits, ids):
    """Mean next-token cross-entropy over the S (T - 1) predictions."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def divergence(logits, teacher):
    """KL(teacher || student): summed over the vocabulary, mean over the same positions."""
    student = F.log_softmax(logits[:, :-1], dim=-1)
    target = F.log_softmax(teacher[:, :-1], dim=-1)
    return F.kl_div(student, target, log_target=True, reduction="none").sum(-1).mean()


def log_probs(logits, ids):
    """Log-probability of every token that has a predecessor, (S, T - 1)."""
    table = F.log_softmax(logits[:, :-1], dim=-1)
    return table.gather(-1, ids[:, 1:, None])[..., 0]


# --- the full model ---------------------------------------------------------------------------


@contextmanager
def hooked(hooks):
    """A context manager that removes the hooks at its end."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def tap_boundaries(model, taps):
    """A context manager in which the inputs of every layer and of the last norm are appended to taps."""
    last = "norm" if hasattr(model.model, "norm") else "embedding_norm"
    places = [*model.model.layers, getattr(model.model, last)]
    keep = lambda _module, args: taps.append(args[0])
    return hooked([place.register_forward_pre_hook(keep) for place in places])


def backward_with_taps(model, loss_of):
    """Differentiate loss_of(model); returns the loss and dx (L + 1, S, T, H) at the layer
    boundaries: entry l is the gradient at the input of layer l, the last one at the norm."""
    taps = []
    with tap_boundaries(model, taps):
        model.zero_grad(set_to_none=True)
        loss = loss_of(model)
        for tap in taps:
            tap.retain_grad()
        loss.backward()
    return loss.detach(), torch.stack([tap.grad for tap in taps])


def split_gate_up(experts, tensor):
    """Split transformers' fused (..., 2 I, H) into gate (..., I, H) and up; gpt-oss's is (..., H, 2 I)."""
    if is_biased(experts):
        return tensor[..., 0::2].mT, tensor[..., 1::2].mT
    return tensor.chunk(2, dim=-2)


def join_gate_up(experts, gate, up):
    if is_biased(experts):
        return torch.stack([gate.mT, up.mT], -1).flatten(-2)
    return torch.cat([gate, up], dim=-2)


def turned_down(experts, tensor):
    """Transpose gpt-oss's down (..., I, H) to (..., H, I) or back; others are (..., H, I) already."""
    return tensor.mT if is_biased(experts) else tensor


def expert_grads(model):
    """Per layer: dw1 (E, I, H), dw2 (E, H, I), dw3 (E, I, H), by the names on disk."""
    grads = []
    for experts in experts_of(model):
        gate, up = split_gate_up(experts, experts.gate_up_proj.grad)
        down = turned_down(experts, experts.down_proj.grad)
        grads.append({"w1": gate, "w2": down, "w3": up})
    return grads


def channel_squares(experts):
    """The sum over a channel's parameters of (theta dL/dtheta)^2, (E, I) in float64."""
    squares = lambda p: (p.double() * p.grad.double()).square()
    rows = sum(split_gate_up(experts, squares(experts.gate_up_proj))).sum(-1)
    own = squares(experts.gate_up_proj_bias).unflatten(-1, (-1, 2)).sum(-1) if is_biased(experts) else 0
    return rows + turned_down(experts, squares(experts.down_proj)).sum(-2) + own


def scores(model, batches):
    """fm-method(7), SCORE: (M, E, I) mean over batches of the per-batch squares, and the batch losses."""
    total, losses = 0.0, []
    for ids in batches:
        model.zero_grad(set_to_none=True)
        loss = cross_entropy(logits_of(model, ids), ids)
        loss.backward()
        losses.append(loss.detach().double())
        with torch.no_grad():
            total = total + torch.stack([channel_squares(x) for x in experts_of(model)])
    return total / len(batches), torch.stack(losses)


def gap_of_topk(logits, K):
    """The smallest difference between the last chosen expert and the next one."""
    top = logits.topk(K + 1, dim=-1).values
    return (top[:, K - 1] - top[:, K]).min()


def gap_of_sparsemixer(logits, eps):
    """The smallest difference between the chosen expert and the next one in the two passes of PhiMoE's
    router, or the smallest distance of a quotient from the threshold at which an expert is dropped, if that
    is smaller."""
    first, second, third = logits.topk(3, dim=-1).values.T[:, :, None]
    quotient = lambda top: (top - logits) / logits.abs().clamp(min=top)
    near = torch.stack([(quotient(x) - 2 * eps).abs().min() for x in (first, second)])
    return torch.minimum(near.min(), torch.minimum(first - second, second - third).min())


def choice_of_probabilities(router, choice):
    """choice_of for DeepSeek-V2's router, which ranks groups by their best expert."""
    if router.topk_method == "greedy":
        return choice, choice.new_tensor(torch.inf)
    groups = choice.unflatten(-1, (router.num_group, -1))
    best = groups.amax(-1)
    kept = torch.zeros_like(best).scatter(-1, best.topk(router.topk_group, dim=-1).indices, 1)
    left = groups.masked_fill(kept[..., None] == 0, 0.0).flatten(-2)
    return left, gap_of_topk(best, router.topk_group)


def choice_of(router, args, logits):
    """The scores (N, E) by which a router chooses, -inf (DeepSeek-V2: 0) in groups that are not chosen; and
    the smallest difference between the last chosen group and the next one."""
    if hasattr(router, "topk_method"):  # DeepSeek-V2's
        return choice_of_probabilities(router, logits.softmax(-1))
    softmax = hasattr(router, "moe_statics")  # ERNIE's; the others' scores are sigmoids
    bias = router.moe_statics if softmax else router if len(args) < 2 else None
    bias = args[1] if bias is None else bias.e_score_correction_bias
    choice = (logits.softmax(-1) if softmax else logits.sigmoid()) + bias.flatten()
    if getattr(router, "num_group", 1) == 1:
        return choice, choice.new_tensor(torch.inf)
    groups = choice.unflatten(-1, (router.num_group, -1))
    best = groups.topk(2, dim=-1).values.sum(-1)
    kept = torch.zeros_like(best).scatter(-1, best.topk(router.topk_group, dim=-1).indices, 1)
    left = groups.masked_fill(kept[..., None] == 0, -torch.inf).flatten(-2)
    return left, gap_of_topk(best, router.topk_group)


def gap_of_scored(router, args, logits, index):
    """Like gap_of_topk, in scores; or the distance of the sum of the weights from ERNIE's smallest divisor,
    if that is smaller."""
    choice, gap = choice_of(router, args, logits)
    gap = torch.minimum(gap, gap_of_topk(choice, index.shape[-1]))
    if hasattr(router, "norm_min"):
        total = logits.softmax(-1).gather(-1, index).sum(-1)
        gap = torch.minimum(gap, (total - router.norm_min).abs().min())
    return gap


def is_scored(router, args):
    marks = ("moe_statics", "e_score_correction_bias", "topk_method")
    return len(args) > 1 or any(hasattr(router, mark) for mark in marks)


def routing(model, ids):
    """Chosen experts of every token (M, N, K), and the smallest gap: the distance from another choice, in
    router logits or scores."""
    chosen, gaps = [], []

    def keep(router, args, out):
        logits, _weights, index = out
        logits = logits.log() if hasattr(router, "per_expert_scale") else logits  # Gemma's returns probabilities
        chosen.append(index)
        if hasattr(router, "router_jitter_noise"):
            gaps.append(gap_of_sparsemixer(logits, router.router_jitter_noise))
        elif is_scored(router, args):
            gaps.append(gap_of_scored(router, args, logits, index))
        else:
            gaps.append(gap_of_topk(logits, index.shape[-1]))

    routers = [x.router if hasattr(x, "router") else x.gate for x in mixtures_of(model)]
    with hooked([x.register_forward_hook(keep) for x in routers]), torch.no_grad():
        logits_of(model, ids)
    return torch.stack(chosen), torch.stack(gaps).min()


def tokens_per_expert(model, ids):
    """Token slots routed to each expert, (M, E)."""
    chosen, _ = routing(model, ids)
    E = shape_of(model)[1]
    return torch.stack([layer.flatten().bincount(minlength=E) for layer in chosen])


# --- ranked order, subnets, adapters ------------------------------------------------------------


def order_of(score):
    """Channels by decreasing score; of equal ones, the lower original channel first."""
    return torch.argsort(score, dim=-1, descending=True, stable=True)


@torch.no_grad()
def rank_in_place(model, order):
    """Permute the channels of every expert by order (M, E, I); the outputs stay the same."""
    for experts, layer_order in zip(experts_of(model), order, strict=True):
        for e, channels in enumerate(layer_order):
            gate, up = split_gate_up(experts, experts.gate_up_proj[e])
            experts.gate_up_proj[e] = join_gate_up(experts, gate[channels], up[channels])
            down = turned_down(experts, experts.down_proj[e])
            experts.down_proj[e] = turned_down(experts, down[:, channels])
            if is_biased(experts):
                pairs = experts.gate_up_proj_bias[e].unflatten(-1, (-1, 2))
                experts.gate_up_proj_bias[e] = pairs[channels].flatten()


def looped_experts(self, hidden_states, top_k_index, top_k_weights):
    """MixtralExperts.forward, with `self.mask` (E, I) applied to the hidden activation and the weights
    from `self.weights(e)`."""
    out = torch.zeros_like(hidden_states)
    for e in range(self.num_experts):
        token, slot = torch.where(top_k_index == e)
        if len(token) == 0:
            continue
        gate_up, down = self.weights(e)
        if is_biased(self):
            h = self._apply_gate(hidden_states[token] @ gate_up + self.gate_up_proj_bias[e])
        elif hasattr(self, "act_fn") and not hasattr(self, "limit"):
            gate, up = F.linear(hidden_states[token], gate_up).chunk(2, dim=-1)
            h = self.act_fn(gate) * up
        else:
            h = self._apply_gate(F.linear(hidden_states[token], gate_up))
        if self.mask is not None:
            h = h * self.mask[e]
        y = h @ down + self.down_proj_bias[e] if is_biased(self) else F.linear(h, down)
        y = y * top_k_weights[token, slot, None]
        out = out.index_add(0, token, y.to(out.dtype))
    return out


def open_experts(model, mask=None, weights=None):
    """Make mixture l use mask[l] (E, I) and weights(l, e); None: no mask, the model's own weights."""
    for l, experts in enumerate(experts_of(model)):
        experts.mask = None if mask is None else mask[l]
        if weights is None:
            experts.weights = lambda e, x=experts: (x.gate_up_proj[e], x.down_proj[e])
        else:
            experts.weights = lambda e, l=l: weights(l, e)
        experts.forward = types.MethodType(looped_experts, experts)


def prefix_masks(widths, channels):
    """Convert widths (...,) to 0/1 masks (..., I)."""
    return (torch.arange(channels) < widths[..., None]).to(torch.float32)


class Adapter:
    """LoRA on the kept channels, parametrised as in lib/engine/adapter.h.  `parts[l][e]` has the six
    matrices; `flat` concatenates them in the order of struct fm_adapter's `values`."""

    def __init__(self, widths, H, rank, alpha):
        self.widths, self.scale = widths, alpha / rank
        self.parts = [
            [self._shapes(int(k), H, rank) for k in layer_widths] for layer_widths in widths
        ]

    @staticmethod
    def _shapes(k, H, r):
        shape = {
            "gate_A": (r, H), "gate_B": (k, r), "up_A": (r, H), "up_B": (k, r),
            "down_A": (r, k), "down_B": (H, r),
        }  # fmt: skip
        return {name: torch.zeros(shape[name], requires_grad=True) for name in PARTS}

    def parameters(self):
        return [expert[name] for layer in self.parts for expert in layer for name in PARTS]

    @torch.no_grad()
    def fill(self, generator, std):
        for p in self.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * std)

    def zero_grads(self):
        """Set gradients to zero, not None: AdamW must apply decay to experts without tokens, too."""
        for p in self.parameters():
            p.grad = torch.zeros_like(p)

    def flat(self, grad=False):
        parameters = self.parameters()
        return torch.cat([(p.grad if grad else p.detach()).flatten() for p in parameters])

    def merged(self, experts, l, e):
        """gate_up and down of one expert with its adapter added."""
        part, k, s = self.parts[l][e], int(self.widths[l][e]), self.scale
        I = channels_of(experts)
        rows = lambda delta: F.pad(delta, (0, 0, 0, I - k))
        gate, up = split_gate_up(experts, experts.gate_up_proj[e])
        gate = gate + s * rows(part["gate_B"] @ part["gate_A"])
        up = up + s * rows(part["up_B"] @ part["up_A"])
        down = s * F.pad(part["down_B"] @ part["down_A"], (0, I - k))
        return join_gate_up(experts, gate, up), experts.down_proj[e] + turned_down(experts, down)


def entropy_mean(alpha):
    """Mean over experts of the entropy of softmax(alpha)."""
    logp = F.log_softmax(alpha, dim=-1)
    return -(logp.exp() * logp).sum(-1).mean()


def cost(alpha, share, widths, channels):
    """The sum over (l, e) of q[l,e] sum_a p[l,e,a] k_a / I."""
    p = F.softmax(alpha, dim=-1)
    return (share * (p * (widths / channels)).sum(-1)).sum()


def straight_through(alpha, noise, tau):
    """The noisy soft choice, and its one-hot argmax with the gradient of the soft choice."""
    soft = F.softmax((alpha + noise) / tau, dim=-1)
    hard = F.one_hot(soft.argmax(-1), alpha.shape[-1]).to(soft.dtype)
    return soft, hard - soft.detach() + soft


def gumbel(shape, generator):
    uniform = torch.rand(shape, generator=generator).clamp(min=1e-6, max=1 - 1e-6)
    return -torch.log(-torch.log(uniform))
