"""The numbers stored beside a model: each function makes one named group for golden.safetensors.

`ids` is always one batch of sequences (S, T).  The groups "members", "subnet" and "lora" belong to the model
in ranked order, so the caller ranks it first.  golden/README says what every tensor is.
"""

from dataclasses import dataclass

import torch

import oracle


BUDGETS, STEP = (0.0, 0.2, 0.4, 0.6, 0.8), 0.01  # budgets of members; a neighbour is one step away
TOLERANCE, TENFOLD = 1e-4, 10  # relative to the largest value; neighbours differ by at least ten times it


@dataclass(frozen=True)
class Recipe:
    """Parameters of the goldens that are not in the model."""

    seed: int
    actions: tuple  # widths, increasing
    gap_min: float = 1e-5  # smallest accepted gap of oracle.routing, so that rounding does not decide
    tau: float = 1.3
    lam: float = 0.4
    beta: float = 0.02
    lora_rank: int = 2
    lora_alpha: float = 6.0
    lora_std: float = 0.2  # of the adapter's initial values; B is not zero, or gradients would vanish
    lr: float = 1e-2
    betas: tuple = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.1
    steps: int = 3


def refuse_ties(model, ids, recipe):
    """Refuse a model whose routing depends on rounding: its goldens would be meaningless."""
    _, gap = oracle.routing(model, ids)
    if not gap >= recipe.gap_min:
        raise SystemExit(f"a router gap of {gap:.1e} is too close to a tie; change the seed")


def outputs(model, ids):
    with torch.no_grad():
        logits = oracle.logits_of(model, ids)
    return {"full.logits": logits, "full.logprob": oracle.log_probs(logits, ids)}


def ranking(model, ids, sizes):
    """Scores at several batch sizes, and the order by the first of them."""
    out = {}
    for size in sizes:
        score, losses = oracle.scores(model, ids.split(size))
        out |= {f"rank{size}.scores": score, f"rank{size}.losses": losses}
    out["rank.order"] = oracle.order_of(out[f"rank{sizes[0]}.scores"]).int()
    out["rank.tokens"] = oracle.tokens_per_expert(model, ids)
    return out


def gradients(model, ids):
    """Loss, and dx at every boundary; the gradients of experts remain in the model."""
    loss_of = lambda m: oracle.cross_entropy(oracle.logits_of(m, ids), ids)
    loss, dx = oracle.backward_with_taps(model, loss_of)
    return {"grad.ids": ids.int(), "grad.loss": loss, "grad.dx": dx}


def boundaries(model, ids):
    """The input of every layer and of the last norm, (L + 1, S, T, H)."""
    taps = []
    with oracle.tap_boundaries(model, taps), torch.no_grad():
        oracle.logits_of(model, ids)
    return {"grad.hidden": torch.stack(taps)}


def draw_masks(model, recipe):
    """Widths at BUDGETS and at their neighbours, (2 B, M, E).  They are nested, every expert keeps at least
    one channel, and some experts lose channels earlier than others."""
    generator = torch.Generator().manual_seed(recipe.seed + 2)
    M, E, I = oracle.shape_of(model)
    slope = 0.3 + 2.0 * torch.rand((M, E, 1), generator=generator)
    times = (torch.rand((M, E, I - 1), generator=generator) ** slope).flatten()
    owner = torch.arange(M * E).repeat_interleave(I - 1)[times.argsort()]
    removed = [round(b * M * E * I) for base in BUDGETS for b in (base, base + STEP)]
    lost = torch.stack([owner[:n].bincount(minlength=M * E) for n in removed])
    return I - lost.view(-1, M, E)


def members(model, ids, recipe):
    """Log-probabilities with prefix masks at several budgets.  Those of a mask must differ clearly from those
    of its neighbour, so that a test notices a wrong mask."""
    masks, I, out = draw_masks(model, recipe), oracle.shape_of(model)[2], []
    for widths in masks:
        oracle.open_experts(model, mask=oracle.prefix_masks(widths, I))
        refuse_ties(model, ids, recipe)
        with torch.no_grad():
            out.append(oracle.log_probs(oracle.logits_of(model, ids), ids))
    own, beside = torch.stack(out[0::2]), torch.stack(out[1::2])
    miss = (own - beside).abs().amax((1, 2)) / own.abs().amax((1, 2))
    if not miss.min() >= TENFOLD * TOLERANCE:
        raise SystemExit(f"a neighbour is only {miss.min():.1e} away; change the weights")
    return {
        "members.budgets": torch.tensor(BUDGETS), "members.widths": masks[0::2].int(),
        "members.logprob": own, "members.neighbours": masks[1::2].int(),
    }  # fmt: skip


def draw_choice(model, recipe):
    """alpha, noise, and the soft and straight-through choices made from them."""
    generator = torch.Generator().manual_seed(recipe.seed)
    shape = (*oracle.shape_of(model)[:2], len(recipe.actions))
    alpha = torch.randn(shape, generator=generator).requires_grad_()
    noise = oracle.gumbel(shape, generator)
    soft, choice = oracle.straight_through(alpha, noise, recipe.tau)
    choice.retain_grad()
    return alpha, noise, soft, choice


def subnet(model, ids, recipe):
    """One sampled subnet.  The 0/1 mask is a variable, and autograd computes the gradient of the logits
    alpha through the straight-through choice."""
    I, actions = oracle.shape_of(model)[2], torch.tensor(recipe.actions)
    oracle.open_experts(model)
    with torch.no_grad():
        teacher = oracle.logits_of(model, ids)
    share = oracle.tokens_per_expert(model, ids) / (ids.numel() * oracle.chosen_of(model.config))
    alpha, noise, soft, choice = draw_choice(model, recipe)
    mask = choice @ oracle.prefix_masks(actions, I)
    mask.retain_grad()
    oracle.open_experts(model, mask=mask)
    refuse_ties(model, ids, recipe)
    out = {}

    def loss_of(m):
        out["subnet.logits"] = oracle.logits_of(m, ids)
        out["subnet.ce"] = oracle.cross_entropy(out["subnet.logits"], ids)
        out["subnet.kl"] = oracle.divergence(out["subnet.logits"], teacher)
        return out["subnet.ce"] + out["subnet.kl"]

    _, out["subnet.dx"] = oracle.backward_with_taps(model, loss_of)
    out["subnet.dalpha"] = alpha.grad.clone()
    pressure = recipe.lam * oracle.cost(alpha, share, actions, I)
    (pressure - recipe.beta * oracle.entropy_mean(alpha)).backward()
    return out | {
        "subnet.actions": actions.int(), "subnet.alpha": alpha, "subnet.noise": noise,
        "subnet.tau_lambda_beta": torch.tensor([recipe.tau, recipe.lam, recipe.beta]),
        "subnet.widths": actions[soft.argmax(-1)].int(), "subnet.soft": soft,
        "subnet.c": mask.grad, "subnet.dz": choice.grad,
        "subnet.share": share, "subnet.dalpha_all": alpha.grad,
    }  # fmt: skip


def open_adapter(model, widths, recipe):
    """Make the model the student, with the subnet's masks and an adapter with random initial values."""
    H, I = model.config.hidden_size, oracle.shape_of(model)[2]
    adapter = oracle.Adapter(widths, H, recipe.lora_rank, recipe.lora_alpha)
    adapter.fill(torch.Generator().manual_seed(recipe.seed + 1), recipe.lora_std)
    experts = oracle.experts_of(model)
    oracle.open_experts(
        model,
        mask=oracle.prefix_masks(widths, I),
        weights=lambda l, e: adapter.merged(experts[l], l, e),
    )
    return adapter


def lora(model, ids, widths, recipe):
    """Adapters on the subnet: CE + KL, their gradients, and a few steps of AdamW."""
    oracle.open_experts(model)
    with torch.no_grad():
        teacher = oracle.logits_of(model, ids)
    adapter = open_adapter(model, widths, recipe)
    refuse_ties(model, ids, recipe)
    out = {"lora.widths": widths.int(), "lora.values": adapter.flat()}
    steps, losses = [], []
    optimizer = torch.optim.AdamW(
        adapter.parameters(), lr=recipe.lr, betas=recipe.betas, eps=recipe.eps,
        weight_decay=recipe.decay,
    )  # fmt: skip
    for _ in range(recipe.steps):
        adapter.zero_grads()
        logits = oracle.logits_of(model, ids)
        loss = torch.stack([oracle.cross_entropy(logits, ids), oracle.divergence(logits, teacher)])
        loss.sum().backward()
        if not steps:
            out |= {"lora.grad": adapter.flat(grad=True), "lora.logits": logits}
        losses.append(loss)
        optimizer.step()
        steps.append(adapter.flat())
    hyper = [recipe.lr, *recipe.betas, recipe.eps, recipe.decay]
    return out | {
        "lora.rank_alpha": torch.tensor([recipe.lora_rank, recipe.lora_alpha]),
        "lora.losses": torch.stack(losses), "lora.steps": torch.stack(steps),
        "lora.adamw": torch.tensor(hyper, dtype=torch.float64),
    }  # fmt: skip
