"""The untrained, deliberately odd model: no size is a multiple of another or of 32.

It guards the corners that a trained model of round sizes cannot: head_dim apart from H / heads,
grouped heads, a window shorter than the sequence, tied embeddings, F16 weights in two shards,
the key spellings of transformers 4, and in layer 1 an expert that no token can reach.
"""

import json

import numpy as np
import torch

import oracle

SEED = 20
GAP_MIN = 1e-3  # between the last router logit chosen and the first not: rounding must not decide
L, H, Q, G, C, I, E, K, V = 3, 48, 6, 2, 10, 37, 5, 2, 97
S, T = 6, 23
ACTIONS = [4, 15, 26, 37]  # 0.1 0.4 0.7 1.0 of 37 channels, rounded up
TAU, LAMBDA, BETA = 1.3, 0.4, 0.02
LORA_RANK, LORA_ALPHA = 3, 6.0
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
ADAMW_STEPS = 3
UNREACHED = (1, 4)  # layer, expert

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


def full_goldens(model, ids):
    """The full model: outputs, scores at two batch sizes, every expert gradient of one batch."""
    out = {}
    with torch.no_grad():
        logits = oracle.logits_of(model, ids)
    out["full.logits"], out["full.logprob"] = logits, oracle.log_probs(logits, ids)
    for size in (1, 2):
        score, losses = oracle.scores(model, ids.split(size))
        out[f"rank{size}.scores"], out[f"rank{size}.losses"] = score, losses
    out["rank.order"] = oracle.order_of(out["rank1.scores"]).int()
    out["rank.tokens"] = oracle.tokens_per_expert(model, ids)
    pair = ids[:2]
    loss_of = lambda m: oracle.cross_entropy(oracle.logits_of(m, pair), pair)
    out["grad.loss"], out["grad.dx"] = oracle.backward_with_taps(model, loss_of)
    for l, grads in enumerate(oracle.expert_grads(model)):
        out.update({f"grad.layers.{l}.{name}": g for name, g in grads.items()})
    return out


def teacher_and_pair(model, ids):
    """Two sequences and the full model's logits on them."""
    with torch.no_grad():
        return ids[:2], oracle.logits_of(model, ids[:2])


def subnet_goldens(model, ids, generator):
    """One sampled subnet of the ranked model: the mask variable is opened at its 0/1 value, and
    the logits' gradient comes from autograd through the straight-through choice."""
    pair, teacher = teacher_and_pair(model, ids)
    actions = torch.tensor(ACTIONS)
    prefixes = oracle.prefix_masks(actions, I)  # (A, I)
    alpha = torch.randn((L, E, len(ACTIONS)), generator=generator).requires_grad_()
    noise = oracle.gumbel(alpha.shape, generator)
    soft, choice = oracle.straight_through(alpha, noise, TAU)
    choice.retain_grad()
    mask = choice @ prefixes
    mask.retain_grad()
    oracle.open_experts(model, mask=mask)
    measured = {}

    def loss_of(m):
        logits = oracle.logits_of(m, pair)
        measured["subnet.logits"] = logits.detach()
        measured["subnet.ce"] = oracle.cross_entropy(logits, pair)
        measured["subnet.kl"] = oracle.divergence(logits, teacher)
        return measured["subnet.ce"] + measured["subnet.kl"]

    _, dx = oracle.backward_with_taps(model, loss_of)
    refuse_ties(model, pair)
    out = {name: value.detach() for name, value in measured.items()}
    out["subnet.dalpha"] = alpha.grad.clone()
    share = oracle.tokens_per_expert(model, pair) / (pair.numel() * K)
    extra = LAMBDA * oracle.cost(alpha, share, actions, I) - BETA * oracle.entropy_mean(alpha)
    extra.backward()
    out |= {
        "subnet.actions": actions.int(), "subnet.alpha": alpha.detach(), "subnet.noise": noise,
        "subnet.tau_lambda_beta": torch.tensor([TAU, LAMBDA, BETA]),
        "subnet.widths": actions[soft.argmax(-1)].int(), "subnet.soft": soft.detach(),
        "subnet.c": mask.grad, "subnet.dz": choice.grad, "subnet.dx": dx,
        "subnet.share": share, "subnet.dalpha_all": alpha.grad,
    }  # fmt: skip
    return out


def lora_goldens(model, ids, widths, generator):
    """Adapters on the subnet: CE + KL, their gradients, and a few steps of AdamW."""
    pair, teacher = teacher_and_pair(model, ids)
    adapter = oracle.Adapter(widths, H, LORA_RANK, LORA_ALPHA)
    adapter.fill(generator, std=0.2)
    experts = oracle.experts_of(model)
    oracle.open_experts(
        model,
        mask=oracle.prefix_masks(widths, I),
        weights=lambda l, e: adapter.merged(experts[l], l, e),
    )
    out = {"lora.values": adapter.flat()}
    refuse_ties(model, pair)
    optimizer = torch.optim.AdamW(adapter.parameters(), **ADAMW)
    steps, losses = [], []
    for step in range(ADAMW_STEPS):
        optimizer.zero_grad(set_to_none=False)
        logits = oracle.logits_of(model, pair)
        ce, kl = oracle.cross_entropy(logits, pair), oracle.divergence(logits, teacher)
        (ce + kl).backward()
        if step == 0:
            out["lora.grad"], out["lora.logits"] = adapter.flat(grad=True), logits.detach()
            fill_missing_grads(adapter)
        losses.append(torch.stack([ce.detach(), kl.detach()]))
        optimizer.step()
        steps.append(adapter.flat())
    beta1, beta2 = ADAMW["betas"]
    hyper = [ADAMW["lr"], beta1, beta2, ADAMW["eps"], ADAMW["weight_decay"]]
    return out | {
        "lora.widths": widths.int(),
        "lora.rank_alpha": torch.tensor([LORA_RANK, LORA_ALPHA]),
        "lora.adamw": torch.tensor(hyper, dtype=torch.float64),
        "lora.losses": torch.stack(losses), "lora.steps": torch.stack(steps),
    }  # fmt: skip


def fill_missing_grads(adapter):
    """An expert without tokens has no gradient at all in autograd and would be skipped by AdamW;
    its gradient is zero, and the decay applies to it as to the others."""
    for p in adapter.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)


def refuse_ties(model, ids):
    """A model whose routing hangs on rounding proves nothing."""
    _, gap = oracle.routing(model, ids)
    if not gap >= GAP_MIN:
        raise SystemExit(f"odd: a router gap of {gap:.1e} is too close to a tie, change SEED")


def goldens(folder):
    """golden.safetensors from the model on disk."""
    ids = torch.from_numpy(np.load(folder / "tokens.npy").astype(np.int64))
    model = oracle.load(folder)
    refuse_ties(model, ids)
    generator = torch.Generator().manual_seed(SEED + 1)
    out = {"ids": ids.int()} | full_goldens(model, ids)
    oracle.rank_in_place(model, out["rank.order"].long())
    oracle.open_experts(model)
    out |= subnet_goldens(model, ids, generator)
    oracle.open_experts(model)
    out |= lora_goldens(model, ids, out["subnet.widths"].long(), generator)
    oracle.save(folder / "golden.safetensors", out)
